"""How a report reconstructs a training from event files."""

import re

import event_logs
import numpy as np
import pytest
import tensorflow as tf

from tf_syncrep.python.report import event_files, summary, training

# The figures of a table that grows, for each row that is in use.
OF_TABLE = {
    "rows": 1,
    "capacity": 10,
    "without_row": 2,
    "admitted": 3,
    "evicted": 4,
    "refused": 5,
    "bytes": 1024,
}
NAMES = ("worker:0", "worker:1", "worker:10", "worker:2")


def session(path, begin, rounds, as_tensors=False, **totals):
    """A session in which a round takes 1 s, and worker:2 is half as fast."""
    events = []
    for i in range(1, rounds + 1):
        figures = event_logs.sync_figures(
            10 * i,
            {name: i * (2 if name == "worker:2" else 6) for name in NAMES},
            {name: i * (0.1 if name == "worker:2" else 0.5) for name in NAMES},
            **{name: i * count for name, count in totals.items()},
        )
        events.append((begin + 5.0 + i, figures))
    return event_logs.write(path, events, begin, as_tensors)


def latest(root):
    files = [event_files.read(x) for x in event_files.find(root)]
    found = training.latest(files, root)
    assert found is not None
    return found


@pytest.mark.parametrize("as_tensors", [False, True])
def test_counts_are_those_of_the_last_figures(tmp_path, as_tensors):
    session(tmp_path / "events.out.tfevents.1", 1e9, 20, as_tensors, late=3, stale=1)
    found, others = latest(tmp_path)
    assert others == 0
    assert found.folder == tmp_path
    assert found.total("updates") == 200
    assert (found.quorum, found.seconds, found.dropped) == (2, 25, 80)
    # The five seconds of the start do not count.
    assert found.updates_per_second == pytest.approx(10)
    assert list(found.workers) == ["worker:0", "worker:1", "worker:2", "worker:10"]
    assert found.workers["worker:2"].total("contributed") == 40
    assert found.waited_share(found.workers["worker:0"]) == pytest.approx(10 / 25)
    assert found.slowest.name == "worker:2"
    assert found.restarts == []
    np.testing.assert_array_equal(found.counters["late"].at([0, 6, 25]), [0, 3, 60])


def test_sessions_of_one_folder_are_joined_without_the_time_between(tmp_path):
    session(tmp_path / "a.tfevents.1", 1e9, 20)
    session(tmp_path / "a.tfevents.2", 1e9 + 5000, 10)
    found, others = latest(tmp_path)
    assert others == 0
    assert (found.total("updates"), found.seconds) == (300, 40)
    assert found.restarts == [25]
    updates = found.counters["updates"].at([25, 30, 35, 40])
    np.testing.assert_allclose(updates, [200, 200 + 50 / 6, 250, 300])
    assert found.updates_per_second == pytest.approx(10)


def sessions_with_one_figure(folder, *sessions):
    """Each with its updates, and what each worker has contributed."""
    for number, (updates, *contributed) in enumerate(sessions, 1):
        figures = event_logs.sync_figures(
            updates,
            dict(zip(NAMES, contributed, strict=False)),
            dict.fromkeys(NAMES[: len(contributed)], 0.0),
            late=updates,
        )
        path = folder / f"a.tfevents.{number}"
        event_logs.write(path, [(1e9 + 100 * number, figures)], 1e9 + 99 * number)


@pytest.mark.parametrize(
    ("sessions", "contributed"),
    [
        # The second gate's first figures are above the last ones of the first gate,
        # except those of one worker.
        ([(10, 18, 2), (30, 10, 50)], [28, 52]),
        # A worker that comes late to the second gate makes no third one of it.
        ([(20, 20, 20), (5, 10), (9, 12, 6)], [32, 26]),
    ],
)
def test_totals_are_the_sums_of_two_gates(tmp_path, sessions, contributed):
    sessions_with_one_figure(tmp_path, *sessions)
    found, _ = latest(tmp_path)
    totals = [worker.total("contributed") for worker in found.workers.values()]
    assert totals == contributed
    assert found.total("applied") == sum(contributed)
    assert found.total("late") == found.total("updates") == sum(contributed) / 2
    headline = f"2 workers; sums of {len(sessions)} sessions"
    assert summary.headline(found).endswith(headline)


@pytest.mark.parametrize("pause_secs", [0.0, 60.0])
def test_time_of_training_is_told_by_who_writes_it(tmp_path, pause_secs):
    events = []
    for i in range(1, 201):
        contributed, waited = (
            {NAMES[0]: i, NAMES[1]: i},
            {NAMES[0]: i * 0.02, NAMES[1]: 0},
        )
        time = 1e9 + i * 0.05 + pause_secs * (i > 120)  # a validation, for example
        figures = event_logs.sync_figures(
            i, contributed, waited, training_secs=i * 0.05
        )
        events.append((time, figures))
    event_logs.write(tmp_path / "a.tfevents.1", events, 1e9)
    found, _ = latest(tmp_path)
    assert found.seconds == pytest.approx(10 + pause_secs)
    assert found.updates_per_second == pytest.approx(20)
    assert found.seconds_of_work(found.slowest) == pytest.approx(0.05)
    assert found.waited_share(found.workers["worker:0"]) == pytest.approx(0.4)
    # A reader who divides the one number by the other is told what is not in it.
    said = "200 updates in 70 s, 20 updates/s without start and pauses; "
    assert summary.headline(found).startswith(said) == bool(pause_secs)


def test_updates_begin_after_the_start(tmp_path):
    session(tmp_path / "events.out.tfevents.1", 1e9, 20)
    found, _ = latest(tmp_path)
    assert found.begin == pytest.approx(5)


def test_start_is_left_out_of_the_rate_also_if_figures_are_written_before_it(tmp_path):
    first = (1e9 + 0.5, event_logs.sync_figures(0, {}, {}, training_secs=0))
    rest = [
        (1e9 + 20 + i, event_logs.sync_figures(10 * i, {}, {}, training_secs=20 + i))
        for i in range(1, 11)
    ]
    event_logs.write(tmp_path / "a.tfevents.1", [first, *rest], 1e9)
    found, _ = latest(tmp_path)
    assert found.updates_per_second == pytest.approx(10)
    assert found.begin == pytest.approx(20)


def test_a_table_whose_first_figures_are_cut_off_is_left_out(tmp_path):
    figures = event_logs.sync_figures(9, {}, {})
    figures |= {f"tables/{x}/whole": 1.0 for x in OF_TABLE}
    figures |= {"tables/without_row/cut": 2.0, "tables/bytes/cut": 1024.0}
    event_logs.write(tmp_path / "a.tfevents.1", [(1e9 + 1, figures)], 1e9)
    found, _ = latest(tmp_path)
    labels = [x.split()[0] for x in summary.tables(found).splitlines()]
    assert labels == ["table", "whole"]


def test_figures_of_tables_are_sums_of_sessions_or_the_latest(tmp_path):
    session(tmp_path / "a.tfevents.1", 1e9, 3)
    for number, tables in enumerate(({"items": 6}, {"items": 7, "b/c": 4096}), 1):
        # By the end of an epoch all is as many times more as the epoch says.
        epochs = [
            {
                f"tables/{figure}/{name}": float(epoch * factor * rows)
                for name, rows in tables.items()
                for figure, factor in OF_TABLE.items()
            }
            for epoch in (1, 2)
        ]
        begin = 1e9 + 100 * number
        events = [(begin + 1, epochs[0]), (begin + 2, epochs[1])]
        figures = event_logs.sync_figures(9, {}, {})
        events.append((begin + 3, figures))
        event_logs.write(tmp_path / f"b.tfevents.{number}", events, begin)
    found, _ = latest(tmp_path)
    lines = summary.tables(found).splitlines()
    assert len({*map(len, lines)}) == 1
    assert [" ".join(line.split()) for line in lines] == [
        "table rows in use ids without row admitted evicted refused memory",
        "b/c 8,192 of 81,920 (10 %) 16,384 24,576 32,768 40,960 8.0 MiB",
        "items 14 of 140 (10 %) 52 78 104 130 0.0 MiB",
    ]


def test_of_several_trainings_the_latest_is_reported(tmp_path):
    session(tmp_path / "old" / "a.tfevents.1", 1e9, 5)
    session(tmp_path / "new" / "a.tfevents.1", 1e9 + 100, 7)
    found, others = latest(tmp_path)
    assert (found.folder.name, others) == ("new", 1)
    assert found.total("updates") == 70


def test_losses_come_from_the_folders_nearest_to_the_figures(tmp_path):
    run, other = tmp_path / "run", tmp_path / "other"
    session(run / "sync" / "a.tfevents.1", 1e9, 20)
    losses = [(1e9 + i, {"batch_loss": 1 / i, "accuracy": 0.5}) for i in range(1, 20)]
    losses.append((1e9 + 20, {"epoch_loss": 0.3}))
    event_logs.write(run / "train" / "a.tfevents.1", losses, 1e9, as_tensors=True)
    validation = [
        (1e9 + 10, {"epoch_loss": 0.4, "evaluation_loss_vs_iterations": 9.0}),
        (1e9 + 31, {"epoch_loss": float("nan")}),
    ]
    event_logs.write(run / "validation" / "a.tfevents.1", validation, 1e9)
    event_logs.write(other / "a.tfevents.1", [(1e9 + 3, {"loss": 7.0})], 1e9)
    found, _ = latest(tmp_path)
    assert sorted(found.losses) == ["train: batch_loss", "validation: loss"]
    np.testing.assert_allclose(found.losses["train: batch_loss"].values[:2], [1, 0.5])
    np.testing.assert_array_equal(found.losses["validation: loss"].seconds, [10])


@pytest.mark.parametrize(
    ("folder", "losses", "names"),
    [
        # Those of training and of validation may share a folder.
        (".", {"epoch_loss": 0.5, "epoch_val_loss": 0.6}, ["loss", "val_loss"]),
        # An evaluator writes no other loss, while the validation of `fit` does.
        ("validation", {"evaluation_loss_vs_iterations": 0.5}, ["evaluation_loss"]),
    ],
)
def test_only_losses_are_shown_by_the_names_that_fit_prints(
    tmp_path, folder, losses, names
):
    session(tmp_path / "a.tfevents.1", 1e9, 20)
    scalars = [(1e9 + 9, {**losses, "epoch_auc": 0.7})]
    event_logs.write(tmp_path / folder / "a.tfevents.2", scalars, 1e9)
    found, _ = latest(tmp_path)
    shown = {name.split(": ")[-1]: x.last for name, x in found.losses.items()}
    assert shown == pytest.approx(dict(zip(names, losses.values(), strict=True)))


def test_a_worker_of_an_earlier_session_alone_is_gone_and_not_the_slowest(tmp_path):
    session(tmp_path / "a.tfevents.1", 1e9, 20)
    contributed, waited = {"worker:0": 9, "worker:1": 5}, dict.fromkeys(NAMES, 1.0)
    figures = event_logs.sync_figures(7, contributed, waited)
    event_logs.write(tmp_path / "a.tfevents.2", [(1e9 + 60, figures)], 1e9 + 50)
    found, _ = latest(tmp_path)
    live = [worker.name for worker in found.workers.values() if worker.live]
    assert live == ["worker:0", "worker:1"]
    assert found.slowest.name == "worker:1"


def test_an_incomplete_last_record_is_left_out(tmp_path):
    path = session(tmp_path / "a.tfevents.1", 1e9, 20)
    path.write_bytes(path.read_bytes()[:-5])
    assert len(event_files.read(path).scalars["sync/updates"].times) == 19


@pytest.mark.parametrize("kind", ["garbage", "no protocol buffer", "folder", "gone"])
def test_what_is_no_event_file_is_one_line(tmp_path, kind):
    path = tmp_path / "a.tfevents.1"
    if kind == "garbage":
        path.write_bytes(b"garbage" * 99)
    elif kind == "no protocol buffer":
        with tf.io.TFRecordWriter(str(path)) as writer:
            writer.write(b"\xff" * 9)
    elif kind == "folder":
        path.mkdir()
    said = f"^{re.escape(str(path))} cannot be read: .*$"
    with pytest.raises(event_files.UnreadableFileError, match=said):
        event_files.read(path)


def test_what_else_is_called_placement_is_left_alone(tmp_path):
    figures = event_logs.sync_figures(10, {}, {}) | {"placement": 1.0}
    path = tmp_path / "events.out.tfevents.1"
    event_logs.write(path, [(1e9 + 1, figures), (1e9 + 2, figures)], 1e9, True)
    with tf.io.TFRecordWriter(str(tmp_path / "events.out.tfevents.2")) as writer:
        for rows in ([["ps:0", "a", "?"]], [["too", "few"]], "text"):
            event = tf.compat.v1.Event(wall_time=1e9)
            value = event.summary.value.add(tag="placement")
            value.tensor.CopyFrom(tf.make_tensor_proto(rows))
            writer.write(event.SerializeToString())
    found, _ = latest(tmp_path)
    assert found.placement == {}
