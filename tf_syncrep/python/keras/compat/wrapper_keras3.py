"""The base class of optimizers around another one, in Keras 3."""

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tf_syncrep.python.keras.compat.lifting import outside_of_functions
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
    loss_scale_factor = OfInner()

    def __init__(self, inner_optimizer: Any, name: str):
        # The base class wants a rate; nobody sees it.
        super().__init__(learning_rate=0.0, name=name)
        self.inner_optimizer = inner_optimizer
        # Private: the counter that `iterations`, schedules and checkpoints look at.
        self._iterations = inner_optimizer._iterations

    def _receive(self, gradients: Sequence[Any], variables: Sequence[Any]) -> None:
        """Takes the gradients of a batch; to be overridden."""
        raise NotImplementedError

    def _update(self, gradients: Sequence[Any], variables: Sequence[Any]) -> None:
        """Makes an update of the inner optimizer, in replica context."""
        self.inner_optimizer.apply(gradients, variables)

    @property
    def variables(self):
        """The inner optimizer's variables."""
        return self.inner_optimizer.variables

    @property
    def learning_rate(self):
        """The inner optimizer's learning rate, which can be set."""
        return self.inner_optimizer.learning_rate

    @learning_rate.setter
    def learning_rate(self, learning_rate):
        self.inner_optimizer.learning_rate = learning_rate

    def scale_loss(self, loss):
        """Scales a loss as the inner optimizer wants it."""
        return self.inner_optimizer.scale_loss(loss)

    def build(self, variables):
        """Makes the inner optimizer's variables, once."""
        if self.built:
            return
        if not self.inner_optimizer.built:
            outside_of_functions(lambda: self.inner_optimizer.build(variables))
        # Not by the base class, which would make averages of its own.
        self.built = True

    def apply(self, grads, trainable_variables=None):
        """Hands in gradients, one for each variable.

        Args:
            grads: gradients; None for a variable that has none.
            trainable_variables: the variables; None for those the optimizer was
                built with.

        Raises:
            ValueError: no gradient at all, or a number of gradients that is not that
                of the variables.
        """
        inner = self.inner_optimizer
        if trainable_variables is None:
            if not inner.built:
                raise ValueError(
                    "`apply` without `trainable_variables` needs an optimizer that is "
                    "built: call `optimizer.build(trainable_variables)` first."
                )
            # Private: the variables the optimizer was built with.
            variables = list(inner._trainable_variables)
        else:
            variables = list(trainable_variables)
            self.build(variables)
        grads = list(grads)
        if len(grads) != len(variables):
            raise ValueError(
                "`grads` must be one for each variable. Received: "
                f"{len(grads)} gradients for {len(variables)} variables."
            )
        # Private: the base class's own check, with its warning.
        self._receive(*self._filter_empty_gradients(grads, variables))

    def exclude_from_weight_decay(self, var_list=None, var_names=None):
        """Leaves variables out of the inner optimizer's weight decay.

        Args:
            var_list: the variables.
            var_names: parts of the names of others.
        """
        self.inner_optimizer.exclude_from_weight_decay(var_list, var_names)

    def save_own_variables(self, store):
        """Saves nothing: the inner optimizer's state is saved as its own."""

    def load_own_variables(self, store):
        """Loads nothing, but from files that hold the inner optimizer's state here.

        Args:
            store: arrays by name.
        """
        if len(store.keys()):
            self.inner_optimizer.load_own_variables(store)

    def set_weights(self, weights):
        """Sets the inner optimizer's variables.

        Args:
            weights: arrays, in the order of `variables`.
        """
        self.inner_optimizer.set_weights(weights)

    def finalize_variable_values(self, var_list):
        """Does what the inner optimizer does at the end of a training."""
        self.inner_optimizer.finalize_variable_values(var_list)
