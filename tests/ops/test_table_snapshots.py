"""Checkpoints of tables that grow show one moment while rows are added."""

import threading

import dynamic_table as twin
import numpy as np
import pytest
import tensorflow as tf

from tf_syncrep.python.ops import checkpoint_ops, table_ops

ROWS = 60_000
WIDTH = 8
BATCH = 100
TABLE = twin.Table("items", ROWS, initializer="uniform", numbers=(1.0, 2.0))
DEADLINE = 60.0


class Part:
    """A part with a slot that tells what the vector was when it was written."""

    def __init__(self):
        self.index = table_ops.table_index(
            [
                table_ops.IndexedTable(
                    "items", 0, ROWS, initializer="uniform", numbers=(1.0, 2.0)
                )
            ],
            counted=True,
        )
        self.variables = [
            tf.Variable(table_ops.table_zeros(shape, dtype))
            for shape, dtype in (
                ([ROWS, WIDTH], tf.float32),
                ([ROWS], tf.int64),
                ([ROWS, 2], tf.int32),
            )
        ]

    @property
    def handles(self):
        return [variable.handle for variable in self.variables]

    def use(self, keys):
        return table_ops.table_find(
            self.index,
            *self.handles,
            tf.concat([[len(keys)], keys], 0),
            insert=True,
            shape=[ROWS, WIDTH],
            dtype=tf.float32,
        )

    def maintain(self, step, unused_for):
        return table_ops.table_maintain(
            self.index,
            *self.handles,
            step,
            slots=[],
            slot_initials=[],
            evict=[None],
            unused_for=[unused_for],
            dtype=tf.float32,
        )

    def begin(self, writer, prefix):
        checkpoint_ops.checkpoint_begin(
            writer,
            str(prefix),
            "",
            "",
            [self.handles],
            [(0, ROWS, 0, 1, ROWS)],
            ["vectors", "keys", "uses"],
            [],
            [],
            max_kept_bytes=1 << 22,
            patience_secs=DEADLINE,
            # This makes the writing take a while.
            max_bytes_per_sec=8e6,
        )


def wait(writer):
    done = False
    while not done:
        done, code, message, *_ = checkpoint_ops.checkpoint_progress(writer)
    assert code == 0, message.numpy()


@pytest.mark.parametrize("with_maintenance", [False, True])
def test_keys_uses_and_vectors_are_of_one_moment(tmp_path, with_maintenance):
    part = Part()
    writer = checkpoint_ops.checkpoint_writer(shared_name="", counted=True)
    stop = threading.Event()
    begun: list[list[int]] = [[] for _ in range(4)]
    ended: list[list[int]] = [[] for _ in range(4)]
    errors = []

    def insert(thread):
        try:
            for batch in range(ROWS // BATCH // 4):
                first = (thread << 40) + batch * BATCH
                begun[thread].append(first)
                part.use(tf.range(first, first + BATCH, dtype=tf.int64))
                ended[thread].append(first)
                if stop.is_set():
                    return
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=insert, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    while min(map(len, ended)) < 20:
        stop.wait(0.001)
    before = [key for keys in ended for key in keys]
    part.begin(writer, tmp_path / "of_a_moment")
    after = {key for keys in begun for key in keys}
    if with_maintenance:
        # All keys are evicted, and their rows are given to others.
        part.maintain(100, None)
        part.maintain(200, 50)
        part.maintain(300, None)
    wait(writer)
    stop.set()
    for thread in threads:
        thread.join()
    assert errors == []

    reader = tf.train.load_checkpoint(str(tmp_path / "of_a_moment"))
    vectors, keys, uses = map(reader.get_tensor, ("vectors", "keys", "uses"))
    in_use = uses[:, 1] > 0
    found = set(keys[in_use].tolist())
    assert len(found) == in_use.sum()
    # Calls that had ended before are in it, and nothing of calls that began later.
    assert found >= {key + i for key in before for i in range(BATCH)}
    assert found <= {key + i for key in after for i in range(BATCH)}
    np.testing.assert_array_equal(uses[in_use], [[0, 1]] * len(found))
    assert not keys[~in_use].any()
    assert not uses[~in_use].any()
    for row in np.flatnonzero(in_use)[::101]:
        expected = TABLE.initial_vector(int(keys[row]), WIDTH)
        np.testing.assert_array_equal(vectors[row], np.float32(expected))
    assert np.all(vectors[in_use] >= 1)

    # It is restored as it was, and training continues.
    other = Part()
    checkpoint_ops.checkpoint_restore(
        [str(tmp_path / "of_a_moment")],
        [other.handles],
        [(0, ROWS, 0, 1, ROWS)],
        ["vectors", "keys", "uses"],
        [],
        [],
    )
    exported = table_ops.table_export(other.index, *other.handles[1:], 0)
    assert exported.keys.numpy().tolist() == sorted(found)
    sample = tf.constant(sorted(found)[::500], tf.int64)
    rows, values = other.use(sample)
    np.testing.assert_array_equal(keys[rows], sample)
    np.testing.assert_array_equal(values, vectors[rows])
