"""The base class of optimizers around another one, in Keras 2."""

from collections.abc import Sequence
from typing import Any

import tensorflow as tf


class WrapperOptimizer(tf.keras.optimizers.Optimizer):
    """Hands gradients to a subclass, and all else to the inner optimizer.

    See the package's documentation for what subclasses override.
    """

    def __init__(self, inner_optimizer: Any, name: str):
        super().__init__(name=name, jit_compile=False)
        self.inner_optimizer = inner_optimizer
        # Private: the counter and the list that schedules, checkpoints and files
        # look at.
        self._iterations = inner_optimizer._iterations
        self._variables = inner_optimizer._variables

    def receive(self, gradients: Sequence[Any], variables: Sequence[Any]) -> None:
        """Takes the gradients of a batch; to be overridden."""
        raise NotImplementedError

    def update(self, gradients: Sequence[Any], variables: Sequence[Any]) -> None:
        """Makes an update of the inner optimizer, in replica context."""
        self.inner_optimizer.apply_gradients(
            zip(gradients, variables, strict=True), skip_gradients_aggregation=True
        )

    @property
    def learning_rate(self):
        """The inner optimizer's learning rate, which can be set."""
        return self.inner_optimizer.learning_rate

    @learning_rate.setter
    def learning_rate(self, learning_rate):
        self.inner_optimizer.learning_rate = learning_rate

    def build(self, var_list):
        """Makes the inner optimizer's variables, once."""
        self.inner_optimizer.build(var_list)
        # Private: how optimizers of Keras 2 remember that they were built.
        self._built = True

    def apply_gradients(
        self, grads_and_vars, name=None, skip_gradients_aggregation=False, **kwargs
    ):
        """Hands in gradients, one for each variable.

        Args:
            grads_and_vars: pairs of gradient and variable; a gradient may be None.
            name: without effect, as is all that follows.
            skip_gradients_aggregation: without effect: there is one replica.
            **kwargs: older names of the same.

        Returns:
            `iterations`.

        Raises:
            ValueError: no gradient at all.
        """
        del name, skip_gradients_aggregation, kwargs
        pairs = list(grads_and_vars)
        # As in the base class: variables are made outside of any function.
        with tf.init_scope():
            self.build([variable for _, variable in pairs])
        pairs = [pair for pair in pairs if pair[0] is not None]
        if not pairs:
            raise ValueError("No gradients provided for any variable.")
        gradients, variables = zip(*pairs, strict=True)
        self.receive(gradients, variables)
        return self.iterations

    def finalize_variable_values(self, var_list):
        """Does what the inner optimizer does at the end of a training."""
        self.inner_optimizer.finalize_variable_values(var_list)
