"""Evaluates the checkpoints of a training in a task of its own."""

from __future__ import annotations

import dataclasses
import os
import time
import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from absl import logging

from tf_syncrep.python.base.arguments import check_count, check_positive
from tf_syncrep.python.checkpoint.directory import DamagedError, Directory, Manifest
from tf_syncrep.python.checkpoint.engine import Engine, Options
from tf_syncrep.python.checkpoint.function_calls import FunctionCalls
from tf_syncrep.python.keras import compat
from tf_syncrep.python.keras.checkpoint.contents import contents_of, has_weights
from tf_syncrep.python.keras.fit.api import evaluate
from tf_syncrep.python.keras.fit.inputs import made_by
from tf_syncrep.python.keras.sync_replicas.report.scalars_writer import SCALARS

__all__ = ["Evaluation", "SidecarEvaluator"]

_POLL_SECS = 1.0
# If a script goes on with another `fit`, it does so within this time.
_LINGER_SECS = 10.0
# How often to say that the folder cannot be read.
_SAY_SECS = 60.0
# What is found from before this time belongs to another training.
_BEGUN = time.time()


@dataclasses.dataclass(frozen=True)
class Evaluation:
    """The evaluation of a checkpoint.

    Attributes:
        path: the checkpoint's prefix.
        iterations: the number of updates of the model until then.
        metrics: the loss and the metrics by name, as `evaluate(return_dict=True)`
            returns them.

    Example:
    ```python
    evaluations = tfs.keras.SidecarEvaluator(model, validation, "/shared/run1").start()
    best = min(evaluations, key=lambda evaluation: evaluation.metrics["loss"])
    print(best.path, best.iterations)
    ```
    """

    path: str
    iterations: int
    metrics: dict[str, Any]


class SidecarEvaluator:
    """Evaluates each new checkpoint of `tfs.keras.Checkpoint` while training goes on.

    It runs in a task of its own, which `tf-syncrep launch --evaluator` starts; its task
    type in TF_CONFIG is "evaluator". The same script makes the same model there,
    without a strategy.

    Tables that are spread over parameter servers are restored into one process, without
    the optimizer's variables, so that a model takes the memory of its weights. If that
    is too much, make it under a ParameterServerStrategy of a cluster for the evaluation
    alone: its parameter servers read the checkpoint, and its workers evaluate.

    If checkpoints come faster than they can be evaluated, only the newest ones are
    evaluated. One that is damaged, or whose weights are not finite, is passed over,
    with a message. If the folder cannot be read for a while, it waits.

    Args:
        model: a compiled model with the layers of the one that is trained. If it is not
            built, the first batch builds it.
        data: an argument `x` of `evaluate`: a `tf.data.Dataset`, or a function of a
            `tf.distribute.InputContext` that returns one; or arrays, as `(x, y)` or
            `(x, y, sample_weight)`.
        checkpoint_dir: the folder to which `Checkpoint` writes. It need not exist yet.
        steps: the number of batches; None for all.
        max_evaluations: end after this many evaluations; None for no limit.
        callbacks: instances of `tf.keras.callbacks.Callback`, passed to `evaluate`.
            They find the training's number of updates in `model.optimizer.iterations`.
        log_dir: the folder for TensorBoard scalars: they are written to its folder
            "validation" as "evaluation_loss_vs_iterations", as
            `tf.keras.callbacks.TensorBoard` does. None for no scalars.
        max_idle_secs: end if no new checkpoint was found for so long; None for no
            limit.

    Raises:
        ValueError: an argument is out of range.

    Example:
    ```python
    if tfs.distribute.read_tf_config().task_type == "evaluator":
        evaluator = tfs.keras.SidecarEvaluator(
            make_model(), validation, "/shared/run1", log_dir="/shared/run1/logs"
        )
        evaluator.start()
        sys.exit()
    ```

    Reference: TensorFlow's `tf.keras.utils.SidecarEvaluator` of Keras 2.
    """

    def __init__(
        self,
        model: Any,
        data: Any,
        checkpoint_dir: str | os.PathLike[str],
        steps: int | None = None,
        max_evaluations: int | None = None,
        callbacks: Sequence[Any] | None = None,
        *,
        log_dir: str | os.PathLike[str] | None = None,
        max_idle_secs: float | None = None,
    ):
        if steps is not None:
            steps = check_count("steps", steps)
        if max_evaluations is not None:
            max_evaluations = check_count("max_evaluations", max_evaluations)
        if max_idle_secs is not None:
            max_idle_secs = check_positive("max_idle_secs", max_idle_secs)
        if callable(data):
            data = made_by(data, tf.distribute.InputContext())
        self._model = model
        self._data = data if isinstance(data, (tuple, list)) else (data,)
        self._directory = Directory(checkpoint_dir, "checkpoint_dir")
        self._steps = steps
        self._max_evaluations = max_evaluations
        self._callbacks = callbacks
        self._log_dir = None if log_dir is None else os.fsdecode(log_dir)
        self._max_idle_secs = max_idle_secs
        self._engine = Engine(
            self._directory, FunctionCalls(compat.apart_from_closures), Options()
        )
        self._contents: Any = None
        self._writer: Any = None

    def start(self) -> list[Evaluation]:
        """Evaluates checkpoints until the training ends, and prints a line for each.

        A training has ended when the newest checkpoint shows the end of a `fit`, or was
        saved with `is_last=True`, after this program began, and no other `fit`
        continues from it within ten seconds. This method also ends after
        `max_evaluations`, or after `max_idle_secs`. Otherwise the task can only be
        ended from outside.

        Returns:
            The evaluations, in order.

        Raises:
            ValueError: the checkpoints belong to another model.
            Exception: the evaluation raised an error.
        """
        path = self._directory.path
        print(f"Evaluating the checkpoints in {path} as they come.", flush=True)
        try:
            return self._evaluate_all()
        finally:
            if self._writer is not None:
                self._writer.close()
                self._writer = None

    def _evaluate_all(self) -> list[Evaluation]:
        found: list[Evaluation] = []
        seen, last, newest = 0, None, None
        first = None  # the newest number when it looked first
        idle_since = time.monotonic()
        while True:
            try:
                number = self._directory.newest_number()
                if number != seen:
                    newest = (self._directory.manifests() or [None])[-1]
                first = number if first is None else first
            except tf.errors.OpError as error:
                path = self._directory.path
                logging.log_every_n_seconds(
                    logging.WARNING, "%s cannot be read: %s", _SAY_SECS, path, error
                )
                number = seen  # as if there were nothing new
            if number < seen:  # Another training has begun in an empty folder.
                seen, last = 0, None
            if number > seen:
                seen = number
                manifest = self._restore()
                if manifest is not None and (
                    last is None or manifest.number > last.number
                ):
                    last = manifest
                    found.append(self._evaluate(manifest))
                    idle_since = time.monotonic()
            idle_secs = time.monotonic() - idle_since
            end = None
            if len(found) == self._max_evaluations:
                end = f"{len(found)} checkpoints were evaluated"
            elif idle_secs >= _LINGER_SECS and self._is_end(newest, first):
                end = "training has ended"
            elif self._max_idle_secs is not None and idle_secs >= self._max_idle_secs:
                end = f"no checkpoint has come for {idle_secs:.0f} s"
            if end is not None:
                print(f"The evaluator ends: {end}.", flush=True)
                return found
            time.sleep(_POLL_SECS)

    def _is_end(self, manifest: Manifest | None, first: int | None) -> bool:
        """Returns whether a training has ended with this checkpoint.

        Trainings that ended before this program began do not count. The times of two
        tasks are compared only for what was found at once, since clocks may differ.
        """
        if manifest is None or not manifest.state.get("is_last"):
            return False
        if first is not None and manifest.number <= first and manifest.time < _BEGUN:
            return False
        goes_on = self._directory.progress().get("time", 0.0) > manifest.time
        return not goes_on

    def _restore(self) -> Manifest | None:
        """Restores the newest whole checkpoint; None if there is none."""
        if self._contents is None:
            if not has_weights(self._model):
                self._run(steps=1, callbacks=None)
            self._contents = contents_of(self._model, with_optimizers=False)
        try:
            return self._engine.restore(self._contents)
        except DamagedError as error:
            # They may also have been deleted meanwhile, and a newer one exists.
            logging.warning("%s", error)
            return None

    def _evaluate(self, manifest: Manifest) -> Evaluation:
        begin = time.monotonic()
        path = self._directory.prefix(manifest.number)
        iterations = int(manifest.state["iterations"])
        optimizer = getattr(self._model, "optimizer", None)
        if optimizer is not None:
            with compat.apart_from_closures():
                compat.native(optimizer.iterations).assign(iterations)
        metrics = self._run(self._steps, self._callbacks)
        secs = time.monotonic() - begin
        values = ", ".join(f"{name} {_shown(x)}" for name, x in metrics.items())
        print(
            f"{path}, after {iterations} updates: {values} ({secs:.1f} s)", flush=True
        )
        self._write(iterations, metrics)
        return Evaluation(path, iterations, metrics)

    def _run(self, steps: int | None, callbacks: Any) -> dict[str, Any]:
        x, y, sample_weight = (*self._data, None, None)[:3]
        with warnings.catch_warnings():
            if steps is None:
                # Keras 3 warns of this whenever it cannot know the end of the data.
                warnings.filterwarnings("ignore", "Your input ran out of data")
            return evaluate(
                self._model,
                x,
                y,
                sample_weight=sample_weight,
                steps=steps,
                verbose=0,
                callbacks=callbacks,
                return_dict=True,
            )

    def _write(self, iterations: int, metrics: dict[str, Any]) -> None:
        """Writes scalars; a failure is logged, and the evaluator goes on."""
        if self._log_dir is None:
            return
        try:
            with tf.device("/device:CPU:0"):
                if self._writer is None:
                    folder = os.path.join(self._log_dir, "validation")
                    self._writer = tf.summary.create_file_writer(folder)
                with self._writer.as_default(step=iterations):
                    for name, value in metrics.items():
                        if np.ndim(value) == 0:
                            tf.summary.write(
                                f"evaluation_{name}_vs_iterations",
                                tf.constant(value, tf.float32),
                                metadata=SCALARS,
                            )
                self._writer.flush()
        except (OSError, tf.errors.OpError) as error:
            logging.error("Scalars were not written to %s: %s", self._log_dir, error)


def _shown(value: Any) -> str:
    return f"{value:.6g}" if np.ndim(value) == 0 else str(np.asarray(value))
