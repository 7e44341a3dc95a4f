"""Adagrad as a Keras optimizer."""

from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from tf_syncrep.python.base.arguments import check_number
from tf_syncrep.python.keras.optimizers.rules.base_optimizer import with_common_text
from tf_syncrep.python.keras.optimizers.rules.lazy_optimizer import RuleOptimizer

__all__ = ["Adagrad"]


@tf.keras.utils.register_keras_serializable(package="tf_syncrep")
@with_common_text
class Adagrad(RuleOptimizer):
    r"""Adagrad that moves only the rows that a gradient names.

    Each element has a learning rate of its own, which falls as the sum of the squares
    of its gradients grows. So an element with few gradients moves far with each.
    Initially \\(a = initial\_accumulator\_value\\) for each variable. An update with
    gradient \\(g\\) is:

    $$a := a + g^2$$
    $$variable := variable - learning\_rate \cdot g / \sqrt{a + \epsilon}$$

    Arguments, defaults and dense gradients are those of `tf.keras.optimizers.Adagrad`.

    {{rows_and_dtypes}}

    Args:
        {{learning_rate}}
        initial_accumulator_value: the initial value of \\(a\\), at least 0.
        epsilon: a number of at least 0, which is added to \\(a\\) under the root.
        {{base_arguments}}
        name: the optimizer's name.
        {{more_arguments}}

    Raises:
        ValueError: a number is out of its range.

    Example:
    >>> table = tf.Variable(tf.ones([4, 2]))
    >>> gradient = tf.IndexedSlices(tf.ones([2, 2]), tf.constant([3, 1]))
    >>> optimizer = tfs.keras.Adagrad(0.5)
    >>> _ = optimizer.apply_gradients([(gradient, table)])
    >>> print(table.numpy()[:, 0].round(3))
    [1.    0.523 1.    0.523]

    Source: Duchi, Hazan and Singer, "Adaptive Subgradient Methods for Online Learning
    and Stochastic Optimization", 2011, in the form that Keras has.
    """

    _own_arguments = ("initial_accumulator_value", "epsilon")

    def __init__(
        self,
        learning_rate: Any = 0.001,
        initial_accumulator_value: float = 0.1,
        epsilon: float = 1e-7,
        weight_decay: float | None = None,
        clipnorm: float | None = None,
        clipvalue: float | None = None,
        global_clipnorm: float | None = None,
        use_ema: bool = False,
        ema_momentum: float = 0.99,
        ema_overwrite_frequency: int | None = None,
        name: str = "Adagrad",
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
        self.initial_accumulator_value: float = check_number(
            "initial_accumulator_value", initial_accumulator_value
        )
        self.epsilon: float = check_number("epsilon", epsilon)

    def rule(self) -> tuple[str, dict[str, float]]:
        """Returns the name of the rule, and its numbers except `lr`."""
        return "adagrad", {"epsilon": self.epsilon}

    def initial_slots(self) -> dict[str, float]:
        """Returns the slots of each variable, with their initial values."""
        return {"accumulator": self.initial_accumulator_value}

    def update_rows(
        self,
        rows: tf.Tensor,
        gradient: tf.Tensor,
        slots: dict[str, tf.Tensor],
        learning_rate: tf.Tensor,
    ) -> tuple[tf.Tensor, Mapping[str, tf.Tensor]]:
        """Moves rows of a variable, or the whole variable."""
        accumulator = slots["accumulator"] + gradient * gradient
        step = tf.math.divide_no_nan(
            learning_rate * gradient, tf.sqrt(accumulator + self.epsilon)
        )
        return rows - step, {"accumulator": accumulator}
