"""Keras optimizers in plain float64 NumPy, with all features of an update.

A gradient is an array or, if it is sparse, a pair of values and rows.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import adam_async_reference as reference
import keras_variants
import numpy as np
import rule_numbers
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

    def __init__(self, var: np.ndarray, **options: Any):
        """Begins; the options are those of steps with sparse gradients."""
        self._slots, self._options = reference.initial_state(var, 0.9, 0.999), options

    @property
    def slots(self) -> dict[str, np.ndarray]:
        names = ("m", "v", "beta_1_power", "beta_2_power")
        return dict(zip(names, self._slots[1:], strict=True))

    def __call__(self, var, gradient, rate, step):
        del step  # the powers count the steps
        state = self._slots._replace(var=var)
        arguments = (*state, rate, 0.9, 0.999, 1e-7)
        if isinstance(gradient, tuple):
            self._slots = reference.adam_async_sparse(
                *arguments, *gradient, **self._options
            )
        else:
            self._slots = reference.adam_async_dense(*arguments, gradient)
        return self._slots.var


class Rule:
    """A rule of rule_reference for one variable."""

    def __init__(
        self,
        rule: str,
        slots: dict[str, float],
        numbers: dict[str, float],
        var: np.ndarray,
    ):
        """Begins with slots of these values; the numbers are all but the rate."""
        self._rule, self._numbers = rule, numbers
        shape = rule_reference.slot_shape(rule, var.shape)
        self.slots = {name: np.full(shape, value) for name, value in slots.items()}

    def __call__(self, var, gradient, rate, step):
        del step
        numbers = {"lr": rate, **self._numbers}
        values, rows = gradient if isinstance(gradient, tuple) else (gradient, None)
        var, self.slots = rule_reference.apply(
            self._rule, var, self.slots, numbers, values, rows
        )
        return var


_FTRL_NUMBERS = {"lr_power": -0.75, **rule_numbers.FTRL_NUMBERS}
FTRL_OPTIONS = rule_numbers.ftrl_options(_FTRL_NUMBERS)
# A momentum that begins with 0, and how much of it is kept.
_MOMENTUM = ({"momentum": 0.0}, {"momentum": 0.5})
# Optimizers of tfs.keras: FTRL with `FTRL_OPTIONS`, SGD without momentum and with 0.5.
LazyAdagrad = functools.partial(
    Rule, "adagrad", {"accumulator": 0.1}, {"epsilon": 1e-7}
)
RowwiseAdagrad = functools.partial(
    Rule, "rowwise_adagrad", {"accumulator": 0.0}, {"epsilon": 1e-8}
)
LazyFTRL = functools.partial(
    Rule, "ftrl", {"accumulator": 0.1, "linear": 0.0}, _FTRL_NUMBERS
)
LazySGD = functools.partial(Rule, "sgd", {}, {})
LazyMomentum = functools.partial(Rule, "momentum", *_MOMENTUM)
LazyNesterov = functools.partial(Rule, "nesterov", *_MOMENTUM)
# `LionOfMine`, a LazyOptimizer without a kernel.
Lion = functools.partial(Rule, "lion", *_MOMENTUM)


class Twin:
    """An optimizer and its variables."""

    def __init__(
        self,
        rule: Callable[..., Any] | Sequence[Callable[..., Any]],
        values: Sequence[Any],
        rate: Callable[[int], float],
        *,
        excluded: Sequence[int] = (),
        **options: Any,
    ):
        """Begins a training.

        `rate`: the learning rate of an update; updates are counted from 0.
        """
        self.values = [np.array(x, np.float64) for x in values]
        self.averages = [x.copy() for x in self.values]
        self.steps = 0
        rules = rule if isinstance(rule, Sequence) else [rule] * len(self.values)
        self.rules = [make(x) for make, x in zip(rules, self.values, strict=True)]
        self._rate, self._excluded, self._options = rate, excluded, options

    def apply(self, gradients: dict[int, Gradient]) -> None:
        """Makes an update; the places of variables name the gradients."""
        rate = self._rate(self.steps)
        clipped = _clip([sum_equal_rows(g) for g in gradients.values()], self._options)
        for i, gradient in zip(gradients, clipped, strict=True):
            if i not in self._excluded:
                decay = rate * (self._options.get("weight_decay") or 0)
                self.values[i] = self.values[i] * (1 - decay)
            rule = self.rules[i]
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
