"""Batches that workers read to the end of their datasets, whenever that comes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import tensorflow as tf

from tf_syncrep.python.data.work_queue import WorkQueue
from tf_syncrep.python.keras.fit.data import Batches, Execution


class WorkersPasses(Batches):
    """Batches that each worker reads by itself; an epoch is one pass over all of them.

    Where they come from work queues, an epoch is one of the queues', and what a lost
    worker had not finished is read by the others in another pass.
    """

    num_steps = None
    # Which worker ran an execution, and how many steps it had data for.
    num_told = 2

    def __init__(self, datasets: Any, queues: Sequence[WorkQueue]):
        """Reads nothing yet.

        Args:
            datasets: a dataset of the ClusterCoordinator's for each worker, with ends.
            queues: those that the datasets read.
        """
        self._datasets = datasets
        self._queues = queues
        self._iterator: Any = None

    def begin_epoch(self, resume: bool) -> bool:
        """Begins an epoch of all queues."""
        epochs = [queue.begin_epoch(resume) for queue in self._queues]
        return None not in epochs

    def begin_pass(self) -> None:
        """Has each worker begin with its dataset."""
        self._iterator = iter(self._datasets)

    def has_left(self, some_are_lost: bool) -> bool:
        """Whether another pass is needed to end the epoch.

        Args:
            some_are_lost: whether workers were lost in the last one, and so what they
                were reading.
        """
        left = False
        for queue in self._queues:
            stats = queue.stats()
            not_handed_out = stats["epoch"] <= stats["limit"]
            if stats["waiting_items"] or (
                some_are_lost and (stats["in_flight"] or not_handed_out)
            ):
                # Gives back what the lost hold.
                queue.begin_epoch(resume=True)
                left = True
        return left

    def end_epochs(self) -> None:
        """Leaves the queues to others."""
        for queue in self._queues:
            queue.end_epochs()

    def executions(
        self, steps_per_execution: int, first_step: int = 0
    ) -> Iterator[Execution]:
        """Executions of the pass, as many as are wanted."""
        while True:
            yield (
                first_step,
                steps_per_execution,
                (self._iterator, tf.constant(steps_per_execution)),
            )

    @staticmethod
    def function(run_step: Callable[[Any], Any]) -> Callable[..., Any]:
        """What an execution does with its arguments."""
        step = tf.function(run_step, autograph=False)

        def run(iterator, num_steps):
            worker = tf.distribute.coordinator.experimental_get_current_worker_index()
            outputs = step.get_concrete_function(
                iterator.element_spec
            ).structured_outputs
            nothing = tf.nest.map_structure(_nothing, outputs, expand_composites=True)
            shapes = tf.nest.map_structure(
                lambda output: output.shape, outputs, expand_composites=True
            )

            # The step is in the body of a loop and not in a branch, where TensorFlow
            # does not find the lookup tables of the worker.
            def next_step(num_done, batch, _):
                result = step(batch.get_value())
                batch = tf.cond(
                    num_done + 1 < num_steps,
                    iterator.get_next_as_optional,
                    lambda: tf.experimental.Optional.empty(iterator.element_spec),
                )
                return num_done + 1, batch, result

            num_done, _, (numbers, others) = tf.while_loop(
                lambda _, batch, __: batch.has_value(),
                next_step,
                (0, iterator.get_next_as_optional(), nothing),
                shape_invariants=(
                    tf.TensorShape([]),
                    tf.OptionalSpec(iterator.element_spec),
                    shapes,
                ),
            )
            told = tf.stack([tf.cast(x, tf.float64) for x in (worker, num_done)])
            return tf.concat([told, numbers], axis=0), others

        return run


def _nothing(output: Any) -> tf.Tensor:
    """Stands for what a step returns, where there was no step."""
    return tf.zeros([size or 0 for size in output.shape], output.dtype)
