"""The base class of optimizers around others, in Keras 3."""

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tf_syncrep.python.keras.compat.lifting import outside_of_functions


class ReceivingOptimizer(tf.keras.optimizers.Optimizer):
    """Passes gradients to a subclass, whose inner optimizers make the updates.

    See the package's documentation for what subclasses override.
    """

    def __init__(self, leader: Any, name: str, **kwargs: Any):
        # The base class requires a rate, which nobody sees.
        super().__init__(learning_rate=0.0, name=name, **kwargs)
        # Private: `iterations`, schedules and checkpoints use this counter.
        self._iterations = leader._iterations

    @property
    def variables(self):
        """The variables of all inner optimizers."""
        return [v for optimizer in self._optimizers() for v in optimizer.variables]

    def build(self, variables: Sequence[Any]) -> None:
        """Makes the variables of all inner optimizers, once."""
        if self.built:
            return
        variables = list(variables)
        outside_of_functions(lambda: self._build_inner(variables))
        # Private: `apply` uses them if it is given no variables. The base class is not
        # called, since it would make averages of its own, and the attribute is not
        # assigned, since Keras would track it.
        self.__dict__["_trainable_variables"] = variables
        self.built = True

    def apply(self, grads, trainable_variables=None):
        """Hands in gradients, one for each variable.

        Args:
            grads: gradients; None for a variable that has none.
            trainable_variables: the variables; None for those with which the optimizer
                was built.

        Raises:
            ValueError: all gradients are None, or there is not one for each variable.
        """
        grads = list(grads)
        if not grads:
            return
        if trainable_variables is not None:
            variables = list(trainable_variables)
            self.build(variables)
        elif self.built:
            variables = self._trainable_variables
        else:
            raise ValueError(
                "`apply` without `trainable_variables` needs an optimizer that is "
                "built: call `optimizer.build(trainable_variables)` first."
            )
        if len(grads) != len(variables):
            raise ValueError(
                "`grads` must have one gradient for each variable. Received: "
                f"{len(grads)} gradients for {len(variables)} variables."
            )
        # Private: this is the base class's own check, with its warning.
        self._receive(*self._filter_empty_gradients(grads, variables))
