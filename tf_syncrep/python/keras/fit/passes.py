"""Batches that workers read to the ends of their datasets."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import tensorflow as tf

from tf_syncrep.python.data.work_queue import WorkQueue
from tf_syncrep.python.keras.compat import datasets as compat_datasets
from tf_syncrep.python.keras.fit.data import Batches, RunSteps, Scheduled
from tf_syncrep.python.keras.fit.sizes import Sizes

# How many times a pass may find that a worker has not made its data, before it goes on
# without it. It asks 20 times a second, so this is ten minutes.
_PATIENCE = 12_000


class WorkersPasses(Batches):
    """Batches that each worker reads by itself; an epoch is one pass over all of them.

    If they come from work queues, an epoch is one of the queues', and the other workers
    read what a lost one had not finished in another pass.
    """

    num_steps = None
    # The worker that ran an execution, and the number of steps that it had data for.
    num_told = 2

    def __init__(self, datasets: Any, queues: Sequence[WorkQueue], element_spec: Any):
        """Reads nothing yet."""
        self.element_spec = element_spec
        self._datasets = datasets
        self._queues = queues
        self._iterator: Any = None
        self._patience = _PATIENCE

    def begin_epoch(self, resume: bool) -> bool:
        """Begins an epoch of all queues."""
        epochs = [queue.begin_epoch(resume) for queue in self._queues]
        return None not in epochs

    def begin_pass(self) -> None:
        """Makes each worker begin with its dataset."""
        if self._patience:
            self._patience = _PATIENCE
        self._iterator = iter(self._datasets)

    def is_made(self) -> bool:
        """Returns whether all workers have this pass's data, or were waited for.

        A worker that does not answer is waited for in a single pass of all.
        """
        if self._patience == 0 or compat_datasets.is_made(self._iterator):
            return True
        self._patience -= 1
        return False

    def has_left(self, some_are_lost: bool) -> bool:
        """Returns whether another pass is needed to end the epoch.

        Args:
            some_are_lost: whether workers, and what they were reading, were lost in the
                last pass.
        """
        left = False
        for queue in self._queues:
            stats = queue.stats()
            not_handed_out = stats["epoch"] <= stats["limit"]
            if stats["waiting_items"] or (
                some_are_lost and (stats["in_flight"] or not_handed_out)
            ):
                # This takes back what lost workers hold.
                queue.begin_epoch(resume=True)
                left = True
        return left

    def end_epochs(self) -> None:
        """Ends the epochs of all queues."""
        for queue in self._queues:
            queue.end_epochs()

    def executions(self, sizes: Sizes, first_step: int = 0) -> Iterator[Scheduled]:
        """Yields executions of the pass without end."""
        del first_step
        while True:
            yield sizes.largest, (self._iterator,)

    @staticmethod
    def function(run_steps: RunSteps, size: int) -> Callable[..., Any]:
        """Returns the function of an execution."""
        # So only the worker runs loops. If the ops of steps were part of a loop, each
        # op on a server would report its end to the worker in each iteration.
        steps = tf.function(
            run_steps, autograph=False, experimental_attributes={"_noinline": True}
        )

        def run(iterator):
            worker = tf.distribute.coordinator.experimental_get_current_worker_index()
            spec = iterator.element_spec
            batches = [iterator.get_next_as_optional() for _ in range(size)]
            num_batches = tf.add_n([tf.cast(x.has_value(), tf.int32) for x in batches])
            # All steps run at once if there is data for all, and otherwise one by one.
            # They are in bodies of loops, not in branches, because TensorFlow does not
            # find the lookup tables of the worker in branches.
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
    """Makes an output of the right shape for when there was no step."""
    return tf.zeros([size or 0 for size in output.shape], output.dtype)
