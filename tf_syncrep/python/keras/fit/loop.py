"""Loops over scheduled steps: training, evaluation and prediction.

Callbacks see the steps one after the other, as under `Model.fit`, while the workers are
always some steps ahead.
"""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from absl import logging

from tf_syncrep.python.base.deadline import within
from tf_syncrep.python.keras import compat
from tf_syncrep.python.keras.compat.position import handing_over, initial_position
from tf_syncrep.python.keras.fit.batches import NO_BATCHES, Batches
from tf_syncrep.python.keras.fit.scheduling import ScheduledSteps
from tf_syncrep.python.keras.fit.sizes import Calls
from tf_syncrep.python.keras.sync_replicas.rounds import Rounds
from tf_syncrep.python.keras.sync_replicas.rounds_optimizer import (
    ending,
    place,
    rounds_of,
)
from tf_syncrep.python.keras.tables.placed_bytes import tell_placement
from tf_syncrep.python.keras.training_clock import clock_of

# How long an error waits for executions that still run.
_END_SECS = 20.0


@contextlib.contextmanager
def closing(coordinator: Any, rounds: Rounds) -> Iterator[None]:
    """Leaves nothing behind, however training ends, and raises what ended it.

    After a failure the rounds are closed first, since executions that still run may
    wait for an update. Then it waits for these executions, but not for ever, since a
    task may not answer.
    """
    with ending(rounds):
        try:
            yield
        except BaseException:
            rounds.close()
            # What they may fail with follows from the failure that is on its way.
            if isinstance(within(_END_SECS, coordinator.join), TimeoutError):
                logging.warning(
                    "fit: steps still run after %g s, and are left behind.", _END_SECS
                )
            raise


def train(
    steps: ScheduledSteps,
    model: Any,
    batches: Batches,
    callbacks: Any,
    *,
    initial_epoch: int,
    epochs: int,
    validate: Callable[[int], dict[str, Any]],
) -> None:
    """Runs the epochs of `fit`, up to a checkpoint if there is notice.

    `validate`: called with each epoch when its training is over; returns what to add to
    its logs.
    """
    rounds, clock = rounds_of(model.optimizer), clock_of(model)
    flush = getattr(model.optimizer, "flush_last", True)
    # This comes before callbacks may ask the gate for anything, which would make it.
    if model.trainable_variables:
        place(model.optimizer, model.trainable_variables)

    def end_batch(last: int, logs: Any) -> None:
        with clock.hook():
            callbacks.on_train_batch_end(last, logs)

    model.stop_training = False
    with handing_over(model):
        callbacks.on_train_begin()
        first_epoch, first_step = initial_position(
            model, batches.num_steps, initial_epoch
        )
    logs: Any = {}
    epoch_logs = None
    for epoch in range(first_epoch, epochs):
        if not batches.begin_epoch(epoch, resume=first_step > 0):
            if epoch == initial_epoch:
                no_batches = NO_BATCHES.format(batches.argument)
                raise ValueError(f"{no_batches}: its work queue has no epoch left")
            logging.warning(
                "fit: the data has no epoch left after %d of %d: training ends.",
                epoch,
                epochs,
            )
            break
        model.reset_metrics()
        callbacks.on_epoch_begin(epoch)
        if epoch == first_epoch:
            # Callbacks finish restoring here, so this must not come earlier.
            rounds.start()
        rounds.begin_epoch(first_step)
        sizes = steps.sizes("train", batches, callbacks)
        calls = Calls(callbacks.on_train_batch_begin, end_batch, sizes, first_step)
        for result in steps.run("train", batches, sizes, first_step):
            tell_placement(model)
            calls.begin()
            logs = _as_python(result.take(if_lost=logs))
            calls.end(result.num_steps, logs)
            if model.stop_training:
                break
        calls.finish(logs)
        first_step = 0
        steps.coordinator.join()
        if steps.has_notice and not model.stop_training:
            # Batches of an incomplete round count as not read, but items of a queue do,
            # and their gradients would be lost.
            if batches.counts_items():
                rounds.finish(flush=flush)
            else:
                rounds.drain()
            steps.notice.save()
            return
        # Whatever is validated, saved and reported then includes all updates of the
        # epoch. Whoever stops training may have set weights of before, to which
        # gradients that are left from later ones do not belong.
        if model.stop_training or epoch + 1 == epochs:
            rounds.finish(flush=flush and not model.stop_training)
        else:
            rounds.drain()
        epoch_logs = {**logs, **validate(epoch)}
        if steps.has_notice and not model.stop_training:
            steps.notice.save()
            return
        callbacks.on_epoch_end(epoch, epoch_logs)
        if model.stop_training:
            break
    steps.notice.note_ending()
    rounds.finish(flush=flush and not model.stop_training)
    if epochs > 0 and hasattr(model.optimizer, "finalize_variable_values"):
        with model.distribute_strategy.scope():
            compat.finalize_variable_values(model.optimizer, model.trainable_variables)
    callbacks.on_train_end(logs=epoch_logs)


def test(
    steps: ScheduledSteps, model: Any, batches: Batches, callbacks: Any
) -> dict[str, Any]:
    """Runs one evaluation, or less if there is notice; returns the results by name."""
    model.stop_evaluating = False
    callbacks.on_test_begin()
    logs: Any = {}
    model.reset_metrics()
    sizes = steps.sizes("test", batches, callbacks)
    calls = Calls(callbacks.on_test_batch_begin, callbacks.on_test_batch_end, sizes)
    for result in steps.run("test", batches, sizes):
        calls.begin()
        logs = _as_python(result.take(if_lost=logs))
        calls.end(result.num_steps, logs)
        if model.stop_evaluating:
            break
    calls.finish(logs)
    steps.coordinator.join()
    callbacks.on_test_end(logs)
    return logs


def predict(steps: ScheduledSteps, model: Any, batches: Batches, callbacks: Any) -> Any:
    """Predicts, batch by batch in their order; returns a structure of arrays."""
    model.stop_predicting = False
    callbacks.on_predict_begin()
    outputs: list[Any] = []
    untold: list[Any] = []

    def end_batch(last: int, _: Any) -> None:
        told = joined(untold)
        outputs.extend(untold)
        untold.clear()
        callbacks.on_predict_batch_end(last, {"outputs": told})

    sizes = steps.sizes("predict", batches, callbacks)
    calls = Calls(callbacks.on_predict_batch_begin, end_batch, sizes)
    for result in steps.run("predict", batches, sizes):
        calls.begin()
        untold.extend(result.take(if_lost=()))
        calls.end(result.num_steps, None)
        if model.stop_predicting:
            break
    calls.finish(None)
    steps.coordinator.join()
    callbacks.on_predict_end()
    return joined(outputs)


def _as_python(logs: dict[str, Any]) -> dict[str, Any]:
    """Converts numbers of logs to those of Python, where that is possible."""

    def converted(value: Any) -> Any:
        if isinstance(value, int | np.integer):
            return int(value)
        try:
            return float(value)
        except (TypeError, ValueError):
            return value

    return {name: converted(value) for name, value in logs.items()}


def joined(outputs: Sequence[Any]) -> Any:
    """Joins outputs of batches along the batch, as Keras does.

    Returns a structure of the same; arrays of which other sizes differ become ragged.
    """
    if len(outputs) == 1:
        return outputs[0]
    return tf.nest.map_structure(lambda *parts: _joined(parts), *outputs)


def _joined(parts: Sequence[Any]) -> Any:
    if isinstance(parts[0], tf.SparseTensor):
        return tf.sparse.concat(0, [*parts])
    if isinstance(parts[0], tf.RaggedTensor):
        return tf.concat(parts, axis=0)
    if np.ndim(parts[0]) == 0:
        return np.stack(parts)
    sizes = [*zip(*(part.shape[1:] for part in parts), strict=True)]
    ragged = [axis for axis, some in enumerate(sizes, 1) if len({*some}) > 1]
    if not ragged:
        return np.concatenate(parts)
    rows = [tf.RaggedTensor.from_tensor(part, ragged_rank=ragged[-1]) for part in parts]
    return tf.concat(rows, axis=0)
