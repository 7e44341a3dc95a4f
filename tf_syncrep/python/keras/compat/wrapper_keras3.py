"""The base class of optimizers around another one, in Keras 3."""

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tf_syncrep.python.keras.compat.keras3 import one_for_each
from tf_syncrep.python.keras.compat.lifting import outside_of_functions
from tf_syncrep.python.keras.compat.of_inner import OfInner, TakenFromInner


class WrapperOptimizer(TakenFromInner, tf.keras.optimizers.Optimizer):
    """Passes gradients to a subclass, and all else to the inner optimizer.

    See the package's documentation for what subclasses override.
    """

    loss_scale_factor = OfInner()

    def __init__(self, inner_optimizer: Any, name: str):
        # The base class requires a rate, which nobody sees.
        super().__init__(learning_rate=0.0, name=name)
        self.inner_optimizer = inner_optimizer
        # Private: the counter that `iterations`, schedules and checkpoints use.
        self._iterations = inner_optimizer._iterations

    def _update(self, gradients: Sequence[Any], variables: Sequence[Any]) -> None:
        """Makes an update of the inner optimizer, in replica context."""
        self.inner_optimizer.apply(gradients, variables)

    @property
    def variables(self):
        """The inner optimizer's variables."""
        return self.inner_optimizer.variables

    def scale_loss(self, loss):
        """Scales a loss as the inner optimizer does."""
        return self.inner_optimizer.scale_loss(loss)

    def build(self, variables):
        """Makes the inner optimizer's variables, once."""
        if self.built:
            return
        if not self.inner_optimizer.built:
            outside_of_functions(lambda: self.inner_optimizer.build(variables))
        # The base class is not called, since it would make averages of its own.
        self.built = True

    def apply(self, grads, trainable_variables=None):
        """Hands in gradients, one for each variable.

        Args:
            grads: gradients; None for a variable that has none.
            trainable_variables: the variables; None for those with which the optimizer
                was built.

        Raises:
            ValueError: there is no gradient at all, or not one for each variable.
        """
        grads, variables = one_for_each(
            self, grads, trainable_variables, built=self.inner_optimizer
        )
        # Private: the base class's own check, with its warning.
        self._receive(*self._filter_empty_gradients(grads, variables))
