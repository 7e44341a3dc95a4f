"""One replica's graph for tests of SyncReplicasOptimizer, and sessions to run it."""

import contextlib
import time
from collections.abc import Callable, Iterator
from typing import Any

import devices
import sync_replicas_twin as twin
import tensorflow as tf

import tf_syncrep as tfs

tf1 = tf.compat.v1

DEADLINE_SECS = 30.0


def until(condition: Callable[[], Any]) -> None:
    """Waits until a condition holds that another thread brings about."""
    deadline = time.monotonic() + DEADLINE_SECS
    while not condition():
        assert time.monotonic() < deadline, "the condition did not come about"
        time.sleep(0.005)


def gradient_descent() -> Any:
    """Returns the optimizer whose training `sync_replicas_twin` knows."""
    return tf1.train.GradientDescentOptimizer(twin.LEARNING_RATE)


class Replica:
    """The twin's model and an optimizer around another, in a graph of their own.

    Attributes:
        graph: the graph; its ops may be added to until a session finalizes it.
        global_step: the variable, and so are `dense`, `table` and `unused`, whose
            gradient is None.
        optimizer: the `SyncReplicasOptimizer`.
        train_op: its train op.
    """

    def __init__(
        self,
        quorum: int = 1,
        total: int | None = None,
        *,
        inner: Callable[[], Any] = gradient_descent,
        use_resource: bool = False,
        partitions: int | None = None,
        step_dtype: tf.DType = tf.int64,
        **arguments: Any,
    ):
        """Builds it; `arguments` are for the optimizer."""
        arguments.setdefault("sparse_reduction_type", "CMEAN")
        self.graph = tf.Graph()
        scope = tf1.variable_scope("", use_resource=use_resource)
        with self.graph.as_default(), scope:
            self.global_step = tf1.get_variable(
                "global_step",
                initializer=tf.constant(0, step_dtype),
                trainable=False,
                collections=[
                    tf1.GraphKeys.GLOBAL_VARIABLES,
                    tf1.GraphKeys.GLOBAL_STEP,
                ],
            )
            with devices.scope():
                self.dense = tf1.get_variable("dense", initializer=twin.DENSE)
                self.table = tf1.get_variable(
                    "table",
                    twin.TABLE.shape,
                    tf.float64,
                    initializer=_rows_of_table,
                    partitioner=partitions and tf1.fixed_size_partitioner(partitions),
                )
                self.unused = tf1.get_variable("unused", initializer=[7.0])
            self.target = tf1.placeholder(tf.float64, self.dense.shape)
            self.rows = tf1.placeholder(tf.int64, [None])
            found = tf1.nn.embedding_lookup(
                self.table, self.rows, partition_strategy="div"
            )
            self.loss = tf.reduce_sum((self.dense - self.target) ** 2)
            self.loss += tf.reduce_sum(found**2)
            self.optimizer = tfs.train.SyncReplicasOptimizer(
                inner(), quorum, total, **arguments
            )
            self.train_op = self.optimizer.minimize(self.loss, self.global_step)
            self.init_op = tf1.global_variables_initializer()
            self.weights = [
                tf.convert_to_tensor(self.dense),
                tf.convert_to_tensor(self.table),
            ]

    def feed(self, batch: twin.Batch) -> dict[Any, Any]:
        """Returns what a train op must be fed with for this batch."""
        return {self.target: batch.target, self.rows: batch.rows}

    def train(self, session: Any, batches: list[twin.Batch]) -> list[int]:
        """Runs the train op on each batch; returns the local step after each."""
        return [int(session.run(self.train_op, self.feed(batch))) for batch in batches]

    @contextlib.contextmanager
    def monitored_session(self, num_tokens: int = -1, **arguments: Any) -> Iterator:
        """Opens a session with the chief's hook, which `arguments` are for."""
        with self.graph.as_default():
            hook = self.optimizer.make_session_run_hook(True, num_tokens, **arguments)
            # The gate, and what belongs to it, is where the global step is.
            config = tf1.ConfigProto(allow_soft_placement=True)
            with tf1.train.SingularMonitoredSession([hook], config=config) as session:
                yield session


def batches(number: int, first: int = 0) -> list[twin.Batch]:
    """Returns so many batches of worker 0."""
    return [twin.batch(0, first + i) for i in range(number)]


def _rows_of_table(shape, dtype=None, partition_info=None):
    """An initializer: the twin's table, or the part that a part of a variable holds."""
    first = 0 if partition_info is None else partition_info.var_offset[0]
    return tf.constant(twin.TABLE[first : first + shape[0]], dtype)
