"""Batches that workers read to the end of their datasets, whenever that comes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import tensorflow as tf

from tf_syncrep.python.data.work_queue import WorkQueue
from tf_syncrep.python.keras.fit.data import Batches, RunSteps, Scheduled
from tf_syncrep.python.keras.fit.sizes import Sizes


class WorkersPasses(Batches):
    """Batches that each worker reads by itself; an epoch is one pass over all of them.

    Where they come from work queues, an epoch is one of the queues', and what a lost
    worker had not finished is read by the others in another pass.
    """

    num_steps = None
    # Which worker ran an execution, and how many steps it had data for.
    num_told = 2

    def __init__(self, datasets: Any, queues: Sequence[WorkQueue]):
        """Reads nothing yet."""
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

    def executions(self, sizes: Sizes, first_step: int = 0) -> Iterator[Scheduled]:
        """Executions of the pass, as many as are wanted."""
        del first_step
        while True:
            yield sizes.largest, (self._iterator,)

    @staticmethod
    def function(run_steps: RunSteps, size: int) -> Callable[..., Any]:
        """What an execution does with its arguments."""
        # Loops are then of the worker alone. If steps were part of a loop, each op on a
        # server would tell the worker of its end, before an iteration is over.
        steps = tf.function(
            run_steps, autograph=False, experimental_attributes={"_noinline": True}
        )

        def run(iterator):
            worker = tf.distribute.coordinator.experimental_get_current_worker_index()
            spec = iterator.element_spec
            batches = [iterator.get_next_as_optional() for _ in range(size)]
            num_batches = tf.add_n([tf.cast(x.has_value(), tf.int32) for x in batches])
            # All steps at once if there is data for all, and otherwise one by one. They
            # are in bodies of loops and not in branches, where TensorFlow does not find
            # the lookup tables of the worker.
            outputs = steps.get_concrete_function([spec]).structured_outputs
            nothing = tf.nest.map_structure(_nothing, outputs, expand_composites=True)
            shapes = tf.nest.map_structure(
                lambda output: output.shape, outputs, expand_composites=True
            )
            is_full = num_batches == size
            _, result = tf.while_loop(
                lambda is_due, _: is_due,
                lambda *_: (False, steps([x.get_value() for x in batches])),
                (is_full, nothing),
                shape_invariants=(tf.TensorShape([]), shapes),
            )

            def next_step(num_left, batches, _):
                result = steps([batches[0].get_value()])
                return num_left - 1, [*batches[1:], batches[0]], result

            if size > 1:
                *_, result = tf.while_loop(
                    lambda num_left, *_: num_left > 0,
                    next_step,
                    (tf.where(is_full, 0, num_batches), batches, result),
                    shape_invariants=(
                        tf.TensorShape([]),
                        [tf.OptionalSpec(spec)] * size,
                        shapes,
                    ),
                )
            numbers, others = result
            told = tf.stack([tf.cast(x, tf.float64) for x in (worker, num_batches)])
            return tf.concat([told, numbers], axis=0), others

        return run


def _nothing(output: Any) -> tf.Tensor:
    """Stands for what a step returns, where there was no step."""
    return tf.zeros([size or 0 for size in output.shape], output.dtype)
