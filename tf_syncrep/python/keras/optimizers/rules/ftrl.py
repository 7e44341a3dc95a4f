"""FTRL as a Keras optimizer."""

from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from tf_syncrep.python.base.arguments import check_number, check_power
from tf_syncrep.python.keras.optimizers.rules.base_optimizer import with_common_text
from tf_syncrep.python.keras.optimizers.rules.lazy_optimizer import RuleOptimizer

__all__ = ["FTRL"]


@tf.keras.utils.register_keras_serializable(package="tf_syncrep")
@with_common_text
class FTRL(RuleOptimizer):
    r"""FTRL-Proximal that moves only the rows that a gradient names.

    It is made for wide, sparse, linear models: with `l1_regularization_strength`, all
    weights that help little are exactly zero. Initially \\(n =
    initial\_accumulator\_value\\) and \\(z = 0\\) for each variable. With \\(p =
    -learning\_rate\_power\\), an update with gradient \\(g\\) is:

    $$n' = n + g^2$$
    $$z := z + g + 2 \, l2\_shrinkage \cdot variable
    - (n'^p - n^p) / learning\_rate \cdot variable$$
    $$variable := (\text{clip}(z, -l1, l1) - z)
    / ((n'^p + \beta) / learning\_rate + 2 \, l2)$$
    $$n := n'$$

    A variable whose divisor is 0 becomes 0: with `initial_accumulator_value=0` that is
    one that has had gradients of zero alone, if \\(\beta\\) and \\(l2\\) are 0, too.

    The variable is computed from \\(n\\) and \\(z\\), so little is left of its initial
    value after the first update. Arguments, defaults and dense gradients are those of
    `tf.keras.optimizers.Ftrl`.

    {{rows_and_dtypes}}

    Args:
        learning_rate: a number of at least 0, or a
            `tf.keras.optimizers.schedules.LearningRateSchedule`; in Keras 3 also a
            callable without arguments that returns the rate. A step at a rate of 0
            leaves variables and slots as they are.
        learning_rate_power: a number of at most 0; with 0 the rate does not fall.
        initial_accumulator_value: the initial value of \\(n\\), at least 0.
        l1_regularization_strength: \\(l1\\), a number of at least 0.
        l2_regularization_strength: \\(l2\\), a number of at least 0.
        l2_shrinkage_regularization_strength: \\(l2\_shrinkage\\), a number of at least
            0. It adds a penalty on the size of the weights to the gradient; if that is
            sparse, only in the rows that it names.
        beta: \\(\beta\\) of the paper, a number of at least 0.
        {{base_arguments}}
        name: the optimizer's name.
        {{more_arguments}}

    Raises:
        ValueError: a number is out of its range.

    Example:
    >>> table = tf.Variable(tf.ones([4, 2]))
    >>> gradient = tf.IndexedSlices(tf.ones([2, 2]), tf.constant([3, 1]))
    >>> optimizer = tfs.keras.FTRL(0.5)
    >>> _ = optimizer.apply_gradients([(gradient, table)])
    >>> print(table.numpy()[:, 0].round(3))
    [1.    0.222 1.    0.222]

    Source: McMahan et al., "Ad Click Prediction: a View from the Trenches", 2013, in
    the form that Keras has.
    """

    _own_arguments = (
        "learning_rate_power",
        "initial_accumulator_value",
        "l1_regularization_strength",
        "l2_regularization_strength",
        "l2_shrinkage_regularization_strength",
        "beta",
    )

    def __init__(
        self,
        learning_rate: Any = 0.001,
        learning_rate_power: float = -0.5,
        initial_accumulator_value: float = 0.1,
        l1_regularization_strength: float = 0.0,
        l2_regularization_strength: float = 0.0,
        l2_shrinkage_regularization_strength: float = 0.0,
        beta: float = 0.0,
        weight_decay: float | None = None,
        clipnorm: float | None = None,
        clipvalue: float | None = None,
        global_clipnorm: float | None = None,
        use_ema: bool = False,
        ema_momentum: float = 0.99,
        ema_overwrite_frequency: int | None = None,
        name: str = "FTRL",
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
        self.learning_rate_power: float = check_power(
            "learning_rate_power", learning_rate_power
        )
        self.initial_accumulator_value: float = check_number(
            "initial_accumulator_value", initial_accumulator_value
        )
        self.l1_regularization_strength: float = check_number(
            "l1_regularization_strength", l1_regularization_strength
        )
        self.l2_regularization_strength: float = check_number(
            "l2_regularization_strength", l2_regularization_strength
        )
        self.l2_shrinkage_regularization_strength: float = check_number(
            "l2_shrinkage_regularization_strength",
            l2_shrinkage_regularization_strength,
        )
        self.beta: float = check_number("beta", beta)

    def rule(self) -> tuple[str, dict[str, float]]:
        """Returns the name of the rule, and its numbers except `lr`."""
        return "ftrl", {
            "lr_power": self.learning_rate_power,
            "l1": self.l1_regularization_strength,
            "l2": self.l2_regularization_strength,
            "l2_shrinkage": self.l2_shrinkage_regularization_strength,
            "beta": self.beta,
        }

    def initial_slots(self) -> dict[str, float]:
        """Returns the slots of each variable, with their initial values."""
        return {"accumulator": self.initial_accumulator_value, "linear": 0.0}

    def update_rows(
        self,
        rows: tf.Tensor,
        gradient: tf.Tensor,
        slots: dict[str, tf.Tensor],
        learning_rate: tf.Tensor,
    ) -> tuple[tf.Tensor, Mapping[str, tf.Tensor]]:
        """Moves rows of a variable, or the whole variable."""
        power, l1 = -self.learning_rate_power, self.l1_regularization_strength
        shrinkage = 2 * self.l2_shrinkage_regularization_strength * rows
        accumulator = slots["accumulator"] + gradient * gradient
        new_power = tf.pow(accumulator, power)
        sigma = (new_power - tf.pow(slots["accumulator"], power)) / learning_rate
        linear = slots["linear"] + gradient + shrinkage - sigma * rows
        quadratic = (new_power + self.beta) / learning_rate
        quadratic += 2 * self.l2_regularization_strength
        new_rows = tf.math.divide_no_nan(
            tf.clip_by_value(linear, -l1, l1) - linear, quadratic
        )
        # As in the kernels, a rate of 0 moves nothing.
        moves = tf.not_equal(learning_rate, 0)
        return tf.where(moves, new_rows, rows), {
            "accumulator": tf.where(moves, accumulator, slots["accumulator"]),
            "linear": tf.where(moves, linear, slots["linear"]),
        }
