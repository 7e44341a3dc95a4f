"""Model.fit, evaluate and predict under ParameterServerStrategy, for every Keras."""

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import tensorflow as tf

from tf_syncrep.python.base.arguments import with_python_numbers
from tf_syncrep.python.data.work_queue import naming_items
from tf_syncrep.python.keras import compat
from tf_syncrep.python.keras.checkpoint.checkpoint import with_ends
from tf_syncrep.python.keras.cluster import num_tasks
from tf_syncrep.python.keras.compat import trainer
from tf_syncrep.python.keras.compat.data_adapters import train_validation_split
from tf_syncrep.python.keras.compat.position import handing_over
from tf_syncrep.python.keras.embedding.table_upkeep import with_upkeep
from tf_syncrep.python.keras.fit import checks, inputs
from tf_syncrep.python.keras.fit import loop as fit_loop
from tf_syncrep.python.keras.fit.building import build
from tf_syncrep.python.keras.fit.notice import listening
from tf_syncrep.python.keras.fit.progress import (
    LossWarning,
    ProgressBar,
    ProgressLines,
    has_progress_bar,
)
from tf_syncrep.python.keras.fit.scheduling import ScheduledSteps
from tf_syncrep.python.keras.sync_replicas.rounds import Rounds
from tf_syncrep.python.keras.sync_replicas.rounds_optimizer import rounds_of

__all__ = ["evaluate", "fit", "predict"]


@with_python_numbers
@naming_items()
def fit(
    model: Any,
    x: Any = None,
    y: Any = None,
    batch_size: int | None = None,
    epochs: int = 1,
    verbose: str | int = "auto",
    callbacks: Sequence[Any] | None = None,
    validation_split: float = 0.0,
    validation_data: Any = None,
    shuffle: bool = True,
    class_weight: Mapping[int, float] | None = None,
    sample_weight: Any = None,
    initial_epoch: int = 0,
    steps_per_epoch: int | None = None,
    validation_steps: int | None = None,
    validation_batch_size: int | None = None,
    validation_freq: int | Sequence[int] = 1,
    prefetch_rows: bool = False,
) -> Any:
    """Trains a model as `Model.fit` does, also where Keras 3's own method cannot.

    Under a `tf.distribute.ParameterServerStrategy`, with Keras 3, the steps are
    scheduled on the workers, which train at once on shared variables. Everywhere else
    this calls `model.fit`.

    Metrics and the optimizer's `iterations` count every step of every worker, which
    stock variables of Keras 3 do not. Callbacks see the steps in order, one after the
    other; workers are ahead of them by up to twice as many executions as there are
    workers, so what a callback changes takes effect some steps later. At the end of an
    epoch no worker is ahead.

    Args:
        model: a compiled model, made and compiled in the strategy's scope. If it is not
            built yet, it is built by one call with the first batch.
        x: the source of the batches, which are `(inputs, targets)` or
            `(inputs, targets, sample_weights)`, or what the model's own `train_step`
            takes.

            * A `tf.data.Dataset` and no `steps_per_epoch`: the coordinator reads the
              batches and sends each to one worker, so that an epoch is exactly one
              pass.
            * A `tf.data.Dataset` and `steps_per_epoch`: each worker reads its own
              copy, again and again, from epoch to epoch. It should shuffle, so that
              each worker reads in its own order.
            * A function of a `tf.distribute.InputContext` that returns such a dataset,
              and `steps_per_epoch`: each worker has its own dataset, and reads it again
              and again. There are as many input pipelines as workers, and
              `dataset.shard(context.num_input_pipelines, context.input_pipeline_id)`
              is the worker's part. The function is traced once for each worker.
            * Such a function and no `steps_per_epoch`: each worker reads its dataset to
              its end, and an epoch is over when all workers have. Nobody has to know
              how many steps that takes, or which worker makes how many. With datasets
              of a `tfs.data.WorkQueue` an epoch is one of the queue's, and training
              ends when the queue has none left.
            * Anything else that `Model.fit` takes, such as arrays or a `PyDataset`:
              Keras' own data adapters read it, and the coordinator sends the batches.
        y: targets, if `x` is arrays.
        batch_size: examples per batch if `x` is arrays, 32 by default.
        epochs: the epoch before which to end, counted from 0.
        verbose: "auto", 0 (silent), 1 (progress bar; without a terminal, a line every
            few seconds) or 2 (a line for each epoch).
        callbacks: instances of `tf.keras.callbacks.Callback`.
        validation_split: the share of the arrays, at their end, to validate on.
        validation_data: any `x` for `evaluate`, or a tuple of `(x, y)` or
            `(x, y, sample_weight)`.
        shuffle: whether to shuffle arrays anew in each epoch.
        class_weight: the weight of the examples of each class, counted from 0.
        sample_weight: weights of examples, if `x` is arrays.
        initial_epoch: the first epoch.
        steps_per_epoch: how many steps, that is batches, all workers together make in
            an epoch.
        validation_steps: how many steps a validation has.
        validation_batch_size: the `batch_size` for validation.
        validation_freq: the number of epochs after which to validate again; or a list
            of epochs, counted from 1.
        prefetch_rows: whether to ask parameter servers for the rows of the next batch
            before the gradients of a step are sent, within an execution of
            `compile(steps_per_execution=...)`. Each step except the first of an
            execution then computes with rows that miss the update of the step before it
            on the same worker; everything else stays the same. This is for asynchronous
            training with `tfs.keras.Embedding` and `DistributedEmbedding`. Without a
            ParameterServerStrategy it changes nothing.

    Returns:
        The `History`.

    Raises:
        ValueError: an argument is wrong, or the model needs what Keras 3 cannot do
            under this strategy: variables in parts, `run_eagerly`, `jit_compile=True`,
            `gradient_accumulation_steps`, or several replicas in a worker; or it has
            a layer with `stateful=True`, and there are several workers.
        Exception: the error of a step, the data or a callback. No step runs on, and the
            next call works.

    Example:
    ```python
    strategy = tf.distribute.ParameterServerStrategy(
        tf.distribute.cluster_resolver.TFConfigClusterResolver()
    )
    with strategy.scope():
        model = build_model()
        model.compile(optimizer=tfs.keras.AdamAsync(1e-3), loss="mse", metrics=["mae"])
    history = tfs.keras.fit(
        model, dataset, epochs=3, steps_per_epoch=1000, validation_data=validation
    )
    ```

    Faults: training goes on without a lost worker, which takes part again when it is
    back. Another worker makes its execution again, from the beginning, and steps of it
    may count twice. If the data comes from a `tfs.data.WorkQueue`, other workers read
    what the lost one had not finished. A lost parameter server ends training with an
    error; with `tfs.keras.Checkpoint` among the callbacks the next run goes on from the
    last checkpoint.
    """
    checks.refuse_multi_worker(model)
    checks.refuse_model_outside_of_scope(model)
    if validation_split or validation_data is not None:
        checks.refuse_never_to_validate(validation_freq)
    maintains = not rounds_of(model.optimizer).maintains_tables
    callbacks = with_ends(model, with_upkeep(model, callbacks, maintains))
    if not is_scheduled(model):
        data = {"x": x, "validation_data": validation_data}
        with _own_loop(model, **data), handing_over(model):
            return model.fit(
                x,
                y,
                batch_size=batch_size,
                epochs=epochs,
                verbose=verbose,
                callbacks=callbacks,
                validation_split=validation_split,
                validation_data=validation_data,
                shuffle=shuffle,
                class_weight=class_weight,
                sample_weight=sample_weight,
                initial_epoch=initial_epoch,
                steps_per_epoch=steps_per_epoch,
                validation_steps=validation_steps,
                validation_batch_size=validation_batch_size,
                validation_freq=validation_freq,
            )
    checks.refuse_wrong_numbers(
        verbose,
        epochs,
        initial_epoch,
        validation_split,
        batch_size=batch_size,
        steps_per_epoch=steps_per_epoch,
        validation_steps=validation_steps,
        validation_batch_size=validation_batch_size,
    )
    checks.refuse_uncompiled(model)
    checks.refuse_what_cannot_be(model)
    if prefetch_rows:
        checks.refuse_to_prefetch_rows(model)
    if validation_split and validation_data is None:
        (x, y, sample_weight), validation_data = train_validation_split(
            (x, y, sample_weight), validation_split
        )
    steps = ScheduledSteps(model, prefetch_rows)
    batches, first_batch = inputs.training_batches(
        steps.coordinator,
        x,
        y,
        sample_weight,
        batch_size,
        shuffle,
        class_weight,
        steps_per_epoch,
        steps.largest_size(),
    )
    validation = None
    if validation_data is not None:
        validation = inputs.evaluation_batches(
            *tf.keras.utils.unpack_x_y_sample_weight(validation_data),
            validation_batch_size or batch_size,
            validation_steps,
            names=("validation_data", "validation_steps"),
        )
    build(model, first_batch, "train", batches.element_spec)
    checks.warn_of_constraints(model)
    replicas = getattr(model.optimizer, "total_num_replicas", None)
    if replicas is not None:
        checks.warn_of_replicas(replicas, num_tasks("worker"))
    with (
        listening(model, callbacks) as steps.notice,
        contextlib.closing(batches),
        fit_loop.closing(steps.coordinator, rounds_of(model.optimizer)),
        steps.counting(),
    ):
        listed = _callback_list(
            model, callbacks, verbose, batches.num_steps, epochs, add_history=True
        )

        def validate(epoch: int) -> dict[str, Any]:
            if validation is None or not _is_due(epoch, validation_freq):
                return {}
            results = fit_loop.test(steps, model, validation, listed)
            return {f"val_{name}": value for name, value in results.items()}

        try:
            fit_loop.train(
                steps,
                model,
                batches,
                listed,
                initial_epoch=initial_epoch,
                epochs=epochs,
                validate=validate,
            )
        finally:
            with contextlib.suppress(tf.errors.OpError):  # A server may be lost.
                batches.end_epochs()
    return model.history


@with_python_numbers
def evaluate(
    model: Any,
    x: Any = None,
    y: Any = None,
    batch_size: int | None = None,
    verbose: str | int = "auto",
    sample_weight: Any = None,
    steps: int | None = None,
    callbacks: Sequence[Any] | None = None,
    return_dict: bool = False,
) -> Any:
    """Evaluates a model as `Model.evaluate` does, also where that of Keras 3 cannot.

    See `fit`. The coordinator reads the data and sends each batch to one worker, so
    that each batch counts exactly once, whatever the number of workers.

    Args:
        model: a compiled model.
        x: a `tf.data.Dataset`, a function of a `tf.distribute.InputContext` that
            returns one, or anything else that Keras takes.
        y: targets, if `x` is arrays.
        batch_size: examples per batch if `x` is arrays, 32 by default.
        verbose: "auto", 0 (silent), 1 (progress bar) or 2 (one line).
        sample_weight: weights of examples, if `x` is arrays.
        steps: the number of batches, from the beginning; None for all.
        callbacks: instances of `tf.keras.callbacks.Callback`.
        return_dict: whether to return the results by name.

    Returns:
        The loss, or a list of it and the metrics; with `return_dict` a dict.

    Raises:
        ValueError: as for `fit`.
        Exception: the error of a step, the data or a callback.

    Example:
    ```python
    loss, accuracy = tfs.keras.evaluate(model, validation)
    by_name = tfs.keras.evaluate(model, validation, steps=100, return_dict=True)
    ```
    """
    if not is_scheduled(model):
        with _own_loop(model, x=x):
            return model.evaluate(
                x,
                y,
                batch_size=batch_size,
                verbose=verbose,
                sample_weight=sample_weight,
                steps=steps,
                callbacks=callbacks,
                return_dict=return_dict,
            )
    checks.refuse_wrong_numbers(verbose, batch_size=batch_size, steps=steps)
    checks.refuse_uncompiled(model)
    checks.refuse_what_cannot_be(model)
    batches = inputs.evaluation_batches(x, y, sample_weight, batch_size, steps)
    build(model, batches.first, "test", batches.element_spec)
    scheduled = ScheduledSteps(model)
    with fit_loop.closing(scheduled.coordinator, Rounds()), scheduled.counting():
        listed = _callback_list(model, callbacks, verbose, batches.num_steps)
        results = fit_loop.test(scheduled, model, batches, listed)
    return results if return_dict else trainer.in_order_of_metrics(model, results)


@with_python_numbers
def predict(
    model: Any,
    x: Any,
    batch_size: int | None = None,
    verbose: str | int = "auto",
    steps: int | None = None,
    callbacks: Sequence[Any] | None = None,
) -> Any:
    """Predicts as `Model.predict` does, also where that of Keras 3 cannot.

    See `fit`. The coordinator reads the data and sends each batch to one worker; the
    outputs come in the order of the data.

    Args:
        model: a model; it need not be compiled.
        x: a `tf.data.Dataset`, a function of a `tf.distribute.InputContext` that
            returns one, or anything else that Keras takes.
        batch_size: examples per batch if `x` is arrays, 32 by default.
        verbose: "auto", 0 (silent), 1 (progress bar) or 2 (one line).
        steps: the number of batches, from the beginning; None for all.
        callbacks: instances of `tf.keras.callbacks.Callback`.

    Returns:
        Arrays with the outputs for all examples, in the structure of the outputs. Where
        another size than that of the batch differs, it is a `tf.RaggedTensor`, as in
        Keras.

    Raises:
        ValueError: as for `fit`.
        Exception: the error of a step, the data or a callback.

    Example:
    ```python
    scores = tfs.keras.predict(model, dataset.map(lambda ids, clicked: ids))
    ```
    """
    if not is_scheduled(model):
        with _own_loop(model, x=x):
            return model.predict(
                x,
                batch_size=batch_size,
                verbose=verbose,
                steps=steps,
                callbacks=callbacks,
            )
    checks.refuse_wrong_numbers(verbose, batch_size=batch_size, steps=steps)
    checks.refuse_what_cannot_be(model)
    batches = inputs.evaluation_batches(x, None, None, batch_size, steps)
    build(model, batches.first, "predict", batches.element_spec)
    scheduled = ScheduledSteps(model)
    with fit_loop.closing(scheduled.coordinator, Rounds()):
        listed = _callback_list(model, callbacks, verbose, batches.num_steps)
        return fit_loop.predict(scheduled, model, batches, listed)


def _callback_list(
    model: Any,
    callbacks: Any,
    verbose: str | int,
    num_steps: int | None,
    epochs: int = 1,
    add_history: bool = False,
) -> Any:
    """Makes the list of callbacks that Keras calls, with those that `fit` adds."""
    if isinstance(callbacks, tf.keras.callbacks.CallbackList):
        return callbacks
    has_bar = has_progress_bar(verbose)
    callbacks = [*tf.nest.flatten(callbacks or [])]
    checks.refuse_tensorboard_without_its_package(callbacks)
    if add_history:
        callbacks.append(LossWarning())
        kind = tf.keras.callbacks.ProgbarLogger
        if has_bar and not any(isinstance(x, kind) for x in callbacks):
            callbacks.append(ProgressBar())
    if verbose != 0 and not has_bar:
        callbacks.append(ProgressLines())
    return tf.keras.callbacks.CallbackList(
        callbacks,
        add_history=add_history,
        add_progbar=has_bar,
        verbose=verbose,
        epochs=epochs,
        steps=num_steps,
        model=model,
    )


@contextlib.contextmanager
def _own_loop(model: Any, **data: Any) -> Iterator[None]:
    """Within this context a model's own methods are called, with data that they know.

    `model`: a model that is not under ParameterServerStrategy. `**data`: arguments with
    data, by name. Raises ValueError: the data is made by a function, which nobody would
    call; or the model was made before the strategy.
    """
    for name, value in data.items():
        if callable(value):
            raise ValueError(
                "A function of a tf.distribute.InputContext is for "
                "ParameterServerStrategy. Without it, give what it returns: "
                f"{name}=function(tf.distribute.InputContext()). Received: "
                f"{name}={value!r}"
            )
    checks.refuse_model_from_before(model)
    # Keras 3 keeps "auto", and fails with it in the loop.
    is_auto = compat.IS_KERAS_3 and model.steps_per_execution == "auto"
    if is_auto:
        model.steps_per_execution = 1
    try:
        yield
    finally:
        if is_auto:
            model.steps_per_execution = "auto"


def is_scheduled(model: Any) -> bool:
    """Returns whether the steps of a model are scheduled on workers."""
    return isinstance(model.distribute_strategy, tf.distribute.ParameterServerStrategy)


def _is_due(epoch: int, validation_freq: int | Sequence[int]) -> bool:
    """Returns whether to validate after an epoch; epochs count from 0."""
    if isinstance(validation_freq, int):
        return (epoch + 1) % validation_freq == 0
    return epoch + 1 in validation_freq
