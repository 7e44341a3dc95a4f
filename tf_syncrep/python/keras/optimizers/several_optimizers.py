"""The base class of an optimizer that consists of several."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tf_syncrep.python.keras import compat
from tf_syncrep.python.keras.optimizers.distinct_rows import sum_equal_rows
from tf_syncrep.python.keras.optimizers.outer_optimizer import OuterOptimizer, update


class SeveralOptimizers(OuterOptimizer):
    """Gives each of its optimizers the gradients of the variables that it trains.

    A subclass overrides `_make_others`. All optimizers count every step, and apply
    their gradients after those of all were clipped by `global_clipnorm`.

    Attributes:
        optimizer: it trains all variables that no other one trains.
        loss_scale_factor: in Keras 3, the number by which all gradients are divided.
    """

    def __init__(
        self,
        optimizer: Any,
        name: str,
        global_clipnorm: float | None,
        loss_scale_factor: float | None,
    ):
        if loss_scale_factor is not None and not compat.IS_KERAS_3:
            raise ValueError(
                "`loss_scale_factor` must be None: Keras 2 has LossScaleOptimizer. "
                f"Received: loss_scale_factor={loss_scale_factor}"
            )
        super().__init__(optimizer, name, global_clipnorm=global_clipnorm)
        self.loss_scale_factor = loss_scale_factor
        self.optimizer = optimizer
        self._strategy = tf.distribute.get_strategy()

    def _make_others(self, variables: Sequence[Any]) -> Sequence[Any]:
        """Makes the others; called once, in the strategy's scope; to be overridden.

        Returns for each variable the optimizer that trains it, or None for `optimizer`.
        """
        raise NotImplementedError

    def all_optimizers(self) -> list[Any]:
        """Returns `optimizer`, and the others once they are made."""
        return [self.optimizer, *(getattr(self, name) for name in self._names)]

    def optimizer_of(self, variable: Any) -> Any:
        """Returns the optimizer that trains a variable, once all are built."""
        return vars(self)["_optimizer_of"].get(
            id(compat.native(variable)), self.optimizer
        )

    @property
    def _names(self) -> list[str]:
        """The attributes that hold the others; files know the others by them."""
        number = vars(self).get("_num_others", 0)
        return [f"_table_optimizer_{i}" for i in range(number)]

    def _optimizers(self) -> list[Any]:
        return self.all_optimizers()

    def _build_inner(self, variables: Sequence[Any]) -> None:
        if tf.distribute.has_strategy():
            self._build_in_scope(variables)
        else:
            with self._strategy.scope():
                self._build_in_scope(variables)

    def _build_in_scope(self, variables: Sequence[Any]) -> None:
        of_each = [x or self.optimizer for x in self._make_others(variables)]
        others = {id(x): x for x in of_each if x is not self.optimizer}
        # Keras would track assigned attributes.
        self.__dict__["_num_others"] = len(others)
        for name, other in zip(self._names, others.values(), strict=True):
            setattr(self, name, other)
        self.__dict__["_optimizer_of"] = {
            id(compat.native(variable)): x
            for variable, x in zip(variables, of_each, strict=True)
        }
        for optimizer, own in self._divided(variables):
            optimizer.build(own)

    def _divided(self, variables: Sequence[Any]) -> list[tuple[Any, list[Any]]]:
        """Returns each optimizer with the variables that it trains, in their order.

        `optimizer` also gets variables that nobody knows, and raises the error.
        """
        found: dict[int, list[Any]] = {id(x): [] for x in self.all_optimizers()}
        for variable in variables:
            found[id(self.optimizer_of(variable))].append(variable)
        return [(x, found[id(x)]) for x in self.all_optimizers()]

    def _receive(self, gradients: Sequence[Any], variables: Sequence[Any]) -> None:
        """Makes an update of each optimizer, or counts a step without a gradient.

        Raises ValueError: a step has several replicas.
        """
        strategy = tf.distribute.get_strategy()
        if strategy.num_replicas_in_sync > 1:
            # Each optimizer would reduce its own gradients over the replicas, and
            # TensorFlow mixes up tensors that are reduced at the same time.
            raise ValueError(
                f"{type(self).__name__} trains where a step has one replica: in one "
                "process without a strategy, or under ParameterServerStrategy. "
                f"Received: {type(strategy).__name__} with "
                f"{strategy.num_replicas_in_sync} replicas"
            )
        if self.loss_scale_factor is not None:
            gradients = [_divide(x, self.loss_scale_factor) for x in gradients]
        if self.global_clipnorm:
            gradients = tf.clip_by_global_norm(
                sum_equal_rows(gradients), self.global_clipnorm
            )[0]
        gradient_of = {
            id(compat.native(variable)): gradient
            for gradient, variable in zip(gradients, variables, strict=True)
        }
        for optimizer, own in self._divided(variables):
            if own:
                own_gradients = [gradient_of[id(compat.native(v))] for v in own]
                update(optimizer, own_gradients, own)
            else:
                counter = compat.native(optimizer.iterations)
                counter.assign_add(1, read_value=False)

    def load_own_variables(self, store: Any) -> None:
        """Loads nothing: the state of each optimizer is loaded as its own."""

    def set_weights(self, weights: Sequence[Any]) -> None:
        """Sets the variables of all optimizers.

        Args:
            weights: arrays, in the order of `variables`.
        """
        weights = list(weights)
        for optimizer in self.all_optimizers():
            number = len(list(optimizer.variables))
            optimizer.set_weights(weights[:number])
            weights = weights[number:]

    def finalize_variable_values(self, var_list: Sequence[Any]) -> None:
        """Does what each optimizer does at the end of a training."""
        for optimizer, own in self._divided(list(var_list)):
            compat.finalize_variable_values(optimizer, own)


def _divide(gradient: Any, divisor: float) -> Any:
    if isinstance(gradient, tf.IndexedSlices):
        values = gradient.values / divisor
        return tf.IndexedSlices(values, gradient.indices, gradient.dense_shape)
    return gradient / divisor
