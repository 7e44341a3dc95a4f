"""The base class of an optimizer that consists of several, in Keras 3."""

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tf_syncrep.python.keras.compat.keras3 import divisible, one_for_each
from tf_syncrep.python.keras.compat.lifting import outside_of_functions
from tf_syncrep.python.keras.compat.of_several import OfSeveral


class SeveralOptimizers(OfSeveral, tf.keras.optimizers.Optimizer):
    """Hands the gradients of a batch to the optimizers of their variables.

    See the package's documentation for what subclasses override.
    """

    def __init__(
        self,
        optimizer: Any,
        name: str,
        global_clipnorm: float | None,
        loss_scale_factor: float | None,
    ):
        # The base class wants a rate; nobody sees it.
        super().__init__(
            learning_rate=0.0,
            name=name,
            global_clipnorm=global_clipnorm,
            loss_scale_factor=loss_scale_factor,
        )
        self.optimizer = optimizer
        # Private: the counter that `iterations`, schedules and checkpoints look at.
        self._iterations = optimizer._iterations

    @property
    def variables(self):
        """The variables of all optimizers."""
        return [v for optimizer in self.all_optimizers() for v in optimizer.variables]

    def build(self, variables: Sequence[Any]) -> None:
        """Makes the variables of all optimizers, once."""
        if self.built:
            return
        variables = list(variables)
        outside_of_functions(lambda: self._build_all(variables))
        # Private: what `apply` takes if it is given no variables. The base class would
        # make averages of its own, and an assignment take the variables for them.
        self.__dict__["_trainable_variables"] = variables
        self.built = True

    def apply(self, grads, trainable_variables=None):
        """Applies gradients, one for each variable.

        Args:
            grads: gradients; None for a variable that has none.
            trainable_variables: the variables; None for those the optimizer was
                built with.

        Raises:
            ValueError: no gradient at all, or a number of gradients that is not that
                of the variables.
        """
        grads, variables = one_for_each(self, grads, trainable_variables, built=self)
        if not grads:
            return
        # Private: the base class's own check.
        if all(gradient is None for gradient in grads):
            self._filter_empty_gradients(grads, variables)
        if self.loss_scale_factor is not None:
            scale = self.loss_scale_factor
            grads = [g if g is None else divisible(g) / scale for g in grads]
        for optimizer, gradients, own in self._parts(grads, variables):
            if any(gradient is not None for gradient in gradients):
                optimizer.apply(gradients, own)
            else:
                # Private: as `apply` of the base class counts.
                optimizer._iterations.assign_add(1)
