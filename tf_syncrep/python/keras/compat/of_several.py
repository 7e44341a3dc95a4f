"""What an optimizer that consists of several has in every Keras."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tf_syncrep.python.keras.compat.native import native
from tf_syncrep.python.keras.compat.of_inner import Around
from tf_syncrep.python.keras.compat.rows import sum_equal_rows


class OfSeveral(Around):
    """Gives each of its optimizers the gradients of what that trains.

    A subclass has `optimizer`, which trains whatever no other does, and overrides
    `_make_others`.
    """

    optimizer: Any
    global_clipnorm: Any

    def _make_others(self, variables: Sequence[Any]) -> Sequence[Any]:
        """Makes the others; called once, in the strategy's scope; to be overridden.

        Returns:
            For each variable the optimizer that trains it, or None for `optimizer`.
        """
        raise NotImplementedError

    def all_optimizers(self) -> list[Any]:
        """The optimizers: `optimizer`, and the others once they are made."""
        return [self.optimizer, *(getattr(self, name) for name in self._names)]

    def optimizer_of(self, variable: Any) -> Any:
        """The optimizer that trains a variable, once all are built."""
        return vars(self)["_optimizer_of"].get(id(native(variable)), self.optimizer)

    @property
    def _names(self) -> list[str]:
        """The attributes in which the others are, by which files name them."""
        number = vars(self).get("_num_others", 0)
        return [f"_table_optimizer_{i}" for i in range(number)]

    @property
    def _leader(self) -> Any:
        return self.optimizer

    def _build_all(self, variables: Sequence[Any]) -> None:
        """Makes all optimizers, and builds them."""
        strategy = self._distribution_strategy  # pyright: ignore
        if tf.distribute.has_strategy():
            self._build_in_scope(variables)
        else:
            with strategy.scope():
                self._build_in_scope(variables)

    def _build_in_scope(self, variables: Sequence[Any]) -> None:
        of_each = [x or self.optimizer for x in self._make_others(variables)]
        others = {id(x): x for x in of_each if x is not self.optimizer}
        # Not attributes by assignment, which Keras would track.
        self.__dict__["_num_others"] = len(others)
        for name, other in zip(self._names, others.values(), strict=True):
            setattr(self, name, other)
        self.__dict__["_optimizer_of"] = {
            id(native(variable)): x
            for variable, x in zip(variables, of_each, strict=True)
        }
        for optimizer, own in self._divided(variables):
            optimizer.build(own)

    def _divided(self, variables: Sequence[Any]) -> list[tuple[Any, list[Any]]]:
        """Each optimizer with those of some variables that it trains, in their order.

        `optimizer` also gets those that it does not know, and has them for errors.
        """
        found: dict[int, list[Any]] = {id(x): [] for x in self.all_optimizers()}
        for variable in variables:
            found[id(self.optimizer_of(variable))].append(variable)
        return [(x, found[id(x)]) for x in self.all_optimizers()]

    def _parts(
        self, gradients: Sequence[Any], variables: Sequence[Any]
    ) -> list[tuple[Any, list[Any], list[Any]]]:
        """Each optimizer with its gradients, clipped, and their variables.

        All gradients of one that has nothing to do are None.

        Raises:
            ValueError: a step has several replicas.
        """
        strategy = tf.distribute.get_strategy()
        if strategy.num_replicas_in_sync > 1:
            # Each optimizer would reduce its own gradients over the replicas, and
            # TensorFlow mixes up what is reduced at the same time.
            raise ValueError(
                f"{type(self).__name__} trains where a step has one replica: in one "
                "process without a strategy, or under ParameterServerStrategy. "
                f"Received: {type(strategy).__name__} with "
                f"{strategy.num_replicas_in_sync} replicas"
            )
        if self.global_clipnorm:
            gradients = tf.clip_by_global_norm(
                sum_equal_rows(gradients), self.global_clipnorm
            )[0]
        gradient_of = {
            id(native(variable)): gradient
            for gradient, variable in zip(gradients, variables, strict=True)
        }
        return [
            (optimizer, [gradient_of[id(native(v))] for v in own], own)
            for optimizer, own in self._divided(variables)
        ]

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
            optimizer.finalize_variable_values(own)
