"""The base class of optimizers around another one, in Keras 2."""

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tf_syncrep.python.keras.compat.of_inner import OfInner, TakenFromInner


class WrapperOptimizer(TakenFromInner, tf.keras.optimizers.Optimizer):
    """Passes gradients to a subclass, and all else to the inner optimizer.

    See the package's documentation for what subclasses override.
    """

    # Private: the counter, which Keras 2 allows to be replaced.
    _iterations = OfInner()

    def __init__(self, inner_optimizer: Any, name: str):
        super().__init__(name=name, jit_compile=False)
        self.inner_optimizer = inner_optimizer
        # Private: the counter and the list that checkpoints and files use. The counter
        # is the inner optimizer's already; this makes TensorFlow track it.
        self._iterations = inner_optimizer._iterations
        self._variables = inner_optimizer._variables

    def _update(self, gradients: Sequence[Any], variables: Sequence[Any]) -> None:
        """Makes an update of the inner optimizer, in replica context."""
        self.inner_optimizer.apply_gradients(
            zip(gradients, variables, strict=True), skip_gradients_aggregation=True
        )

    def build(self, var_list):
        """Makes the inner optimizer's variables, once."""
        self.inner_optimizer.build(var_list)
        # Private: optimizers of Keras 2 remember here that they were built.
        self._built = True

    def apply_gradients(
        self, grads_and_vars, name=None, skip_gradients_aggregation=False, **kwargs
    ):
        """Hands in gradients, one for each variable.

        Args:
            grads_and_vars: pairs of gradient and variable; a gradient may be None.
            name: has no effect, like the following arguments.
            skip_gradients_aggregation: has no effect, since there is one replica.
            **kwargs: older names of these.

        Returns:
            `iterations`.

        Raises:
            ValueError: there is no gradient at all.
        """
        del name, skip_gradients_aggregation, kwargs
        pairs = list(grads_and_vars)
        # As in the base class, variables are made outside any function.
        with tf.init_scope():
            self.build([variable for _, variable in pairs])
        pairs = [pair for pair in pairs if pair[0] is not None]
        if not pairs:
            raise ValueError("No gradients provided for any variable.")
        gradients, variables = zip(*pairs, strict=True)
        self._receive(gradients, variables)
        return self.iterations
