"""Points of a SyncReplicas train step at which a worker can be stopped.

The functions that a coordinator schedules run in other processes, without Python. So
the points are loops in their graphs, which last as long as a file exists.
"""

import contextlib
import pathlib
from collections.abc import Iterator, Sequence
from typing import Any

import replaced_ops
import tensorflow as tf

from tf_syncrep.python.ops import accumulator_ops, sync_gate_ops
from tf_syncrep.python.sync.gradient_accumulators import NO_ROUND

_POLL_SECS = 0.02


def stop_at(folder: pathlib.Path, point: str, worker: int) -> None:
    """Makes a worker say "at POINT" when it gets to a point, and stop there."""
    (folder / f"stop-{point}-{worker}").touch()


def go_on(folder: pathlib.Path, point: str, worker: int) -> None:
    """Undoes `stop_at`."""
    (folder / f"stop-{point}-{worker}").unlink()


class Seams:
    """Builds the points.

    "computing": the worker has its permit, and no gradient. "half_pushed": its gradient
    is admitted, one push was acknowledged, and the others are not begun. "committed":
    the gradient counts. A worker whose gradient comes too late gets only to the first
    point.
    """

    def __init__(self, folder: str, compute_secs: Sequence[float]):
        """Takes the folder of the files, and how long each worker computes at least."""
        self._folder = folder
        self._compute_secs = compute_secs
        self._pushes: list[tf.Tensor] = []

    def in_place(self) -> contextlib.AbstractContextManager[None]:
        """Puts the points into the train steps that are traced within the context."""
        return replaced_ops.replaced(
            (
                (sync_gate_ops, "sync_gate_admit", self._admit),
                (accumulator_ops, "accumulator_apply_dense", self._push),
                (accumulator_ops, "accumulator_apply_sparse", self._push),
                (sync_gate_ops, "sync_gate_commit", self._commit),
            )
        )

    def _admit(self, admit, *args):
        stop = self._stop("computing")
        with tf.control_dependencies([stop]), _on_worker():
            worker = tf.strings.to_number(_task(), tf.int32)
            computed = sleep(tf.gather(tf.constant(self._compute_secs), worker))
        with tf.control_dependencies([computed]):
            return admit(*args)

    def _push(self, push, handle, round_number, *gradient):
        with tf.control_dependencies(self._pushes):
            is_admitted = round_number != NO_ROUND
            stops = [self._stop("half_pushed", is_admitted)] if self._pushes else []
        with tf.control_dependencies(stops):
            self._pushes.append(push(handle, round_number, *gradient))
        return self._pushes[-1]

    def _commit(self, commit, gate, generation, round_number, *worker):
        self._pushes = []
        counts = commit(gate, generation, round_number, *worker)
        with tf.control_dependencies([counts]):
            stop = self._stop("committed", round_number != NO_ROUND)
        with tf.control_dependencies([stop]):
            return tf.identity(counts)

    def _stop(self, point, admitted=True):
        with _on_worker():
            path = tf.strings.join([f"{self._folder}/stop-{point}-", _task()])

            def wait(has_told):
                told = tf.cond(has_told, tf.no_op, lambda: tf.print(f"at {point}"))
                with tf.control_dependencies([told, sleep(_POLL_SECS)]):
                    return tf.constant(True)

            return tf.while_loop(
                lambda _: tf.logical_and(
                    admitted, tf.size(tf.io.matching_files(path)) > 0
                ),
                wait,
                [tf.constant(False)],
            )[0]


@contextlib.contextmanager
def _on_worker() -> Iterator[None]:
    with tf.device(None), tf.device("/device:CPU:0"):
        yield


def _task() -> tf.Tensor:
    """The index of the worker that runs this, as text."""
    name, _ = sync_gate_ops.task_id()
    return tf.strings.regex_replace(name, ".*task:", "")


def sleep(secs: Any) -> tf.Tensor:
    """An op that sleeps; others need Python, which workers do not run."""
    kind = {"output_types": [tf.int64], "output_shapes": [[]]}
    zero, one = tf.constant(0, tf.int64), tf.constant(1, tf.int64)
    dataset = tf.raw_ops.RangeDataset(start=zero, stop=one, step=one, **kind)
    # It sleeps once for the element, and once for the end.
    dataset = tf.raw_ops.SleepDataset(
        input_dataset=dataset,
        sleep_microseconds=tf.cast(tf.convert_to_tensor(secs) * 0.5e6, tf.int64),
        **kind,
    )
    return tf.raw_ops.DatasetToSingleElement(dataset=dataset, **kind)[0]
