"""Keras optimizers in plain float64 NumPy, with all features of an update.

A gradient is an array or, if it is sparse, a pair of values and rows.
"""

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import adam_async_reference as reference
import keras_variants
import numpy as np
import rule_reference

Gradient = np.ndarray | tuple[np.ndarray, np.ndarray]


def mean(gradients: Sequence[Gradient]) -> Gradient:
    """The mean of the gradients of several batches; missing rows count as 0."""
    if isinstance(gradients[0], np.ndarray):
        return np.mean(gradients, axis=0)
    values, rows = zip(*gradients, strict=True)
    return np.concatenate(values) / len(gradients), np.concatenate(rows)


class AdamAsync:
    """The rule of tfs.keras.AdamAsync for one variable."""

    def __init__(self, var: np.ndarray):
        self._slots = reference.initial_state(var, 0.9, 0.999)

    def __call__(self, var, gradient, rate, step):
        del step  # the powers count the steps
        state = self._slots._replace(var=var)
        arguments = (*state, rate, 0.9, 0.999, 1e-7)
        if isinstance(gradient, tuple):
            self._slots = reference.adam_async_sparse(*arguments, *gradient)
        else:
            self._slots = reference.adam_async_dense(*arguments, gradient)
        return self._slots.var


class Adam:
    """The rule of tf.keras.optimizers.Adam, which moves all rows."""

    def __init__(self, var: np.ndarray):
        self._m, self._v = np.zeros_like(var), np.zeros_like(var)

    def __call__(self, var, gradient, rate, step):
        gradient = _dense(gradient, var)
        self._m = 0.9 * self._m + 0.1 * gradient
        self._v = 0.999 * self._v + 0.001 * gradient**2
        alpha = rate * np.sqrt(1 - 0.999**step) / (1 - 0.9**step)
        return var - alpha * self._m / (np.sqrt(self._v) + 1e-7)


class Momentum:
    """The rule of tf.keras.optimizers.SGD with a momentum of 0.5."""

    def __init__(self, var: np.ndarray):
        self._m = np.zeros_like(var)

    def __call__(self, var, gradient, rate, step):
        del step
        self._m = 0.5 * self._m - rate * _dense(gradient, var)
        return var + self._m


class Adagrad:
    """The rule of tf.keras.optimizers.Adagrad."""

    def __init__(self, var: np.ndarray):
        self._sum = np.full_like(var, 0.1)

    def __call__(self, var, gradient, rate, step):
        del step
        gradient = _dense(gradient, var)
        self._sum = self._sum + gradient**2
        return var - rate * gradient / np.sqrt(self._sum + 1e-7)


class Rule:
    """A rule of rule_reference for one variable; sparse gradients move named rows."""

    rule: ClassVar[str]
    slots: ClassVar[dict[str, float]]
    numbers: ClassVar[dict[str, float]]

    def __init__(self, var: np.ndarray):
        self._slots = {
            name: np.full(rule_reference.slot_shape(self.rule, var.shape), value)
            for name, value in self.slots.items()
        }

    def __call__(self, var, gradient, rate, step):
        del step
        numbers = {"lr": rate, **self.numbers}
        values, rows = gradient if isinstance(gradient, tuple) else (gradient, None)
        var, self._slots = rule_reference.apply(
            self.rule, var, self._slots, numbers, values, rows
        )
        return var


class LazyAdagrad(Rule):
    """The rule of tfs.keras.Adagrad."""

    rule = "adagrad"
    slots: ClassVar[dict[str, float]] = {"accumulator": 0.1}
    numbers: ClassVar[dict[str, float]] = {"epsilon": 1e-7}


class RowwiseAdagrad(Rule):
    """The rule of tfs.keras.RowwiseAdagrad."""

    rule = "rowwise_adagrad"
    slots: ClassVar[dict[str, float]] = {"accumulator": 0.0}
    numbers: ClassVar[dict[str, float]] = {"epsilon": 1e-8}


class LazyFTRL(Rule):
    """The rule of tfs.keras.FTRL, with `FTRL_OPTIONS`."""

    rule = "ftrl"
    slots: ClassVar[dict[str, float]] = {"accumulator": 0.1, "linear": 0.0}
    numbers: ClassVar[dict[str, float]] = {
        "lr_power": -0.75,
        "l1": 0.125,
        "l2": 0.25,
        "l2_shrinkage": 0.0625,
        "beta": 0.5,
    }


FTRL_OPTIONS = {
    "learning_rate_power": -0.75,
    "l1_regularization_strength": 0.125,
    "l2_regularization_strength": 0.25,
    "l2_shrinkage_regularization_strength": 0.0625,
    "beta": 0.5,
}


class LazySGD(Rule):
    """The rule of tfs.keras.SGD."""

    rule = "sgd"
    slots: ClassVar[dict[str, float]] = {}
    numbers: ClassVar[dict[str, float]] = {}


class LazyMomentum(Rule):
    """The rule of tfs.keras.SGD with a momentum of 0.5."""

    rule = "momentum"
    slots: ClassVar[dict[str, float]] = {"momentum": 0.0}
    numbers: ClassVar[dict[str, float]] = {"momentum": 0.5}


class LazyNesterov(LazyMomentum):
    """The rule of tfs.keras.SGD with a momentum of 0.5 and nesterov."""

    rule = "nesterov"


class Lion(LazyMomentum):
    """The rule of `LionOfMine`, a LazyOptimizer without a kernel."""

    rule = "lion"


class Twin:
    """An optimizer and its variables.

    Attributes:
        values: the variables.
        averages: their moving averages.
        steps: how many updates were made.
    """

    def __init__(
        self,
        rule: type | Sequence[type],
        values: Sequence[Any],
        rate: Callable[[int], float],
        *,
        excluded: Sequence[int] = (),
        **options: Any,
    ):
        """Begins a training.

        Args:
            rule: a class of this module, or one for each variable.
            values: the initial values of the variables.
            rate: the learning rate of an update; updates are counted from 0.
            excluded: the places of variables that weight decay leaves alone.
            **options: arguments of `tf.keras.optimizers.Optimizer`.
        """
        self.values = [np.array(x, np.float64) for x in values]
        self.averages = [x.copy() for x in self.values]
        self.steps = 0
        rules = [rule] * len(self.values) if isinstance(rule, type) else rule
        self._rules = [make(x) for make, x in zip(rules, self.values, strict=True)]
        self._rate, self._excluded, self._options = rate, excluded, options

    def apply(self, gradients: dict[int, Gradient]) -> None:
        """Makes an update; the places of variables name the gradients."""
        rate = self._rate(self.steps)
        clipped = _clip([sum_equal_rows(g) for g in gradients.values()], self._options)
        for i, gradient in zip(gradients, clipped, strict=True):
            if i not in self._excluded:
                decay = rate * (self._options.get("weight_decay") or 0)
                self.values[i] = self.values[i] * (1 - decay)
            rule = self._rules[i]
            self.values[i] = rule(self.values[i], gradient, rate, self.steps + 1)
        if self._options.get("use_ema"):
            self._average()
        self.steps += 1

    def _average(self) -> None:
        """Keras 3 begins with the first updated values, Keras 2 with the first."""
        is_first = self.steps == 0 and keras_variants.IS_KERAS_3
        kept = 0.0 if is_first else self._options["ema_momentum"]
        every = self._options.get("ema_overwrite_frequency")
        for i, value in enumerate(self.values):
            self.averages[i] = kept * self.averages[i] + (1 - kept) * value
            if every and (self.steps + 1) % every == 0:
                self.values[i] = self.averages[i].copy()


def _dense(gradient: Gradient, var: np.ndarray) -> np.ndarray:
    if isinstance(gradient, np.ndarray):
        return gradient
    total = np.zeros_like(var)
    np.add.at(total, gradient[1], gradient[0])
    return total


def sum_equal_rows(gradient: Gradient) -> Gradient:
    """The same gradient with each row once, in ascending order."""
    if isinstance(gradient, np.ndarray):
        return gradient
    rows, places = np.unique(gradient[1], return_inverse=True)
    values = np.zeros((len(rows), *gradient[0].shape[1:]))
    np.add.at(values, places, gradient[0])
    return values, rows


def _clip(gradients: list[Gradient], options: dict[str, Any]) -> list[Gradient]:
    """Clips gradients whose rows are distinct."""
    values = [g[0] if isinstance(g, tuple) else g for g in gradients]
    if norm := options.get("clipnorm"):
        values = [x * min(1, norm / np.linalg.norm(x)) for x in values]
    if limit := options.get("clipvalue"):
        values = [np.clip(x, -limit, limit) for x in values]
    if norm := options.get("global_clipnorm"):
        total = np.sqrt(sum(np.sum(x**2) for x in values))
        values = [x * min(1, norm / total) for x in values]
    return [
        (x, g[1]) if isinstance(g, tuple) else x
        for x, g in zip(values, gradients, strict=True)
    ]
