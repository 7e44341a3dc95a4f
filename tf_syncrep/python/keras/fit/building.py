"""Makes the variables that a model lacks before its steps are scheduled."""

import contextlib
import functools
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tf_syncrep.python.keras import compat
from tf_syncrep.python.keras.compat import trainer
from tf_syncrep.python.keras.compat.tracing import (
    TRACING,
    as_keras_traces,
    as_scheduled,
    replaced,
    scratch_graph,
)
from tf_syncrep.python.keras.fit import checks
from tf_syncrep.python.keras.fit.step import inlined
from tf_syncrep.python.keras.parts import optimizers_of


def build(
    model: Any, first_batch: Callable[[], Any], kind: str, specs: Any = None
) -> None:
    """Makes the variables that a model lacks for a kind of step.

    `first_batch`: reads the batch to build it with, if that is needed. `kind`: "train",
    "test" or "predict"; "predict" needs only the layers.
    """
    step = f"{kind}_step"
    is_own = getattr(type(model), step) is not getattr(tf.keras.Model, step)
    if not is_own and type(model).call is tf.keras.Model.call:
        raise ValueError(
            f"A model without `call` needs a {step} of its own. "
            f"Received: model {model.name}, which has neither"
        )
    metrics_built = loss_built = kind == "predict"
    if kind != "predict":
        metrics_built = trainer.are_metrics_built(model)
        loss_built = trainer.is_loss_built(model)
    is_missing = not (
        metrics_built and loss_built and all(x.built for x in trainer.layers_of(model))
    )
    optimizer = model.optimizer if kind == "train" else None
    if is_own and kind == "train":
        is_missing |= not all(map(trainer.is_optimizer_built, optimizers_of(model)))
    # Legacy optimizers of Keras 2 make their variables only in a step.
    is_legacy = optimizer is not None and not hasattr(optimizer, "build")
    with model.distribute_strategy.scope():
        if is_legacy or (is_own and is_missing):

            def own_step(batch):
                # It may ask for its replica, which stock steps do not.
                with as_scheduled(model.distribute_strategy):
                    model.distribute_strategy.run(
                        lambda batch: getattr(model, step)(batch), args=(batch,)
                    )

            _trace_on_either(model, own_step, specs, first_batch)
        elif is_missing:
            # A test builds the same as a step of training, and has no gradients.
            stock = "predict_step" if kind == "predict" else "test_step"
            stock_step = getattr(tf.keras.Model, stock)
            stock_step = functools.partial(stock_step, model)
            _trace_on_either(model, stock_step, specs, first_batch)
        checks.refuse_variables_elsewhere(model)
        checks.warn_of_large_embeddings(model)
        if optimizer is not None and not is_legacy:
            _build(optimizer, model.trainable_variables)
        if kind == "train":
            checks.refuse_optimizers(model)


def _build(optimizer: Any, variables: Any) -> None:
    """Builds an optimizer once; those of Keras 2 do not check that themselves."""
    if not trainer.is_optimizer_built(optimizer):
        optimizer.build(variables)


def _trace_on_either(
    model: Any,
    step: Callable[[Any], Any],
    specs: Any,
    first_batch: Callable[[], Any],
) -> None:
    """Traces a step on specs, as Keras does, or, if a size is missing, on a batch.

    What a model is exported with are the shapes with which it was built.
    """
    if specs is not None:
        # It may be any error of the user's code; if it comes again, it is raised.
        with contextlib.suppress(Exception):
            return _trace(model, step, lambda: _placeholders(specs))
        trainer.forget_inputs_of_failed_builds(model)
    batch = first_batch()
    return _trace(model, step, lambda: batch)


def _placeholders(specs: Any) -> Any:
    """Returns symbolic tensors of these specs."""
    # Keras 3's adapters have optionals for None.
    specs = tf.nest.map_structure(
        lambda x: None if isinstance(x, tf.OptionalSpec) else x, specs
    )
    tensors = [
        x and tf.compat.v1.placeholder(x.dtype, x.shape)
        for x in tf.nest.flatten(specs, expand_composites=True)
    ]
    return tf.nest.pack_sequence_as(specs, tensors, expand_composites=True)


def _trace(
    model: Any, step: Callable[[Any], Any], make_batch: Callable[[], Any]
) -> None:
    """Traces a step, since it alone knows which layers it calls, and with what.

    The ops are never run, so that layers and seeds are as before. Layers and optimizers
    are built, and other variables are made, outside of their graph; optimizers do
    nothing else.
    """

    def create_outside(next_creator: Callable[..., Any], **kwargs: Any) -> Any:
        with tf.init_scope():
            return next_creator(**kwargs)

    functions: list[tuple[Any, str, Callable[..., Any]]] = [
        (layer, "build", _outside(layer.build))
        for layer in trainer.layers_of(model)
        # Layers of Keras 2 leave the function themselves.
        if compat.IS_KERAS_3 and not layer.built
    ]
    for optimizer in optimizers_of(model):
        functions.append((optimizer, *_building_only(optimizer)))
    with TRACING, scratch_graph(), contextlib.ExitStack() as stack:
        for owner, name, function in functions:
            stack.enter_context(replaced(owner, name, function))
        stack.enter_context(inlined(model))
        stack.enter_context(tf.variable_creator_scope(create_outside))
        batch = make_batch()
        as_keras_traces(step)(batch)


def _building_only(optimizer: Any) -> tuple[str, Callable[..., Any]]:
    """Returns the name of the method for gradients, and one that only builds."""
    build = _outside(functools.partial(_build, optimizer))

    def apply(grads, trainable_variables=()):
        build(list(trainable_variables))

    def apply_gradients(grads_and_vars, *args, **kwargs):
        build([variable for _, variable in grads_and_vars])
        return optimizer.iterations

    if compat.IS_KERAS_3:
        return "apply", apply
    return "apply_gradients", apply_gradients


def _outside(function: Callable[..., Any]) -> Callable[..., Any]:
    """Wraps a function so that it runs outside of the function that is traced."""

    @tf.autograph.experimental.do_not_convert
    @functools.wraps(function)
    def call(*args, **kwargs):
        with tf.init_scope():
            return function(*args, **kwargs)

    return call
