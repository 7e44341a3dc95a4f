"""One step of a model, as it is traced into a function that workers run."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf

from tf_syncrep.python.keras.compat import trainer
from tf_syncrep.python.keras.compat.coordinator import shorten_errors_of_closures
from tf_syncrep.python.keras.compat.tracing import (
    as_keras_traces,
    as_scheduled,
    replaced,
    traced_by,
)
from tf_syncrep.python.keras.fit.counted_last import count_last
from tf_syncrep.python.keras.fit.exact_state import exact_state
from tf_syncrep.python.keras.fit.joining import are_alike
from tf_syncrep.python.keras.fit.metrics import Metrics
from tf_syncrep.python.keras.parts import optimizers_of
from tf_syncrep.python.keras.sync_replicas.rounds import Rounds
from tf_syncrep.python.keras.sync_replicas.rounds_optimizer import rounds_of
from tf_syncrep.python.keras.transfers.transfers import joined_transfers


class Step:
    """A step of one kind of one model.

    Each call traces another step into the same graph. As in all functions of
    TensorFlow, the steps' effects on a variable have their order.
    """

    def __init__(
        self,
        model: Any,
        kind: str,
        fold_seeds: bool,
        metrics: Metrics,
        prefetch_rows: bool = False,
    ):
        """Traces nothing yet.

        `prefetch_rows`: whether rows come before the last step's updates. Then they do
        not wait for dense variables.
        """
        shorten_errors_of_closures()
        self._model = model
        self._kind = kind
        self._fold_seeds = fold_seeds
        self.metrics = metrics
        self.prefetch_rows = prefetch_rows
        # A synchronous step waits for its permit before it reads any variable.
        self._rounds = rounds_of(model.optimizer) if kind == "train" else Rounds()

    def __call__(
        self, number: Callable[[], tf.Tensor], handles: list[tf.Tensor], batch: Any
    ) -> Any:
        """Traces a step."""
        model, kind = self._model, self._kind

        def step_on(batch):
            with self.metrics.steps_on(handles), inlined(model):
                return as_keras_traces(getattr(model, f"{kind}_step"))(batch)

        graph = tf.compat.v1.get_default_graph()
        num_before = len(graph.get_operations())
        seeds_of = number if self._fold_seeds else None
        joined = joined_transfers(lookups_wait=not self.prefetch_rows)
        with joined, self._rounds.step(), exact_state(seeds_of):
            with as_scheduled(model.distribute_strategy):
                result = model.distribute_strategy.run(step_on, args=(batch,))
            trainer.count_steps(model, kind)
            result = tf.nest.map_structure(_as_tensor, result)
        if kind == "train":
            counters = [optimizer.iterations for optimizer in optimizers_of(model)]
            count_last(counters, graph.get_operations()[num_before:])
        return result

    def of_all(self, results: list[Any]) -> Any:
        """Returns the result of several steps: the last one's, or all predictions.

        Predictions are a list. They are joined here where the graph shows that they
        can be, so that less is fetched.
        """
        if self._kind != "predict":
            return results[-1]
        if len(results) == 1 or not are_alike(results):
            return results
        return [
            tf.nest.map_structure(lambda *parts: tf.concat(parts, axis=0), *results)
        ]


def _as_tensor(leaf: Any) -> Any:
    """Replaces a variable by its value."""
    return tf.convert_to_tensor(leaf) if hasattr(leaf, "assign") else leaf


@contextlib.contextmanager
def inlined(model: Any) -> Iterator[None]:
    """Within this context, a model's `tf.function`s are plain methods.

    Otherwise they would reuse an earlier trace, which belongs to another step, and what
    they do to metrics would be hidden.
    """
    names = {
        name
        for kind in type(model).__mro__
        for name, x in vars(kind).items()
        if hasattr(x, "python_function") and name not in vars(model)
    }
    with contextlib.ExitStack() as stack:
        for name in names:
            plain = traced_by(getattr(model, name))
            stack.enter_context(replaced(model, name, plain))
        yield
