"""`tf-syncrep report`, as a user runs it."""

import importlib.util
import os
import re

import commands
import event_logs
import pytest

from tf_syncrep.python.report import command, live

draws = pytest.mark.skipif(
    importlib.util.find_spec("matplotlib") is None, reason="there is no Matplotlib"
)


def write_log(folder, count=10, workers=2, rows=0, **totals):
    """Figures of several moments, a second apart, with losses beside them.

    With `rows` there is a table that grows.
    """
    counters = ("capacity", "without_row", "admitted", "evicted", "refused", "bytes")
    table = {f"tables/{x}/items": 1e6 for x in counters}
    table = table | {"tables/rows/items": float(rows)} if rows else {}
    names = [f"worker:{i}" for i in range(workers)]
    events = []
    for i in range(1, count + 1):
        contributed = {name: (2 if name == "worker:1" else 4) * i for name in names}
        waited = dict.fromkeys(names, 0.25 * i)
        figures = event_logs.sync_figures(3 * i, contributed, waited, **totals)
        events.append((1e9 + i, figures | table | {"loss": 1.0 / i}))
    return event_logs.write(folder / "events.out.tfevents.1", events, 1e9)


def report(*args, **options):
    result = commands.run("report", *args, **options)
    assert "Traceback" not in result.output
    return result.process.returncode, result.stdout, result.stderr


@pytest.fixture(autouse=True)
def _environment(monkeypatch):
    """Undoes what the command sets in its own process."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.setenv("TF_CPP_MIN_LOG_LEVEL", "3")


@draws
def test_draws_a_picture_and_says_the_same_in_words(tmp_path):
    held_up = {"held_up_secs/worker:1": 4.2}
    write_log(tmp_path / "run", rows=123_456, late=7, voided=2, **held_up)
    status, stdout, stderr = report(tmp_path)
    assert (status, stderr) == (0, [])
    assert stdout == [
        f"Synchronous training in {tmp_path}/run:",
        "30 updates in 10 s, 3 updates/s; quorum 2 of 2 workers",
        "9 of 69 gradients dropped (7 late, 2 void); slowest worker: worker:1, "
        "0.375 s of work for a gradient",
        "",
        "worker    contributed  dropped        waited  held up",
        "worker:0           40        0  2.5 s (25 %)    0.0 s",
        "worker:1           20        0  2.5 s (25 %)    4.2 s",
        "",
        "table                  rows in use  ids without row   admitted    evicted"
        "    refused   memory",
        "items  123,456 of 1,000,000 (12 %)        1,000,000  1,000,000  1,000,000"
        "  1,000,000  1.0 MiB",
        "",
        f"Wrote {tmp_path}/sync_report.png.",
    ]
    assert (tmp_path / "sync_report.png").read_bytes().startswith(b"\x89PNG")


@draws
def test_takes_the_pictures_name_and_names_files_it_left_out(tmp_path, capsys):
    write_log(tmp_path / "a", count=1, workers=30, expired=1)
    garbage = tmp_path / "events.out.tfevents.2"
    garbage.write_bytes(b"garbage" * 99)
    picture = tmp_path / "new" / "picture.svg"
    text = command.write(str(tmp_path), str(picture))
    assert text.endswith(f"Wrote {picture}.")
    left_out = f"tf-syncrep report: left out: {garbage} cannot be read: "
    assert capsys.readouterr().err.startswith(left_out)
    assert "<svg" in picture.read_text()


def test_what_follows_a_damaged_event_is_named_as_left_out(tmp_path):
    path = write_log(tmp_path)
    damaged = bytearray(path.read_bytes())
    damaged[len(damaged) // 2] ^= 1
    path.write_bytes(damaged)
    said = []
    command.read(str(tmp_path), said.append)
    (line,) = said
    assert re.match(rf"{path} from its event \d+ on: .*corrupted record", line)


def test_a_missing_folder_is_one_line(tmp_path):
    path = tmp_path / "nowhere"
    said = f"tf-syncrep report: error: LOGDIR must be a folder. Received: '{path}'"
    assert report(path) == (2, [], [said])


def test_logs_without_what_is_reported_are_an_error(tmp_path):
    (tmp_path / "other.txt").touch()
    path = tmp_path / "events.out.tfevents.1"
    path.touch()
    nothing = f"no event files with events in {tmp_path} or below it"
    with pytest.raises(command.ReportError, match=f"^{re.escape(nothing)}$"):
        command.write(str(tmp_path))
    # These belong to another training.
    event_logs.write(path, [(1e9 + 1, {"loss": 1.0})], 1e9)
    said = r"^no figures of a synchronous .* in the 1 event file below .*$"
    with pytest.raises(command.ReportError, match=said):
        command.write(str(tmp_path))


@draws
@pytest.mark.parametrize("name", ["picture.docx", "file/picture.png"])
def test_a_picture_that_cannot_be_written_is_an_error(tmp_path, name):
    write_log(tmp_path)
    (tmp_path / "file").touch()
    said = f"^{re.escape(str(tmp_path / name))} cannot be written: .*$"
    with pytest.raises(command.ReportError, match=said):
        command.write(str(tmp_path), str(tmp_path / name))


def test_without_matplotlib_there_are_words_and_the_remedy(tmp_path):
    write_log(tmp_path)
    hidden = tmp_path / "hidden"
    hidden.mkdir()
    (hidden / "matplotlib.py").write_text("raise ModuleNotFoundError('matplotlib')")
    paths = [str(hidden), *filter(None, [os.environ.get("PYTHONPATH")])]
    env = {"PYTHONPATH": os.pathsep.join(paths)}
    remedy = r"Matplotlib, .* is not installed\. .* -m pip install matplotlib"
    status, stdout, stderr = report(tmp_path, env=env)
    assert (status, stderr) == (0, [])
    assert stdout[1].startswith("30 updates in 10 s")
    assert re.fullmatch(f"No picture: {remedy}", stdout[-1])
    # The command fails if it cannot draw a picture that was asked for.
    status, stdout, stderr = report(tmp_path, "-o", tmp_path / "x.png", env=env)
    assert (status, stdout, len(stderr)) == (2, [], 1)
    assert re.search(remedy, stderr[0])


def test_live_shows_how_a_training_goes_on(tmp_path, monkeypatch, capsys):
    pytest.importorskip("rich")
    monkeypatch.setenv("FORCE_COLOR", "1")  # as on a terminal
    monkeypatch.setenv("COLUMNS", "200")
    moments = [10, 20]

    def wait(secs):
        assert secs >= live._REFRESH_SECS
        if not moments:
            raise KeyboardInterrupt
        write_log(tmp_path / "run", count=moments.pop(0), rows=5, late=7)

    live.watch(str(tmp_path), wait)
    shown = capsys.readouterr().out
    waiting = shown.index(f"Waiting: no event files with events in {tmp_path} or below")
    first = shown.index("30 updates in 10 s, 3 updates/s; quorum 2 of 2 workers")
    second = shown.index("60 updates in 20 s, 3 updates/s; quorum 2 of 2 workers")
    assert waiting < first < second
    assert re.search(r"loss +1 +█[▁-█]+▁ 0\.05\b", shown[second:])
    assert re.search(r"updates/s +3 ▁{60} 3\b", shown[second:])
    assert re.search(r"dropped/s .* 0\b", shown[second:])
    assert "worker:1           40" in shown[second:]
    assert "items  5 of 1,000,000 (0 %)" in shown[second:]


def test_live_ends_by_ctrl_c_and_needs_a_terminal(tmp_path):
    pytest.importorskip("rich")
    write_log(tmp_path)
    status, shown = commands.run_on_terminal(
        "report", "--live", tmp_path, answers={rb"Ctrl-C ends this": b"\x03"}
    )
    assert status == 0
    assert b"30 updates in 10 s" in shown
    assert b"Traceback" not in shown
    said = "tf-syncrep report: error: --live needs a terminal as its standard output"
    assert report("--live", tmp_path) == (2, [], [said])
