"""The engine of checkpoints in one process: crashes, damage, and what is kept."""

import contextlib
import itertools
import os
import pathlib
import re
import shutil
import threading
import uuid

import numpy as np
import pytest
import tensorflow as tf
from full_disks import full_disk
from waiting import until

from tf_syncrep.python.checkpoint import directory
from tf_syncrep.python.checkpoint import engine as engine_lib
from tf_syncrep.python.checkpoint.contents import Contents, OfPart, Piece
from tf_syncrep.python.checkpoint.directory import DamagedError, Directory
from tf_syncrep.python.checkpoint.engine import Engine, Options
from tf_syncrep.python.checkpoint.function_calls import FunctionCalls

ROWS, WIDTH = 1000, 4


class State:
    """A table in two parts with a slot each, a weight, and further variables."""

    def __init__(self, num_parts=2, value=0.0):
        self.parts = [
            tf.Variable(tf.fill([len(range(p, ROWS, num_parts)), WIDTH], value))
            for p in range(num_parts)
        ]
        self.slots = [tf.Variable(-part) for part in self.parts]
        self.powers = [tf.Variable([1.0]) for _ in self.parts]
        self.step = tf.Variable(0, dtype=tf.int64)
        contents = self.contents = Contents()
        for p, (part, slot) in enumerate(zip(self.parts, self.slots, strict=True)):
            names = ("tables/t", "slots/m/tables/t")
            piece = Piece(p, part.shape[0], num_parts, ROWS, names)
            contents.add_group([part, slot], [piece])
            of_part = OfPart(self.powers[p], ("slots/power/tables/t",), p, num_parts)
            contents.add_of_part(of_part)
        contents.add_whole("step", self.step)
        self.weight = tf.Variable([1.0, 2.0])
        contents.add_whole("weight", self.weight)
        contents.weights += ["weight", "tables/t"]

    def train(self):
        """Changes two rows of each part."""
        self.step.assign_add(1)
        for number, part in enumerate(self.parts):
            rows = [[int(self.step)], [int(self.step) + 100 + number]]
            part.scatter_nd_add(rows, tf.ones([2, WIDTH]) * float(self.step))
            self.slots[number].scatter_nd_sub(rows, tf.ones([2, WIDTH]))
            self.powers[number].assign(self.powers[number] * 0.5)

    def read(self):
        wholes = (*self.powers, self.step, self.weight)
        return [x.numpy() for x in (*self.parts, *self.slots, *wholes)]


def engine(path, keep=3, full_every=1, calls=None, speed=None):
    return Engine(
        Directory(str(path)),
        calls or FunctionCalls(),
        Options(keep, full_every, max_kept_bytes=1 << 20, max_bytes_per_sec=speed),
    )


def begin(of, state):
    return of.begin(state.contents, lambda: {"at": int(state.step)}, lambda f: f())


def save(of, state):
    return begin(of, state).wait()


def restored(path):
    state = State(value=7.0)
    manifest = engine(path).restore(state.contents)
    return manifest, state.read()


def assert_equal(found, expected):
    for x, y in zip(found, expected, strict=True):
        np.testing.assert_array_equal(x, y)


def test_folder_takes_one_checkpoint_at_a_time_whoever_writes_it(tmp_path):
    first, state = engine(tmp_path, speed=1e4), State()
    saving = begin(first, state)
    for other in (first, engine(tmp_path)):
        with pytest.raises(
            RuntimeError, match=r"one is being written\..*Received: dir"
        ):
            begin(other, state)
    assert saving.wait().number == 1
    state.train()
    save(engine(tmp_path), state)
    assert_equal(restored(tmp_path)[1], state.read())


def test_folder_that_hangs_holds_a_training_up_only_so_long(tmp_path, monkeypatch):
    of, state, answers = engine(tmp_path), State(), threading.Event()
    next_number = of.directory.next_number

    def hanging():
        answers.wait()
        return next_number()

    monkeypatch.setattr(of.directory, "next_number", hanging)
    monkeypatch.setattr(engine_lib, "_FOLDER_SECS", 0.1)
    with pytest.raises(TimeoutError, match=r"has not answered for 0\.1 s"):
        begin(of, state)
    with pytest.raises(RuntimeError, match="one is being written"):
        begin(of, state)  # what was asked before may still come
    answers.set()
    until(lambda: not engine_lib._being_written)
    assert os.listdir(tmp_path) == ["ckpt-1.writing"]
    monkeypatch.setattr(engine_lib, "_FOLDER_SECS", 30.0)
    save(of, state)
    assert not [name for name in os.listdir(tmp_path) if "writing" in name]
    assert_equal(restored(tmp_path)[1], state.read())


def test_what_a_program_before_had_written_is_ended(tmp_path, monkeypatch):
    """Tasks still write it when the program has ended and another one continues."""
    calls, comes_back = FunctionCalls(), threading.Event()

    def hang():
        assert comes_back.wait(60)
        raise OSError("back too late")

    calls.progress = hang
    saving = begin(engine(tmp_path, speed=100.0, calls=calls), State(value=1.0))
    state = State(value=2.0)
    monkeypatch.setattr(engine_lib, "_being_written", set())  # by another program
    save(engine(tmp_path), state)
    comes_back.set()
    with pytest.raises(OSError, match="too late"):
        saving.wait()
    assert_equal(restored(tmp_path)[1], state.read())


def test_task_that_writes_to_another_folder_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr(directory, "_TRIAL_SECS", 0.1)
    state, calls = State(), FunctionCalls()
    of = engine(tmp_path / "of all", calls=calls)
    of.check_writable(state.contents)
    assert os.listdir(tmp_path / "of all") == []
    calls.write = lambda contents, paths, text: None
    device = re.escape(state.contents.shares[0].device)
    with pytest.raises(ValueError, match=f"all tasks share.*what {device} has"):
        of.check_writable(state.contents)
    save(of, state)
    of.check_writable(state.contents)  # training goes on as it did


def test_full_disk_is_an_error_and_leaves_the_last_one(tmp_path):
    of, state = engine(tmp_path, full_every=2), State(value=1.0)
    save(of, state)
    expected = state.read()
    state.train()
    other = engine(tmp_path)  # its first checkpoint is full
    with full_disk(), pytest.raises(tf.errors.OpError, match="too large"):
        save(other, state)
    assert [x.number for x in Directory(str(tmp_path)).manifests()] == [1]
    assert not list(tmp_path.glob("*.writing"))
    assert_equal(restored(tmp_path)[1], expected)
    assert save(other, state).is_full
    assert_equal(restored(tmp_path)[1], state.read())


@pytest.fixture
def written(tmp_path):
    """Six checkpoints, every third of which is full, and the states that they hold."""
    state, of, states = State(), engine(tmp_path, keep=100, full_every=3), {}
    for _ in range(6):
        state.train()
        states[save(of, state).number] = state.read()
    return tmp_path, states


def test_chains_are_restored(written):
    path, states = written
    manifests = Directory(str(path)).manifests()
    assert [m.chain for m in manifests] == [
        (1,), (1, 2), (1, 2, 3), (4,), (4, 5), (4, 5, 6)
    ]  # fmt: skip
    for manifest in reversed(manifests):
        found, values = restored(path)
        assert found == manifest
        assert found.state["at"] == manifest.number
        assert_equal(values, states[manifest.number])
        Directory(str(path)).delete_files(manifest.number)
    assert engine(path).restore(State().contents) is None


def test_files_of_other_programs_stay_and_their_checkpoints_are_refused(tmp_path):
    manager = tf.train.CheckpointManager(
        tf.train.Checkpoint(step=tf.Variable(1)), str(tmp_path), max_to_keep=5
    )
    for _ in range(3):
        manager.save()
    weights = tmp_path / "ckpt-4.weights.h5"
    weights.write_text("weights")
    theirs = {path: path.read_bytes() for path in tmp_path.glob("ckpt-*")}
    refused = r"`directory` must be a folder without.*which has ckpt-1\.index without"
    state = State()
    for use in (Engine.restore, Engine.check_writable):
        with pytest.raises(ValueError, match=refused):
            use(engine(tmp_path), state.contents)
    of = engine(tmp_path, keep=1)
    for number in (4, 5):
        manifest = save(of, state)
        assert manifest.number == number
        assert weights.name not in manifest.files
    assert_equal(restored(tmp_path)[1], state.read())
    assert {path: path.read_bytes() for path in theirs} == theirs
    assert not list(tmp_path.glob("ckpt-4.[!w]*"))


@pytest.mark.parametrize("complete", [False, True])
def test_remains_of_a_crash_go(tmp_path, complete):
    """Of a crash before the manifest, or before the parts' folder was deleted."""
    state = State()
    save(engine(tmp_path), state)
    (tmp_path / "ckpt-1.writing").mkdir()
    number = uuid.uuid4().hex
    for name in ("checkpoint", "progress.json", "writable", "notes"):
        (tmp_path / f"{name}.{number}").touch()
    if not complete:
        (tmp_path / "ckpt-1.json").unlink()
    assert (engine(tmp_path).restore(state.contents) is not None) == complete
    save(engine(tmp_path), state)
    manifests = Directory(str(tmp_path)).manifests()
    assert [x.number for x in manifests] == ([1, 2] if complete else [1])
    assert not list(tmp_path.glob("*.writing"))
    assert [path.stem for path in tmp_path.glob(f"*.{number}")] == ["notes"]
    assert_equal(restored(tmp_path)[1], state.read())


def test_what_changed_is_all_that_is_written(tmp_path):
    state, of = State(), engine(tmp_path, full_every=10)
    save(of, state)
    state.train()
    saving = of.begin(state.contents, dict, lambda f: f())
    saving.wait()
    assert saving.rows_written == 4
    row_bytes = 2 * WIDTH * 4 + 8
    assert saving.bytes_written <= 4 * row_bytes + 8 + 2 * 4 + 2 * 4


def test_next_one_holds_the_changes_if_the_moment_of_one_never_came(tmp_path):
    state, of = State(), engine(tmp_path, full_every=10)
    save(of, state)
    state.train()

    def never(function):
        raise tf.errors.CancelledError(None, None, "training has ended")

    with pytest.raises(tf.errors.CancelledError):
        of.begin(state.contents, dict, never)
    assert not save(of, state).is_full
    assert_equal(restored(tmp_path)[1], state.read())


@pytest.mark.parametrize("name", ["weight", "tables/t"])
def test_one_that_is_not_finite_is_kept_beside_the_last_good_ones(
    tmp_path, caplog, name
):
    """It does not push them out, and the next one takes its place."""
    state, of, kept = State(), engine(tmp_path, keep=2), []
    place = state.weight[0] if name == "weight" else state.parts[1][123, 1]
    for value in (1.0, 2.0, 3.0, np.nan, np.inf, -np.inf, 7.0):
        place.assign(value)
        caplog.clear()
        save(of, state)
        assert (f"{name} is not finite" in caplog.text) == (not np.isfinite(value))
        kept.append([m.number for m in Directory(str(tmp_path)).manifests()])
    assert kept == [[1], [1, 2], [2, 3], [2, 3, 4], [2, 3, 5], [2, 3, 6], [3, 7]]


def test_one_that_is_not_finite_is_passed_over(tmp_path, caplog):
    state, of = State(), engine(tmp_path)
    save(of, state)
    good = state.read()
    state.weight.assign([np.nan, 2.0])
    state.train()
    save(of, state)
    assert_equal(restored(tmp_path)[1], good)
    assert "ckpt-2 is passed over: weight is not finite." in caplog.text
    assert tf.train.latest_checkpoint(str(tmp_path)) == str(tmp_path / "ckpt-1")


def test_training_begins_anew_where_no_checkpoint_is_finite(tmp_path):
    state = State()
    state.weight.assign([np.nan, 2.0])
    save(engine(tmp_path), state)
    manifest, found = restored(tmp_path)
    assert manifest is None
    assert_equal(found, State(value=7.0).read())


def test_newest_full_one_is_for_tensorflow_to_find(written):
    path, states = written
    latest = tf.train.latest_checkpoint(str(path))
    assert latest == str(path / "ckpt-4")
    table = tf.train.load_checkpoint(latest).get_tensor("tables/t")
    np.testing.assert_array_equal(table[:, 0], states[4][0])
    np.testing.assert_array_equal(table[:, 1], states[4][1])


def test_those_that_others_need_are_kept(tmp_path):
    state, of = State(), engine(tmp_path, keep=2, full_every=3)
    kept = []
    for _ in range(7):
        state.train()
        save(of, state)
        kept.append([m.number for m in Directory(str(tmp_path)).manifests()])
    assert kept == [[1], [1, 2], [1, 2, 3], [1, 2, 3, 4], [4, 5], [4, 5, 6],
                    [4, 5, 6, 7]]  # fmt: skip
    numbers = {name.split(".")[0] for name in os.listdir(tmp_path) if "-" in name}
    assert numbers == {f"ckpt-{n}" for n in kept[-1]}
    assert_equal(restored(tmp_path)[1], state.read())


def _flip(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 3] ^= 4
    path.write_bytes(content)


def _cut(path):
    path.write_bytes(path.read_bytes()[:-7])


@pytest.mark.parametrize("damage", [_flip, _cut, pathlib.Path.unlink])
@pytest.mark.parametrize("file", ["data-00000-of-00001", "index", "json"])
def test_damaged_one_is_named_and_the_one_before_restored(
    written, file, damage, caplog
):
    path, states = written
    damage(path / f"ckpt-6.{file}")
    manifest, values = restored(path)
    assert manifest.number == 5
    assert_equal(values, states[5])
    if (path / "ckpt-6.json").exists():  # otherwise there is none
        assert "ckpt-6" in caplog.text


def test_a_value_that_the_coordinator_reads_may_be_damaged(written):
    path, states = written
    data = path / "ckpt-6.data-00000-of-00001"
    content = bytearray(data.read_bytes())
    content[content.index(np.float32(0.5**6).tobytes())] ^= 4  # a power
    data.write_bytes(content)
    manifest, values = restored(path)
    assert manifest.number == 5
    assert_equal(values, states[5])


def test_all_that_need_a_damaged_one_are_passed_over(written):
    path, states = written
    _flip(path / "ckpt-4.data-00000-of-00001")
    manifest, values = restored(path)
    assert manifest.number == 3
    assert_equal(values, states[3])


def test_error_names_all_where_none_is_left(written):
    path, _ = written
    for number in (1, 4):
        _cut(path / f"ckpt-{number}.data-00000-of-00001")
    with pytest.raises(DamagedError, match=r"None of the checkpoints.*ckpt-6.*ckpt-1"):
        restored(path)


def test_other_contents_are_refused_before_anything_is_written(written):
    path, _ = written
    other = State(value=7.0)
    before = other.read()
    other.contents.shares[0].wholes["another"] = tf.Variable(0.0)
    with pytest.raises(ValueError, match="does not have another"):
        engine(path).restore(other.contents)
    assert_equal(other.read(), before)


def test_powers_of_other_parts_are_the_least_of_all(written):
    path, states = written
    other = State(num_parts=3)
    engine(path).restore(other.contents)
    for power in other.powers:
        assert power.numpy() == min(states[6][4:6])
    table = np.empty([ROWS, WIDTH], np.float32)
    table[::2], table[1::2] = states[6][:2]
    for p in range(3):
        np.testing.assert_array_equal(other.parts[p], table[p::3])


def test_disk_that_is_full_leaves_the_last_one_and_the_next_is_full(
    tmp_path, monkeypatch
):
    state, calls = State(), FunctionCalls()
    of = engine(tmp_path, full_every=5, calls=calls)
    state.train()
    save(of, state)
    expected = state.read()

    def fail(*args):
        raise tf.errors.ResourceExhaustedError(None, None, "No space left on device")

    state.train()
    with monkeypatch.context() as patched:
        patched.setattr(calls, "merge", fail)
        with pytest.raises(tf.errors.ResourceExhaustedError):
            save(of, state)
    assert_equal(restored(tmp_path)[1], expected)
    assert len(list(pathlib.Path(tmp_path).glob("ckpt-2*"))) == 0
    state.train()
    assert save(of, state).is_full
    assert_equal(restored(tmp_path)[1], state.read())


def test_checkpoint_is_complete_though_older_ones_cannot_be_deleted(
    tmp_path, monkeypatch, caplog
):
    state, of = State(), engine(tmp_path, keep=1)
    save(of, state)
    commit = of.directory.commit

    def commit_and_break_listing(manifest):
        manifest = commit(manifest)

        def fail(path):
            raise tf.errors.UnavailableError(None, None, "no answer")

        monkeypatch.setattr(tf.io.gfile, "listdir", fail)
        return manifest

    monkeypatch.setattr(of.directory, "commit", commit_and_break_listing)
    state.train()
    saving = begin(of, state)
    manifest = saving.wait()
    assert saving.error is None
    assert re.search("ckpt-2 is complete.*no answer", caplog.text)
    monkeypatch.undo()
    assert restored(tmp_path)[0] == manifest
    save(of, state)
    assert [x.number for x in Directory(str(tmp_path)).manifests()] == [3]


def test_folder_that_is_gone_is_made_again(tmp_path):
    folder = tmp_path / "checkpoints"
    state, of = State(), engine(folder, full_every=5)
    save(of, state)
    for path in folder.iterdir():
        path.unlink()
    folder.rmdir()
    state.train()
    assert save(of, state).is_full
    assert_equal(restored(folder)[1], state.read())


def test_folder_that_goes_while_one_is_written_is_an_error_and_the_next_is_full(
    tmp_path,
):
    folder = tmp_path / "checkpoints"
    state, of = State(), engine(folder, full_every=5, speed=100_000.0)
    saving = begin(of, state)
    (parts,) = folder.glob("*.writing")
    until(lambda: list(parts.glob("part-*")) or saving.is_over)
    assert not saving.is_over
    shutil.rmtree(parts)
    with pytest.raises(tf.errors.NotFoundError, match=parts.name):
        saving.wait()
    shutil.rmtree(folder)
    state.train()
    assert save(of, state).is_full
    assert_equal(restored(folder)[1], state.read())


def test_other_file_systems(tmp_path):
    path = f"ram://{tmp_path}"
    state, of = State(), engine(path, keep=1, full_every=2)
    for _ in range(3):
        state.train()
        save(of, state)
        assert_equal(restored(path)[1], state.read())


class Crash(BaseException):
    """The process has died: from here on nothing is done."""


class CrashingFiles:
    """Dies before or after one of the operations on files."""

    NAMES = ("GFile", "rename", "remove", "rmtree", "makedirs", "listdir", "stat")

    def __init__(self, monkeypatch, calls, at):
        self._left = at
        self.is_dead = False
        for name in self.NAMES:
            monkeypatch.setattr(
                tf.io.gfile, name, self._wrap(getattr(tf.io.gfile, name))
            )
        for name in ("begin", "merge", "cancel"):
            monkeypatch.setattr(calls, name, self._wrap(getattr(calls, name)))
        # How often this is called depends on the time.
        monkeypatch.setattr(calls, "progress", self._wrap(self._end_of(calls.progress)))

    @staticmethod
    def _end_of(progress):
        def call():
            while True:
                answers = progress()
                if all(done for done, *_ in answers):
                    return answers

        return call

    def _wrap(self, function):
        def call(*args, **kwargs):
            self._pass()
            result = function(*args, **kwargs)
            self._pass()
            return result

        return call

    def _pass(self):
        self._left -= 1
        self.is_dead |= self._left < 0
        if self.is_dead:
            raise Crash


@pytest.mark.ci
def test_crash_at_any_operation_leaves_a_checkpoint(tmp_path, monkeypatch):
    """The state is the one before or, from some moment on, the one that was written."""
    fates = []
    for at in itertools.count():
        folder = tmp_path / str(at)
        state, calls = State(), FunctionCalls()
        of = engine(folder, keep=1, full_every=2, calls=calls)
        for _ in range(2):
            state.train()
            save(of, state)
        states = [state.read()]
        state.train()
        states.append(state.read())
        with monkeypatch.context() as patched:
            files = CrashingFiles(patched, calls, at)
            with contextlib.suppress(Crash):
                save(of, state)
            of.wait()
        manifest, values = restored(folder)
        fates.append(manifest.state["at"] - 2)
        assert_equal(values, states[fates[-1]])
        # The next one is written as usual, and leaves nothing else behind.
        again = engine(folder, keep=1)
        final = State()
        again.restore(final.contents)
        save(again, final)
        numbers = {p.name.split(".")[0] for p in folder.glob("ckpt-*")}
        assert len(numbers) == 1
        if not files.is_dead:
            break
    assert fates == sorted(fates)
    assert {0, 1} == set(fates)
    assert len(fates) > 20
