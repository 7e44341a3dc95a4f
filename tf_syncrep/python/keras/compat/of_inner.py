"""The attributes that an optimizer takes from the one inside it, in every Keras."""

from collections.abc import Sequence
from typing import Any


class OfInner:
    """An attribute that is read from, and set in, another optimizer.

    It is an ordinary attribute until the base class's constructor has run, and there is
    an inner optimizer.
    """

    def __init__(self, inner: str = "inner_optimizer"):
        """Learns whose it is.

        Args:
            inner: the attribute that holds the other optimizer.
        """
        self._inner = inner

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, optimizer: Any, owner: type | None = None) -> Any:
        if optimizer is None:
            return self
        attributes = vars(optimizer)
        if self._inner in attributes:
            return getattr(attributes[self._inner], self._name)
        try:
            return attributes[self._name]
        except KeyError:
            raise AttributeError(self._name) from None

    def __set__(self, optimizer: Any, value: Any) -> None:
        attributes = vars(optimizer)
        if self._inner in attributes:
            setattr(attributes[self._inner], self._name, value)
        else:
            attributes[self._name] = value


class TakenFromInner:
    """Attributes and methods of the inner optimizer that are also the outer one's.

    It is mixed in before Keras' `Optimizer`.
    """

    inner_optimizer: Any

    weight_decay = OfInner()
    clipnorm = OfInner()
    clipvalue = OfInner()
    global_clipnorm = OfInner()
    use_ema = OfInner()
    ema_momentum = OfInner()
    ema_overwrite_frequency = OfInner()

    @property
    def learning_rate(self) -> Any:
        """The inner optimizer's learning rate, which can be set."""
        return self.inner_optimizer.learning_rate

    @learning_rate.setter
    def learning_rate(self, learning_rate: Any) -> None:
        self.inner_optimizer.learning_rate = learning_rate

    def _receive(self, gradients: Sequence[Any], variables: Sequence[Any]) -> None:
        """Takes the gradients of a batch; to be overridden."""
        raise NotImplementedError

    def exclude_from_weight_decay(
        self,
        var_list: Sequence[Any] | None = None,
        var_names: Sequence[str] | None = None,
    ) -> None:
        """Leaves variables out of the inner optimizer's weight decay.

        Args:
            var_list: the variables.
            var_names: parts of the names of further variables.

        Raises:
            ValueError: in Keras 2, the optimizer has been built already.
        """
        self.inner_optimizer.exclude_from_weight_decay(var_list, var_names)

    def save_own_variables(self, store: Any) -> None:
        """Saves nothing: the inner optimizer's state is saved separately."""

    def load_own_variables(self, store: Any) -> None:
        """Loads nothing, except from files that hold the inner optimizer's state here.

        Args:
            store: arrays by name.
        """
        if len(store.keys()):
            self.inner_optimizer.load_own_variables(store)

    def set_weights(self, weights: Sequence[Any]) -> None:
        """Sets the inner optimizer's variables.

        Args:
            weights: arrays, in the order of `variables`.
        """
        self.inner_optimizer.set_weights(weights)

    def finalize_variable_values(self, var_list: Sequence[Any]) -> None:
        """Does what the inner optimizer does at the end of a training."""
        self.inner_optimizer.finalize_variable_values(var_list)
