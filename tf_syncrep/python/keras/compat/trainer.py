"""What a loop around a Keras model has to know and only private names tell.

Keras 3 has more public names for this than Keras 2 (and tf_keras).
"""

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import tensorflow as tf

from tf_syncrep.python.base.arguments import as_python
from tf_syncrep.python.keras.compat.native import IS_KERAS_3

# The attribute in which a model keeps the functions that workers run.
KEPT = "_tf_syncrep_kept"
# Private in Keras 2, the last two: the attributes in which a model keeps functions.
_FUNCTIONS = ("train_function", "test_function", "predict_function", KEPT)
if not IS_KERAS_3:
    _FUNCTIONS += ("train_tf_function", "_shard_test_function")


def is_compiled(model: Any) -> bool:
    """Returns whether `compile` was called; private in Keras 2."""
    return model.compiled if IS_KERAS_3 else model._is_compiled


def steps_per_execution(model: Any) -> int | str:
    """Returns how many steps at once the model was compiled to make, or "auto".

    Private in Keras 2, where the number is in a variable. Whether it is chosen
    automatically is public there, as `autotune_steps_per_execution`.
    """
    if IS_KERAS_3:
        return as_python(model.steps_per_execution)
    if getattr(model, "autotune_steps_per_execution", False):
        return "auto"
    return 1 if model._steps_per_execution is None else int(model._steps_per_execution)


def layers_of(model: Any) -> list[Any]:
    """Returns a model and all layers in it, also those in attributes of other layers.

    Private: the public `layers` has only those of the outermost level.
    """
    return list(model._flatten_layers())


def own_variables(layer: Any) -> list[Any]:
    """Returns a layer's own variables, in the order in which files number them.

    Private: the public lists have those of the layers within it, too.
    """
    if IS_KERAS_3:
        return [*layer._trainable_variables, *layer._non_trainable_variables]
    return [*layer._trainable_weights, *layer._non_trainable_weights]


def forget_inputs_of_failed_builds(model: Any) -> None:
    """Lets each `Sequential` that is not built be built for another shape.

    Private in Keras 3: `build` puts an input layer in front, and leaves it if it fails.
    One that the user has put there builds the model at once.
    """
    if IS_KERAS_3:
        for layer in layers_of(model):
            if isinstance(layer, tf.keras.Sequential) and not layer.built:
                layer._layers = layer.layers  # without the input layer


@contextlib.contextmanager
def functions_set_aside(model: Any) -> Iterator[None]:
    """Makes a model trace its steps anew, and forget these functions in the end."""
    before = {name: getattr(model, name, None) for name in _FUNCTIONS}
    compiled = made_by_compile(model)
    for name in before:
        setattr(model, name, None)
    try:
        yield
    finally:
        # Those of before are not those of a model that was compiled meanwhile.
        is_same = made_by_compile(model) is compiled
        for name, function in before.items():
            setattr(model, name, function if is_same else None)


def is_loss_built(model: Any) -> bool:
    """Returns whether the losses of all outputs have the metrics that report them.

    Private: they are made at the first call, and nothing public tells whether there was
    one.
    """
    loss = getattr(model, "_compile_loss" if IS_KERAS_3 else "compiled_loss", None)
    return loss is None or bool(loss.built)


def made_by_compile(model: Any) -> Any:
    """Returns an object that each call of `compile` makes anew; None before the first.

    Private in Keras 3: a compiled model has no public part that every call replaces.
    """
    return getattr(model, "_loss_tracker" if IS_KERAS_3 else "compiled_loss", None)


def are_metrics_built(model: Any) -> bool:
    """Returns whether all metrics have their variables.

    Private in Keras 2: those from `compile` are made at the first call.
    """
    if IS_KERAS_3:
        return all(getattr(metric, "built", True) for metric in model.metrics)
    return model.compiled_metrics is None or bool(model.compiled_metrics.built)


def is_optimizer_built(optimizer: Any) -> bool:
    """Returns whether an optimizer has its variables; private in Keras 2."""
    return getattr(optimizer, "built" if IS_KERAS_3 else "_built", False)


def seed_generators(model: Any) -> Iterator[Any]:
    """Yields the seed generators of all layers, for example of Dropout.

    Private: layers show only the variables in them. Keras 2 has no such objects; its
    layers have those that `random_states` finds.
    """
    if IS_KERAS_3:
        for layer in layers_of(model):
            yield from getattr(layer, "_seed_generators", [])


def random_states(model: Any) -> Iterator[tuple[Any, tf.Variable]]:
    """Yields layers with states of generators that are not among their variables.

    Private in Keras 2, which does not save them. In Keras 3 they are variables.
    """
    if not IS_KERAS_3:
        for layer in layers_of(model):
            random = getattr(layer, "_random_generator", None)
            generator = getattr(random, "_generator", None)
            if generator is not None:
                yield layer, generator.state


def count_steps(model: Any, kind: str) -> None:
    """Counts a step, in a function that workers run.

    Private: Keras 2 counts in variables of the model, from which its TensorBoard
    callback takes the numbers of steps. Keras 3 counts in callbacks.
    """
    if not IS_KERAS_3:
        getattr(model, f"_{kind}_counter").assign_add(1)


def in_order_of_metrics(model: Any, logs: Mapping[str, Any]) -> Any:
    """Returns results in the order of `Model.evaluate`, and a single one by itself.

    Private in Keras 3: with several outputs, public names do not tell the order.
    """
    if IS_KERAS_3:
        return model._flatten_metrics_in_order(logs)
    names = model.metrics_names
    results = [logs[name] for name in names if name in logs]
    results += [logs[name] for name in sorted(logs) if name not in names]
    return results[0] if len(results) == 1 else results


def each_callback(callbacks: Any) -> list[Any]:
    """Returns the callbacks of `fit`: one, several, those of a list, or none."""
    is_list = isinstance(callbacks, tf.keras.callbacks.CallbackList)
    return callbacks.callbacks if is_list else tf.nest.flatten(callbacks or [])


def with_callbacks(
    model: Any, callbacks: Any, before: Sequence[Any] = (), behind: Sequence[Any] = ()
) -> Any:
    """Adds callbacks, if there are any to add, to those of `fit`.

    A CallbackList notes which hooks its callbacks have when it is made, so that one
    that is added later would not be called, and another one is made.
    """
    if not (before or behind):
        return callbacks
    every = [*before, *each_callback(callbacks), *behind]
    if not isinstance(callbacks, tf.keras.callbacks.CallbackList):
        return every
    params = getattr(callbacks, "params", None) or {}
    return tf.keras.callbacks.CallbackList(every, model=model, **params)
