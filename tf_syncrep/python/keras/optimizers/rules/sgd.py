"""SGD as a Keras optimizer."""

from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from tf_syncrep.python.base.arguments import check_number
from tf_syncrep.python.keras.optimizers.rules.base_optimizer import with_common_text
from tf_syncrep.python.keras.optimizers.rules.lazy_optimizer import RuleOptimizer

__all__ = ["SGD"]


@tf.keras.utils.register_keras_serializable(package="tf_syncrep")
@with_common_text
class SGD(RuleOptimizer):
    r"""Gradient descent that moves only the rows that a gradient names.

    Initially \\(m = 0\\) for each variable. An update with gradient \\(g\\) is:

    $$m := momentum \cdot m - learning\_rate \cdot g$$
    $$variable := variable + m$$

    With `nesterov`, the second line adds \\(momentum \cdot m - learning\_rate \cdot
    g\\). Without a momentum there are no slots, and the update is \\(variable :=
    variable - learning\_rate \cdot g\\). Arguments, defaults and dense gradients are
    those of `tf.keras.optimizers.SGD`.

    While no gradient names a row, its momentum neither decays nor moves the row.

    {{rows_and_dtypes}}

    Args:
        {{learning_rate}}
        momentum: a number in [0, 1].
        nesterov: whether to look one gradient ahead.
        {{base_arguments}}
        name: the optimizer's name.
        {{more_arguments}}

    Raises:
        ValueError: a number is out of its range.

    Example:
    >>> table = tf.Variable(tf.ones([4, 2]))
    >>> gradient = tf.IndexedSlices(tf.ones([2, 2]), tf.constant([3, 1]))
    >>> optimizer = tfs.keras.SGD(0.5)
    >>> _ = optimizer.apply_gradients([(gradient, table)])
    >>> print(table.numpy()[:, 0].round(3))
    [1.  0.5 1.  0.5]

    Source: Sutskever et al., "On the importance of initialization and momentum in deep
    learning", 2013, for `nesterov`.
    """

    _own_arguments = ("momentum", "nesterov")

    def __init__(
        self,
        learning_rate: Any = 0.01,
        momentum: float = 0.0,
        nesterov: bool = False,
        weight_decay: float | None = None,
        clipnorm: float | None = None,
        clipvalue: float | None = None,
        global_clipnorm: float | None = None,
        use_ema: bool = False,
        ema_momentum: float = 0.99,
        ema_overwrite_frequency: int | None = None,
        name: str = "SGD",
        *,
        stochastic_rounding: bool = False,
        **kwargs: Any,
    ):
        super().__init__(
            learning_rate,
            weight_decay=weight_decay,
            clipnorm=clipnorm,
            clipvalue=clipvalue,
            global_clipnorm=global_clipnorm,
            use_ema=use_ema,
            ema_momentum=ema_momentum,
            ema_overwrite_frequency=ema_overwrite_frequency,
            name=name,
            stochastic_rounding=stochastic_rounding,
            **kwargs,
        )
        self.momentum: float = check_number("momentum", momentum)
        if self.momentum > 1:
            raise ValueError(
                f"`momentum` must be in the range [0, 1]. Received: momentum={momentum}"
            )
        self.nesterov: bool = bool(nesterov)

    def rule(self) -> tuple[str, dict[str, float]]:
        """Returns the name of the rule, and its numbers except `lr`."""
        if not self.momentum:
            return "sgd", {}
        rule = "nesterov" if self.nesterov else "momentum"
        return rule, {"momentum": self.momentum}

    def initial_slots(self) -> dict[str, float]:
        """Returns the slots of each variable, with their initial values."""
        return {"momentum": 0.0} if self.momentum else {}

    def update_rows(
        self,
        rows: tf.Tensor,
        gradient: tf.Tensor,
        slots: dict[str, tf.Tensor],
        learning_rate: tf.Tensor,
    ) -> tuple[tf.Tensor, Mapping[str, tf.Tensor]]:
        """Moves rows of a variable, or the whole variable."""
        step = -learning_rate * gradient
        if not self.momentum:
            return rows + step, {}
        m = self.momentum * slots["momentum"] + step
        return rows + (self.momentum * m + step if self.nesterov else m), {
            "momentum": m
        }
