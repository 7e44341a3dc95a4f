"""The attributes that an optimizer takes from the one inside it, in every Keras."""

from collections.abc import Sequence
from typing import Any


class OfInner:
    """An attribute that is read from, and set in, another optimizer.

    It is an ordinary attribute until the base class's constructor has run, and there is
    an inner optimizer.
    """

    def __init__(self, inner: str = "inner_optimizer"):
        """Wraps the attribute of the optimizer that is in `inner`."""
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


class Around:
    """What an optimizer around others shows of the one that leads.

    It is mixed in before Keras' `Optimizer`.
    """

    @property
    def _leader(self) -> Any:
        """The optimizer with the learning rate and the counter; to be overridden."""
        raise NotImplementedError

    @property
    def learning_rate(self) -> Any:
        """The leading optimizer's learning rate, which can be set."""
        return self._leader.learning_rate

    @learning_rate.setter
    def learning_rate(self, learning_rate: Any) -> None:
        self._leader.learning_rate = learning_rate

    def exclude_from_weight_decay(
        self,
        var_list: Sequence[Any] | None = None,
        var_names: Sequence[str] | None = None,
    ) -> None:
        """Leaves variables out of the leading optimizer's weight decay.

        Args:
            var_list: the variables.
            var_names: parts of the names of further variables.

        Raises:
            ValueError: in Keras 2, the optimizer has been built already.
        """
        self._leader.exclude_from_weight_decay(var_list, var_names)

    def save_own_variables(self, store: Any) -> None:
        """Saves nothing: each optimizer's state is saved as its own."""


class TakenFromInner(Around):
    """Attributes and methods of the inner optimizer that are also the outer one's."""

    inner_optimizer: Any

    weight_decay = OfInner()
    clipnorm = OfInner()
    clipvalue = OfInner()
    global_clipnorm = OfInner()
    use_ema = OfInner()
    ema_momentum = OfInner()
    ema_overwrite_frequency = OfInner()

    @property
    def _leader(self) -> Any:
        return self.inner_optimizer

    def _receive(self, gradients: Sequence[Any], variables: Sequence[Any]) -> None:
        """Takes the gradients of a batch; to be overridden."""
        raise NotImplementedError

    def load_own_variables(self, store: Any) -> None:
        """Loads nothing, but from files that hold the inner optimizer's state here."""
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
