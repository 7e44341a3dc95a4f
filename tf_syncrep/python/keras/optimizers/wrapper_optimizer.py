"""The base class of optimizers around another one, whose attributes they show."""

from collections.abc import Sequence
from typing import Any

from tf_syncrep.python.keras import compat
from tf_syncrep.python.keras.compat.trainer import is_optimizer_built
from tf_syncrep.python.keras.optimizers.outer_optimizer import OuterOptimizer, update


class _OfInner:
    """An attribute that is read from, and set in, the inner optimizer.

    It is an ordinary attribute until the base class's constructor has run, and there is
    an inner optimizer.
    """

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, optimizer: Any, owner: type | None = None) -> Any:
        if optimizer is None:
            return self
        attributes = vars(optimizer)
        if "inner_optimizer" in attributes:
            return getattr(attributes["inner_optimizer"], self._name)
        try:
            return attributes[self._name]
        except KeyError:
            raise AttributeError(self._name) from None

    def __set__(self, optimizer: Any, value: Any) -> None:
        attributes = vars(optimizer)
        if "inner_optimizer" in attributes:
            setattr(attributes["inner_optimizer"], self._name, value)
        else:
            attributes[self._name] = value


class WrapperOptimizer(OuterOptimizer):
    """Passes gradients to a subclass, and all else to the inner optimizer.

    A subclass overrides `_receive`, and calls `_update` to make an update with all that
    belongs to it: clipping, weight decay, averages, `iterations`.
    """

    weight_decay = _OfInner()
    clipnorm = _OfInner()
    clipvalue = _OfInner()
    global_clipnorm = _OfInner()
    use_ema = _OfInner()
    ema_momentum = _OfInner()
    ema_overwrite_frequency = _OfInner()
    loss_scale_factor = _OfInner()  # Keras 3 alone has it.

    def __init__(self, inner_optimizer: Any, name: str):
        super().__init__(inner_optimizer, name)
        self.inner_optimizer = inner_optimizer

    def _optimizers(self) -> list[Any]:
        return [self.inner_optimizer]

    def _build_inner(self, variables: Sequence[Any]) -> None:
        if not is_optimizer_built(self.inner_optimizer):
            self.inner_optimizer.build(variables)

    def _update(self, gradients: Sequence[Any], variables: Sequence[Any]) -> None:
        """Makes an update of the inner optimizer, in replica context."""
        update(self.inner_optimizer, gradients, variables)

    def scale_loss(self, loss: Any) -> Any:
        """Scales a loss as the inner optimizer does; Keras 3 calls it."""
        return self.inner_optimizer.scale_loss(loss)

    def load_own_variables(self, store: Any) -> None:
        """Loads nothing, except from files that hold the inner optimizer's state."""
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
        compat.finalize_variable_values(self.inner_optimizer, var_list)
