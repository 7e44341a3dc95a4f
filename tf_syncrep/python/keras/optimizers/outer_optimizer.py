"""The base class of optimizers around others."""

from collections.abc import Sequence
from typing import Any

from tf_syncrep.python.keras import compat


class OuterOptimizer(compat.ReceivingOptimizer):
    """Shows the counter and learning rate of the first of its inner optimizers.

    A subclass overrides the methods that raise NotImplementedError.
    """

    def _optimizers(self) -> list[Any]:
        """Returns the inner optimizers that exist; the first one leads."""
        raise NotImplementedError

    def _build_inner(self, variables: Sequence[Any]) -> None:
        """Builds the inner optimizers; called once, outside of any function."""
        raise NotImplementedError

    def _receive(self, gradients: Sequence[Any], variables: Sequence[Any]) -> None:
        """Takes the gradients of a batch, none of which is None."""
        raise NotImplementedError

    @property
    def iterations(self) -> Any:
        """The first inner optimizer's counter, which can be set in Keras 2."""
        return self._optimizers()[0].iterations

    @iterations.setter
    def iterations(self, iterations: Any) -> None:
        self._optimizers()[0].iterations = iterations

    @property
    def learning_rate(self) -> Any:
        """The first inner optimizer's learning rate, which can be set."""
        return self._optimizers()[0].learning_rate

    @learning_rate.setter
    def learning_rate(self, learning_rate: Any) -> None:
        self._optimizers()[0].learning_rate = learning_rate

    def exclude_from_weight_decay(
        self,
        var_list: Sequence[Any] | None = None,
        var_names: Sequence[str] | None = None,
    ) -> None:
        """Excludes variables from the first inner optimizer's weight decay.

        Args:
            var_list: the variables.
            var_names: parts of the names of further variables.

        Raises:
            ValueError: in Keras 2, the optimizer has been built already.
        """
        self._optimizers()[0].exclude_from_weight_decay(var_list, var_names)

    def save_own_variables(self, store: Any) -> None:
        """Saves nothing: the state of each inner optimizer is saved as its own."""


def update(optimizer: Any, gradients: Sequence[Any], variables: Sequence[Any]) -> None:
    """Makes an optimizer's update, in replica context."""
    if compat.IS_KERAS_3:
        optimizer.apply(gradients, variables)
    else:
        optimizer.apply_gradients(
            zip(gradients, variables, strict=True), skip_gradients_aggregation=True
        )
