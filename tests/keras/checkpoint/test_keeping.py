"""What an update keeps for a checkpoint that is being written, and when."""

import pytest
import tensorflow as tf

import tf_syncrep as tfs
from tf_syncrep.python.keras.sync_replicas.cluster import keeping
from tf_syncrep.python.keras.sync_replicas.cluster.cluster_ops import ClusterOps
from tf_syncrep.python.keras.sync_replicas.cluster.updater import Updater
from tf_syncrep.python.ops import sync_gate_ops

DEVICE = "/job:localhost/replica:0/task:0/device:CPU:0"
ROWS, WIDTH = 20_000, 16  # 1.28 MB: written by rows
OPTIMIZERS = tf.keras.optimizers


def gradient_of_a_row():
    return tf.IndexedSlices(tf.ones([1, WIDTH]), tf.constant([3]))


def ops_of(function, *args, kind):
    graph = tf.function(function, autograph=False).get_concrete_function(*args).graph
    return [op for op in graph.get_operations() if op.type == kind]


@pytest.mark.parametrize(
    ("make", "keeps_all"),
    [
        (lambda: tfs.keras.AdamAsync(0.1), False),
        (lambda: tfs.keras.AdamAsync(0.1, weight_decay=0.1), True),
        (lambda: tfs.keras.AdamAsync(0.1, use_ema=True), True),
        (lambda: OPTIMIZERS.SGD(0.1), False),
        (lambda: OPTIMIZERS.SGD(0.1, momentum=0.9), True),
        (lambda: OPTIMIZERS.Adagrad(0.1), False),
        (lambda: OPTIMIZERS.Adam(0.1), True),
    ],
)
def test_an_update_keeps_all_rows_that_it_will_write(make, keeps_all):
    table, optimizer = tf.Variable(tf.zeros([ROWS, WIDTH])), make()

    def keep():
        keeping.keep(optimizer, [gradient_of_a_row()], [table])

    (kept,) = ops_of(keep, kind="Syncrep>CheckpointKeep")
    assert kept.get_attr("all") == keeps_all


def test_rows_are_kept_before_anything_of_an_update_is_written():
    table, slot = (tf.Variable(tf.zeros([ROWS, WIDTH])) for _ in range(2))
    ops = ClusterOps(1, 1, 60.0, 600.0, False, True, DEVICE)
    ops.at_gate(sync_gate_ops.sync_gate_open, tf.constant(0, tf.int64))
    ops.contribute(ops.acquire(), [gradient_of_a_row()], [table])
    updater = Updater(
        ops,
        tf.distribute.get_strategy(),
        OPTIMIZERS.SGD(0.1),
        update=lambda gradients, variables: slot.scatter_sub(gradients[0]),
    )
    numbers = (tf.TensorSpec(shape, tf.int64) for shape in ([], [2]))
    (written,) = ops_of(updater._apply, *numbers, kind="ResourceScatterSub")
    before = [written]
    for op in before:
        inputs = [*op.control_inputs, *(x.op for x in op.inputs)]
        before += [x for x in inputs if x not in before]
    assert "Syncrep>CheckpointKeep" in {op.type for op in before}
