"""The base class of optimizers around another one, in Keras 2."""

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tf_syncrep.python.keras.compat.of_inner import OfInner


class WrapperOptimizer(tf.keras.optimizers.Optimizer):
    """Hands gradients to a subclass, and all else to the inner optimizer.

    See the package's documentation for what subclasses override.
    """

    weight_decay = OfInner()
    clipnorm = OfInner()
    clipvalue = OfInner()
    global_clipnorm = OfInner()
    use_ema = OfInner()
    ema_momentum = OfInner()
    ema_overwrite_frequency = OfInner()
    # Private: the counter, which Keras 2 lets one replace.
    _iterations = OfInner()

    def __init__(self, inner_optimizer: Any, name: str):
        super().__init__(name=name, jit_compile=False)
        self.inner_optimizer = inner_optimizer
        # Private: the counter and the list that checkpoints and files look at. The
        # counter is the inner optimizer's already; this makes TensorFlow track it.
        self._iterations = inner_optimizer._iterations
        self._variables = inner_optimizer._variables

    def _receive(self, gradients: Sequence[Any], variables: Sequence[Any]) -> None:
        """Takes the gradients of a batch; to be overridden."""
        raise NotImplementedError

    def _update(self, gradients: Sequence[Any], variables: Sequence[Any]) -> None:
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
        self._receive(gradients, variables)
        return self.iterations

    def exclude_from_weight_decay(self, var_list=None, var_names=None):
        """Leaves variables out of the inner optimizer's weight decay.

        Args:
            var_list: the variables.
            var_names: parts of the names of others.

        Raises:
            ValueError: the optimizer is built already.
        """
        self.inner_optimizer.exclude_from_weight_decay(var_list, var_names)

    def set_weights(self, weights):
        """Sets the inner optimizer's variables.

        Args:
            weights: arrays, in the order of `variables`.
        """
        self.inner_optimizer.set_weights(weights)

    def save_own_variables(self, store):
        """Saves nothing: the inner optimizer's state is saved as its own."""

    def load_own_variables(self, store):
        """Loads nothing, but from files that hold the inner optimizer's state here.

        Args:
            store: arrays by name.
        """
        if len(store.keys()):
            self.inner_optimizer.load_own_variables(store)

    def finalize_variable_values(self, var_list):
        """Does what the inner optimizer does at the end of a training."""
        self.inner_optimizer.finalize_variable_values(var_list)
