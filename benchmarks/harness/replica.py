"""A worker of a training on parameter servers; the benchmark tells it what to run.

    python replica.py HOST PORT

It is a task of TF_CONFIG that builds a graph for each contender, side by side under
names of their own, and then does what it is told through a connection: see `Replica`.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping
from typing import Any

import barrier
import numpy as np
import serving
import tensorflow.compat.v1 as tf

import tf_syncrep as tfs

LAYERS = 6
WIDTH = 64
EXAMPLES = 32
LEARNING_RATE = 0.001
# A worker draws this many batches of rows, and uses them in turn.
BATCHES = 50


class Graph:
    """One contender's graph.

    `rows`: the placeholder for the rows that a batch looks up, or None. `weights`:
    tensors of what is trained; of a table those of the rows in the rehearsal. `hook`:
    of the synchronous optimizer, or None.
    """

    def __init__(
        self,
        name: str,
        contender: Mapping[str, Any],
        model: Mapping[str, Any],
        is_chief: bool,
    ):
        """Builds it in the default graph.

        `name`: scope of its variables, since all contenders use the same servers.
        `model`: "rows" of the table, 0 for dense layers, and "ids" in a batch; "width"
        of dense layers, 64 by default.
        """
        with tf.variable_scope(name):
            self.global_step = tf.get_variable(
                "global_step",
                initializer=tf.constant(0, tf.int64),
                trainable=False,
                collections=[
                    tf.GraphKeys.GLOBAL_VARIABLES,
                    tf.GraphKeys.GLOBAL_STEP,
                ],
            )
            self.rows = None
            if model["rows"]:
                loss = self._embedding(model["rows"], model["ids"])
            else:
                loss = self._layers(model.get("width", WIDTH))
        optimizer = {
            "AdamAsync": tfs.train.AdamAsyncOptimizer,
            "Adam": tf.train.AdamOptimizer,
        }[contender["inner"]](LEARNING_RATE)
        self.hook = None
        if contender["sync"]:
            quorum, total = contender["quorum"], contender["total"]
            if contender["sync"] == "ours":
                optimizer = tfs.train.SyncReplicasOptimizer(
                    optimizer,
                    quorum,
                    total,
                    name=name,
                    strict=contender.get("strict", False),
                )
            else:
                optimizer = tf.train.SyncReplicasOptimizer(
                    optimizer, quorum, total, name=name
                )
            # With its default tokens TensorFlow's class hangs at the end.
            self.hook = optimizer.make_session_run_hook(is_chief, num_tokens=0)
        self.train_op = optimizer.minimize(loss, global_step=self.global_step)

    def _layers(self, width: int) -> tf.Tensor:
        """A tower of dense layers on a constant batch."""
        random = np.random.default_rng(0)
        signal = tf.constant(random.normal(size=[EXAMPLES, width]), tf.float32)
        target = tf.constant(random.normal(size=[EXAMPLES, width]), tf.float32)
        layers = [
            tf.get_variable(
                f"layer_{i}",
                initializer=random.normal(
                    scale=width**-0.5, size=[width, width]
                ).astype(np.float32),
            )
            for i in range(LAYERS)
        ]
        self.weights = [tf.identity(layer) for layer in layers]
        for layer in layers:
            signal = tf.tanh(tf.matmul(signal, layer))
        return tf.reduce_mean(tf.square(signal - target))

    def _embedding(self, rows: int, ids: int) -> tf.Tensor:
        """Rows of a table, pulled towards zero."""
        table = tf.get_variable(
            "table", [rows, WIDTH], initializer=tf.ones_initializer()
        )
        self.weights = [tf.nn.embedding_lookup(table, np.arange(ids))]
        self.rows = tf.placeholder(tf.int64, [None])
        return tf.reduce_sum(tf.square(tf.nn.embedding_lookup(table, self.rows)))


class Replica:
    """The methods that the benchmark calls in a worker."""

    def __init__(self, contenders: Mapping[str, Any], model: Mapping[str, Any]):
        """Starts the server and builds the graphs.

        `contenders`: arguments of `Graph`, by their names.
        """
        resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
        self._index: int = resolver.task_id
        cluster = resolver.cluster_spec()
        self._server = tfs.distribute.Server(cluster, "worker", self._index)
        self._device = f"/job:worker/task:{self._index}"
        self._setter = tf.train.replica_device_setter(
            cluster=cluster, worker_device=self._device
        )
        self._model = model
        self._contenders = contenders
        self._graphs: dict[str, Graph] = {}
        self._sessions: dict[str, Any] = {}
        self._barriers: dict[str, barrier.Barrier] = {}
        self._steps = 0
        random = np.random.default_rng(self._index)
        self._batches = [
            random.integers(max(model["rows"], 1), size=model["ids"])
            for _ in range(BATCHES)
        ]
        self._scopes = contextlib.ExitStack()  # Never closed: the process is killed.

    def open(self, name: str) -> None:
        """Opens a contender's session; the chief's has to be opened first."""
        graph = tf.Graph()
        self._scopes.enter_context(graph.as_default())
        is_chief = self._index == 0
        with tf.device(self._setter):
            built = Graph(name, self._contenders[name], self._model, is_chief)
        self._graphs[name] = built
        if "barrier" in self._contenders[name]:
            folder = self._contenders[name]["barrier"]
            self._barriers[name] = barrier.Barrier(folder, self._index)
        config = tf.ConfigProto(device_filters=["/job:ps", self._device])
        self._sessions[name] = tf.train.MonitoredTrainingSession(
            self._server.target,
            is_chief,
            hooks=[built.hook] if built.hook else [],
            config=config,
        )

    def run(self, name: str, steps: int, until: int, sleep_secs: float) -> None:
        """Trains.

        `steps`: how many steps to make; 0 for as many as are needed to get to `until`.
        `until`: the global step at which to stop; 0 for none.
        """
        self._train(name, steps, until, sleep_secs, self._feed)

    def rehearse(self, name: str, steps: int, until: int = 0) -> None:
        """Does the same as `run`, with one batch for all workers."""
        self._train(name, steps, until, 0.0, self._rehearsal_feed)

    def updates(self, name: str) -> int:
        """Returns the global step."""
        return self.read(name)[0]

    def read(self, name: str) -> tuple[int, list[np.ndarray]]:
        """Returns the global step and the weights."""
        graph, session = self._graphs[name], self._sessions[name]
        step, *weights = session.run([graph.global_step, *graph.weights])
        return int(step), weights

    def train_alone(self, name: str, steps: int) -> list[np.ndarray]:
        """The expected result of `rehearse`, made in a local session."""
        alone = {**self._contenders[name], "sync": ""}
        with tf.Graph().as_default():
            graph = Graph(name, alone, self._model, is_chief=True)
            initialize = tf.global_variables_initializer()
            with tf.Session() as session:
                session.run(initialize)
                for _ in range(steps):
                    session.run(graph.train_op, self._rehearsal_feed(graph))
                return session.run(graph.weights)

    def _train(
        self,
        name: str,
        steps: int,
        until: int,
        sleep_secs: float,
        feed: Callable[[Graph], dict[Any, Any]],
    ) -> None:
        graph, session = self._graphs[name], self._sessions[name]
        wait = self._barriers[name].wait if name in self._barriers else lambda: None
        made = 0
        while True:
            time.sleep(sleep_secs)
            step = session.run(graph.train_op, feed(graph))
            wait()
            made += 1
            if made == steps or (until and step >= until):
                return

    def _feed(self, graph: Graph) -> dict[Any, Any]:
        self._steps += 1
        if graph.rows is None:
            return {}
        return {graph.rows: self._batches[self._steps % len(self._batches)]}

    def _rehearsal_feed(self, graph: Graph) -> dict[Any, Any]:
        if graph.rows is None:
            return {}
        return {graph.rows: np.arange(self._model["ids"])}


def main() -> None:
    """Serves one benchmark, in sessions."""
    tf.disable_v2_behavior()
    # If workers add to a reference variable at once, two steps may count as one.
    tf.enable_resource_variables()
    serving.serve(Replica)


if __name__ == "__main__":
    main()
