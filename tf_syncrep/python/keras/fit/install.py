"""Makes a model's own fit, evaluate and predict call ours where they cannot run."""

import functools
import inspect
from collections.abc import Callable
from typing import Any

import tensorflow as tf
from absl import logging

from tf_syncrep.python.keras import compat
from tf_syncrep.python.keras.checkpoint.checkpoint import with_ends
from tf_syncrep.python.keras.compat.position import handing_over
from tf_syncrep.python.keras.fit import api, checks
from tf_syncrep.python.keras.fit.notice import listening
from tf_syncrep.python.keras.sync_replicas.rounds_optimizer import alone

__all__ = ["install_fit", "uninstall_fit"]

_OURS: dict[str, Callable[..., Any]] = {
    "fit": api.fit,
    "evaluate": api.evaluate,
    "predict": api.predict,
}
# Arguments of Keras 2 that concern threads of its own, which read a Sequence.
_OF_THREADS = ("max_queue_size", "workers", "use_multiprocessing")
_is_installed = False


def install_fit() -> None:
    """Makes `model.fit` call `tfs.keras.fit` under ParameterServerStrategy.

    It does the same for `model.evaluate` and `model.predict`. A script that calls them
    on models made in the scope of a `tf.distribute.ParameterServerStrategy` then runs
    as it is, with Keras 3, tf_keras and Keras 2. Nothing changes for models made
    elsewhere; but the coordinator of a cluster refuses to `fit` such a model, which
    would train there alone. A second call changes nothing; `uninstall_fit` undoes it. A
    class that has a `fit` of its own keeps it.

    Example:
    ```python
    tfs.keras.install_fit()
    with strategy.scope():  # a tf.distribute.ParameterServerStrategy
        model = build_model()
        model.compile(tfs.keras.AdamAsync(1e-3), loss="binary_crossentropy")
    model.fit(dataset, epochs=3, steps_per_epoch=1000)
    ```
    """
    global _is_installed
    _is_installed = True


def uninstall_fit() -> None:
    """Undoes what `install_fit` did; without `install_fit` it does nothing.

    Example:
    ```python
    tfs.keras.install_fit()
    try:
        model.fit(dataset, epochs=3, steps_per_epoch=1000)
    finally:
        tfs.keras.uninstall_fit()
    ```
    """
    global _is_installed
    _is_installed = False


def stand_in_front() -> None:
    """Replaces the methods of `tf.keras.Model`, once, by those that look at the model.

    Where Keras' own `fit` runs, it then leaves no gradients in an optimizer that
    collects them, and writes the last checkpoint after all callbacks, as ours does.
    Where that of Keras 3 cannot run, the error mentions `install_fit`.
    """
    for name, ours in _OURS.items():
        stock = getattr(tf.keras.Model, name)
        setattr(tf.keras.Model, name, _in_front_of(stock, ours))


def _in_front_of(stock: Callable[..., Any], ours: Callable[..., Any]) -> Any:
    @functools.wraps(stock)
    def method(self, *args, **kwargs):
        if not api.is_scheduled(self):
            if ours is not api.fit:
                return stock(self, *args, **kwargs)
            if _is_installed:
                checks.refuse_model_outside_of_scope(self)
            given = inspect.signature(stock).bind(self, *args, **kwargs)
            if callbacks := given.arguments.get("callbacks"):
                given.arguments["callbacks"] = with_ends(self, callbacks)
            with listening(self, callbacks), handing_over(self), alone(self):
                return stock(*given.args, **given.kwargs)
        if _is_installed:
            return ours(self, **_by_name(stock, (self, *args), kwargs))
        if not compat.IS_KERAS_3:
            return stock(self, *args, **kwargs)
        raise RuntimeError(
            f"Model.{stock.__name__} of Keras 3 does not run under "
            "ParameterServerStrategy. Call tfs.keras.install_fit() before it, once, or "
            f"tfs.keras.{stock.__name__}(model, ...) instead."
        )

    return method


def _by_name(stock: Callable[..., Any], args: Any, kwargs: Any) -> dict[str, Any]:
    """Returns the arguments of a call by name, since ours has others behind them."""
    signature = inspect.signature(stock)
    known = {name: x for name, x in kwargs.items() if name in signature.parameters}
    given = dict(signature.bind(*args, **known).arguments)
    given.pop("self")
    for name in _OF_THREADS:
        if name in given:
            logging.warning(
                "Model.%s: %s=%r has no effect under ParameterServerStrategy.",
                stock.__name__,
                name,
                given.pop(name),
            )
    return {**given, **{name: x for name, x in kwargs.items() if name not in known}}
