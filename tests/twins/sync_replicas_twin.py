"""The graph that tests of SyncReplicasOptimizer train, and its twin.

The twin is one process in float64 NumPy, which takes the mean.
"""

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import devices
import numpy as np
import tensorflow as tf
import v1_models

import tf_syncrep as tfs

tf1 = tf.compat.v1

LEARNING_RATE = 0.125
DENSE = np.linspace(-1.0, 1.0, 5)
# Its rows are long enough for their indices to be sent with other messages.
TABLE = np.linspace(0.5, 1.5, 128).reshape(8, 16)


@dataclasses.dataclass(frozen=True)
class Batch:
    """One batch of one worker: a target for `DENSE`, and rows of `TABLE`."""

    target: np.ndarray
    rows: np.ndarray


def batch(worker: int, number: int) -> Batch:
    """Returns batch `number` of a worker; rows may repeat within one."""
    random = np.random.default_rng([worker, number])
    return Batch(
        target=random.normal(size=DENSE.shape),
        rows=random.integers(0, len(TABLE), size=4),
    )


def batches(number: int) -> list[Batch]:
    return [batch(0, i) for i in range(number)]


def train(steps: list[list[Batch]]) -> tuple[np.ndarray, np.ndarray]:
    """`DENSE` and `TABLE` after steps, each with the mean gradient of its batches."""
    dense, table = DENSE.copy(), TABLE.copy()
    for batches in steps:
        dense_gradient = np.zeros_like(dense)
        table_gradient = np.zeros_like(table)
        for one in batches:
            dense_gradient += 2 * (dense - one.target)
            for row in one.rows:
                table_gradient[row] += 2 * table[row]
        dense -= LEARNING_RATE * dense_gradient / len(batches)
        table -= LEARNING_RATE * table_gradient / len(batches)
    return dense, table


def assert_weights(weights: Any, steps: list[list[Batch]]) -> None:
    """Compares a replica's weights with the result of the steps' batches."""
    for actual, expected in zip(weights, train(steps), strict=True):
        np.testing.assert_allclose(actual, expected, rtol=1e-12)


class Replica:
    """The model and a SyncReplicasOptimizer, by default in a graph of their own.

    `graph`: the graph; its ops may be added to until a session finalizes it.
    `global_step`: the variable, and so are `dense`, `table` and `unused`, whose
    gradient is None.
    """

    def __init__(
        self,
        quorum: int = 1,
        total: int | None = None,
        *,
        inner: Callable[[], Any] = lambda: tf1.train.GradientDescentOptimizer(
            LEARNING_RATE
        ),
        use_resource: bool = False,
        partitions: int | None = None,
        step_dtype: tf.DType = tf.int64,
        graph: tf.Graph | None = None,
        begins: Sequence[tf.Operation] = (),
        **arguments: Any,
    ):
        """Builds it; `arguments` are for the optimizer.

        What `begins` has comes before the gradient is computed.
        """
        arguments.setdefault("sparse_reduction_type", "CMEAN")
        self.graph = graph or tf.Graph()
        with (
            self.graph.as_default(),
            tf1.variable_scope("", use_resource=use_resource),
        ):
            with devices.scope():
                self.dense = tf1.get_variable("dense", initializer=DENSE)
                self.table = tf1.get_variable(
                    "table",
                    TABLE.shape,
                    tf.float64,
                    initializer=v1_models.initializer_of(TABLE),
                    partitioner=partitions and tf1.fixed_size_partitioner(partitions),
                )
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
                self.unused = tf1.get_variable("unused", initializer=[7.0])
            self.target = tf1.placeholder(tf.float64, self.dense.shape)
            self.rows = tf1.placeholder(tf.int64, [None])
            with tf.control_dependencies(begins):
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

    def feed(self, batch: Batch) -> dict[Any, Any]:
        return {self.target: batch.target, self.rows: batch.rows}

    def train(self, session: Any, batches: list[Batch]) -> list[int]:
        """Runs the train op on each batch; returns the local step after each."""
        return [int(session.run(self.train_op, self.feed(batch))) for batch in batches]

    @contextlib.contextmanager
    def monitored_session(self, num_tokens: int = -1, **arguments: Any) -> Iterator:
        """Opens a session with the chief's hook; `arguments` are for the hook."""
        with self.graph.as_default():
            hook = self.optimizer.make_session_run_hook(True, num_tokens, **arguments)
            # The gate, and its ops, are on the task of the global step.
            config = tf1.ConfigProto(allow_soft_placement=True)
            with tf1.train.SingularMonitoredSession([hook], config=config) as session:
                yield session
