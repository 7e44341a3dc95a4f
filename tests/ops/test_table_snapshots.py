"""Checkpoints of tables that grow show one moment while rows are added."""

import collections
import threading

import adam_async_reference as reference
import dynamic_table as twin
import numpy as np
import pytest
import tensorflow as tf
from table_parts import TablePart
from waiting import in_thread, until

import tf_syncrep as tfs
from tf_syncrep.python.ops import checkpoint_ops, table_ops

ROWS = 60_000
WIDTH = 8
BATCH = 100
TABLE = twin.Table("items", ROWS, initializer="uniform", numbers=(1.0, 2.0))
NAMES = ["vectors", "keys", "uses", "m", "v"]


class Part(TablePart):
    """A part of one table, whose initial vectors tell the keys."""

    def __init__(self, num_slots=0, **index):
        table = table_ops.IndexedTable(
            "items", 0, ROWS, initializer="uniform", numbers=(1.0, 2.0)
        )
        super().__init__([table], WIDTH, num_slots=num_slots, **index)

    @property
    def arrays(self):
        return [x.handle for x in (self.vectors, self.keys, self.uses, *self.slots)]

    def use(self, keys):
        return self.find(tf.concat([[keys.shape[0]], keys], 0), True)

    def load(self, keys, last_use):
        uses = [last_use] * len(keys), [1] * len(keys)
        return table_ops.table_import(self, 0, keys, *uses)

    def maintain(self, step, unused_for, evict=None):
        return super().maintain(step, [evict], [unused_for])

    def begin(self, writer, prefix, max_kept_bytes=1 << 22, speed=8e6):
        """Begins to write slowly, so that it takes a while."""
        return checkpoint_ops.checkpoint_begin(
            *(writer, tf.convert_to_tensor(prefix), "", "", [self.arrays]),
            *([(0, ROWS, 0, 1, ROWS)], NAMES[: len(self.arrays)], [], []),
            max_kept_bytes=max_kept_bytes,
            patience_secs=60.0,
            max_bytes_per_sec=speed,
        )


class TrainedPart(Part):
    """A part that AdamAsync trains with gradients of 1."""

    RATES = (0.05, 0.9, 0.99, 1e-7)

    def __init__(self):
        super().__init__(num_slots=2)
        # Powers that stay 0: a step does not depend on those that others have made.
        self.powers = [tf.Variable(0.0), tf.Variable(0.0)]

    def train(self, keys, rows):
        request = tf.concat([[keys.shape[0]], keys], 0)
        ones = tf.ones([keys.shape[0], WIDTH])
        gradient, kept = self.gradient(request, rows, ones)
        checkpoint_ops.checkpoint_keep(self.vectors.handle, kept)
        tfs.ops.resource_sparse_apply_adam_async(
            *(x.handle for x in (self.vectors, *self.slots, *self.powers)),
            *self.RATES,
            gradient,
            kept,
        )

    @classmethod
    def after(cls, most):
        """How a vector has moved, m, and v, after 0, 1 and up to `most` steps."""
        zero = np.zeros([1, 1])
        state = reference.State(zero, zero, zero, np.zeros(1), np.zeros(1))
        states = [state]
        for _ in range(most):
            state = reference.adam_async_sparse(
                *state, *cls.RATES, grad=np.ones([1, 1]), indices=[0]
            )
            states.append(state)
        return [np.ravel([getattr(x, name) for x in states]) for name in ("var", *"mv")]


def wait(writer):
    done = False
    while not done:
        done, code, message, *_ = checkpoint_ops.checkpoint_progress(writer)
    assert code == 0, message.numpy()


@pytest.mark.parametrize("with_maintenance", [False, True])
def test_keys_uses_vectors_and_slots_are_of_one_moment(tmp_path, with_maintenance):
    part = TrainedPart()
    writer = checkpoint_ops.checkpoint_writer(shared_name="", counted=True)
    stop = threading.Event()
    # What was done to a batch; a key belongs to the batch of its number.
    begun: list[list[tuple[str, int]]] = [[] for _ in range(4)]
    ended: list[list[tuple[str, int]]] = [[] for _ in range(4)]

    def work(thread):
        def do(what, batch, function, *args):
            begun[thread].append((what, batch))
            result = function(*args)
            ended[thread].append((what, batch))
            return result

        earlier = []
        for number in range(ROWS // BATCH // 4):
            batch = (thread << 40) + number
            first = batch * BATCH
            keys = tf.range(first, first + BATCH, dtype=tf.int64)
            rows, _ = do("insert", batch, part.use, keys)
            earlier = [*earlier[-2:], (batch, keys, rows)]
            for step in earlier[: 1 + number % 3]:
                do("train", step[0], part.train, *step[1:])
            if stop.is_set():
                return

    threads = [in_thread(work, i) for i in range(4)]
    until(lambda: min(map(len, ended)) >= 60, poll_secs=0.001)
    before = collections.Counter(x for done in ended for x in done)
    part.begin(writer, str(tmp_path / "of_a_moment"))
    after = collections.Counter(x for done in begun for x in done)
    if with_maintenance:
        # All keys are evicted, and their rows are given to others.
        part.maintain(100, None)
        part.maintain(200, 50)
        part.maintain(300, None)
    wait(writer)
    stop.set()
    for thread in threads:
        thread.result(60)

    reader = tf.train.load_checkpoint(str(tmp_path / "of_a_moment"))
    vectors, keys, uses, m, v = map(reader.get_tensor, NAMES)
    in_use = uses[:, 1] > 0
    found = set(keys[in_use].tolist())
    assert len(found) == in_use.sum()
    # Calls that had ended before are in it, and nothing of calls that began later.
    batches = (keys[in_use] // BATCH).tolist()
    assert {batch for what, batch in before if what == "insert"} <= set(batches)
    assert {("insert", batch) for batch in batches} <= after.keys()
    assert set(collections.Counter(batches).values()) == {BATCH}
    assert np.all(uses[in_use, 1] == 1)
    # A call that was under way may have come with its use after the first maintenance.
    was_there = [("insert", batch) in before for batch in batches]
    assert not uses[in_use, 0][was_there].any()
    assert not keys[~in_use].any()
    assert not uses[~in_use].any()

    # A vector and its slots have come equally far.
    initial = Part().use(tf.constant(keys[in_use]))[1].numpy()
    for key, vector in list(zip(keys[in_use].tolist(), initial, strict=True))[::101]:
        expected = TABLE.initial_vector(key, WIDTH)
        np.testing.assert_array_equal(vector, np.float32(expected))
    moved, *of_slots = TrainedPart.after(max(after.values()) + 1)
    steps = np.abs(m[in_use, :1] - of_slots[0]).argmin(1)
    assert np.all(steps >= [before["train", batch] for batch in batches])
    assert np.all(steps <= [after["train", batch] for batch in batches])
    assert len(set(steps.tolist())) > 2
    values = (vectors[in_use] - initial, m[in_use], v[in_use])
    for value, by_step in zip(values, (moved, *of_slots), strict=True):
        expected = np.repeat(by_step[steps, np.newaxis], WIDTH, axis=1)
        np.testing.assert_allclose(value, expected, rtol=1e-5, atol=1e-5)

    # It is restored as it was, and training continues.
    other = TrainedPart()
    checkpoint_ops.checkpoint_restore(
        *([str(tmp_path / "of_a_moment")], [other.arrays]),
        *([(0, ROWS, 0, 1, ROWS)], NAMES, [], []),
    )
    exported = other.export()
    assert exported.keys.numpy().tolist() == sorted(found)
    sample = tf.constant(sorted(found)[::500], tf.int64)
    rows, values = other.use(sample)
    np.testing.assert_array_equal(keys[rows], sample)
    np.testing.assert_array_equal(values, vectors[rows])
    other.train(sample, rows)
    steps_of_row = dict(zip(np.flatnonzero(in_use).tolist(), steps, strict=True))
    expected = [of_slots[0][steps_of_row[row] + 1] for row in rows.numpy().tolist()]
    first_numbers = tf.gather(other.slots[0], rows)[:, 0]
    np.testing.assert_allclose(first_numbers, expected, rtol=1e-5)


# Maintenance that waits for such a checkpoint has changed some rows, and not all.
SLOW = {"max_kept_bytes": 1 << 19, "speed": 1e4}


def assert_whole(vectors, keys, uses, exported, evicted):
    """Each row has its key, or rests, or is free; how many rest."""
    in_use, rests = uses[:, 1] > 0, uses[:, 0] == -1
    assert in_use.sum() == len(exported) == ROWS - evicted
    assert sorted(keys[in_use].tolist()) == exported.tolist()
    assert not keys[~in_use].any()
    assert not uses[rests][:, 1].any()
    assert not uses[~in_use & ~rests].any()
    for row in np.flatnonzero(in_use)[::997]:
        expected = TABLE.initial_vector(int(keys[row]), WIDTH)
        np.testing.assert_array_equal(vectors[row], np.float32(expected))
    return rests.sum()


def test_maintenance_that_is_cancelled_has_done_some_rows_and_later_does_the_rest(
    tmp_path,
):
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        part = Part(shared_name="cancelled")
        writer = checkpoint_ops.checkpoint_writer(shared_name="cancelled")
        prefix = tf.compat.v1.placeholder(tf.string, [])
        first = tf.compat.v1.placeholder(tf.int64, [])
        step = tf.compat.v1.placeholder(tf.int64, [])
        use = part.use(first + tf.range(ROWS, dtype=tf.int64))
        maintain = part.maintain(step, 10)
        begin = part.begin(writer, prefix, **SLOW)
        cancel = checkpoint_ops.checkpoint_cancel(writer)
        all_there_is = [part.vectors, part.keys, part.uses, part.export().keys]

        def resting():
            *values, stats = session.run([*all_there_is, part.stats()])
            evicted = table_ops.TableStats(*stats).evicted
            return evicted, assert_whole(*values, evicted)

        def cancelled(now, name):
            session.run(begin, {prefix: str(tmp_path / name)})
            timeout = tf.compat.v1.RunOptions(timeout_in_ms=1000)
            with pytest.raises(
                (tf.errors.DeadlineExceededError, tf.errors.CancelledError)
            ):
                session.run(maintain, {step: now}, timeout)
            session.run(cancel)

        session.run(tf.compat.v1.global_variables_initializer())
        session.run(use, {first: 1})
        session.run(maintain, {step: 1})
        cancelled(20, "in_eviction")
        evicted, rest = resting()
        assert 0 < evicted == rest < ROWS
        # These are free now, and the others rest.
        assert session.run(maintain, {step: 40}).tolist() == [ROWS - evicted]
        assert resting() == (ROWS, ROWS - evicted)
        session.run(maintain, {step: 41})
        session.run(use, {first: -ROWS})
        session.run(maintain, {step: 42})
        assert session.run(maintain, {step: 60}).tolist() == [ROWS]
        cancelled(61, "in_freeing")
        assert 0 < assert_whole(*session.run(all_there_is), ROWS) < ROWS
        session.run(maintain, {step: 62})
        rows, _ = session.run(use, {first: 5})
        assert sorted(rows.tolist()) == list(range(ROWS))


def test_import_that_waits_gives_a_new_row_to_a_key_that_loses_its_own(tmp_path):
    part = Part()
    writer = checkpoint_ops.checkpoint_writer(shared_name="", counted=True)
    part.load([1, 2], last_use=0)
    part.maintain(5, 100)
    part.begin(writer, str(tmp_path / "slow"), max_kept_bytes=1 << 16, speed=1.0)
    # The eviction does not wait.
    checkpoint_ops.checkpoint_keep(part.vectors.handle, [0, 1])

    def kept():
        return checkpoint_ops.checkpoint_progress(writer).kept_bytes

    # So many new rows are kept that it has to wait.
    before, keys = kept(), [1, *range(100, 10_000)]
    waiting = in_thread(part.load, keys, last_use=8)
    until(lambda: kept() > before)
    assert part.maintain(8, 1).numpy() == 2
    assert not waiting.done()
    checkpoint_ops.checkpoint_cancel(writer)
    found = waiting.result(60)
    exported = part.export()
    assert exported.keys.numpy().tolist() == keys
    assert exported.rows.numpy().tolist() == [int(row) for row in found]


def test_lookup_that_waits_reads_no_vector_of_the_next_key_of_a_row(tmp_path):
    part = Part()
    writer = checkpoint_ops.checkpoint_writer(shared_name="", counted=True)
    in_use, seldom = ROWS - ROWS // 21, ROWS // 20
    part.use(tf.range(1, in_use + 1, dtype=tf.int64))
    for _ in range(2):
        part.use(tf.range(seldom, in_use + 1, dtype=tf.int64))
    part.begin(writer, str(tmp_path / "slow"), max_kept_bytes=1, speed=1e5)
    # Its new keys get the rows that are written last, and until then it waits.
    keys = tf.concat([[1], tf.range(in_use + 1, ROWS, dtype=tf.int64)], 0)
    waiting = in_thread(part.use, keys)
    until(lambda: part.uses[0, 1] == 2)
    until(lambda: checkpoint_ops.checkpoint_progress(writer)[4] > seldom + 1000)
    assert part.maintain(1, None, "least_frequent").numpy() > seldom
    part.maintain(2, None)
    rows, _ = part.use(-tf.range(1, seldom, dtype=tf.int64))
    assert 0 in rows.numpy()
    assert not waiting.done()
    checkpoint_ops.checkpoint_cancel(writer)
    rows, values = waiting.result(60)
    assert rows.numpy().tolist() == [-1, *range(in_use, ROWS - 1)]
    np.testing.assert_array_equal(values[0], np.zeros(WIDTH))


def test_maintenance_ends_where_keys_are_assigned_meanwhile(tmp_path):
    part = Part()
    writer = checkpoint_ops.checkpoint_writer(shared_name="", counted=True)
    part.use(tf.range(1, ROWS + 1, dtype=tf.int64))
    part.maintain(1, None)
    part.begin(writer, str(tmp_path / "slow"), **SLOW)
    maintenance = in_thread(part.maintain, 20, 10)
    until(lambda: table_ops.TableStats(*part.stats().numpy()).evicted)
    keys, uses = np.zeros(ROWS, np.int64), np.zeros([ROWS, 2], np.int32)
    keys[:2], uses[:2] = [70, 71], [[15, 3], [2, 1]]
    part.keys.assign(keys)
    part.uses.assign(uses)
    checkpoint_ops.checkpoint_cancel(writer)
    with pytest.raises(tf.errors.AbortedError, match="keys or uses were assigned"):
        maintenance.result(60)
    # Nothing was done to what was assigned; the next time it is maintained.
    np.testing.assert_array_equal(part.keys, keys)
    np.testing.assert_array_equal(part.uses, uses)
    assert part.maintain(26, 10).numpy() == [1]
    exported = part.export()
    assert exported.keys.numpy().tolist() == [70]


def test_maintenance_beside_another_is_refused(tmp_path):
    part = Part()
    writer = checkpoint_ops.checkpoint_writer(shared_name="", counted=True)
    part.use(tf.range(1, ROWS + 1, dtype=tf.int64))
    part.maintain(1, None)
    part.begin(writer, str(tmp_path / "slow"), **SLOW)
    # It waits for room to keep rows in.
    maintenance = in_thread(part.maintain, 20, 10)
    until(lambda: table_ops.TableStats(*part.stats().numpy()).evicted)
    with pytest.raises(tf.errors.FailedPreconditionError, match="maintained already"):
        part.maintain(21, 10)
    checkpoint_ops.checkpoint_cancel(writer)
    maintenance.result(60)
    assert part.maintain(22, 10).numpy() == [0]
    assert table_ops.TableStats(*part.stats().numpy()).evicted == ROWS
