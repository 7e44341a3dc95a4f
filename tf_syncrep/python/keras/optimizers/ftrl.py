"""FTRL as a Keras optimizer."""

import numbers
from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from tf_syncrep.python.keras.optimizers.lazy_optimizer import RuleOptimizer
from tf_syncrep.python.sync.arguments import check_number, check_positive

__all__ = ["FTRL"]


@tf.keras.utils.register_keras_serializable(package="tf_syncrep")
class FTRL(RuleOptimizer):
    r"""FTRL-Proximal that moves only the rows that a gradient names.

    The optimizer of wide, sparse, linear models: with `l1_regularization_strength`,
    weights that are not worth having are exactly zero. With
    \\(n = initial\_accumulator\_value\\) and \\(z = 0\\) for each variable at first,
    and with \\(p = -learning\_rate\_power\\), an update with gradient \\(g\\) is:

    $$n' = n + g^2$$
    $$z := z + g + 2 \, l2\_shrinkage \cdot variable
    - (n'^p - n^p) / learning\_rate \cdot variable$$
    $$variable := (\text{clip}(z, -l1, l1) - z)
    / ((n'^p + \beta) / learning\_rate + 2 \, l2)$$
    $$n := n'$$

    The variable follows from \\(n\\) and \\(z\\): of what it began with, little is left
    after the first update. Arguments, defaults and dense gradients are those of
    `tf.keras.optimizers.Ftrl`.

    A sparse gradient (`tf.IndexedSlices`, what an embedding layer has) moves only the
    rows that it names, in the variable and in its slots; a row named several times gets
    the sum of its gradients, once. One op does it, atomically for each row: no update
    of any worker is lost, and a step costs what its rows cost, however long the table.

    Variables may be half, bfloat16, float32 or float64; slots are float64 for float64
    variables and float32 for all others. Inside of functions that XLA compiles, and on
    GPUs, the update is made of TensorFlow's own ops, which are slower, are not atomic,
    and do not check that the indices are in range.

    Args:
        learning_rate: a number above 0, or a
            `tf.keras.optimizers.schedules.LearningRateSchedule`, which must not come
            down to 0; in Keras 3 also a callable without arguments that returns it.
        learning_rate_power: number of at most 0; 0 for a rate that does not fall.
        initial_accumulator_value: number of at least 0 that \\(n\\) begins with.
        l1_regularization_strength: number of at least 0.
        l2_regularization_strength: number of at least 0.
        l2_shrinkage_regularization_strength: number of at least 0: a penalty on the
            size of the weights, in the gradient; in the rows that it names, if it is
            sparse.
        beta: number of at least 0, the paper's.
        weight_decay: if set, each step takes this times the learning rate off all
            of each variable, untouched rows included.
        clipnorm: if set, the norm that the gradient of each variable is clipped to.
        clipvalue: if set, the absolute value that each element of a gradient is
            clipped to.
        global_clipnorm: if set, the norm that all gradients together are clipped to.
        use_ema: keep a moving average of each variable.
        ema_momentum: decay of that average, in [0, 1].
        ema_overwrite_frequency: if set, overwrite the variables by their averages
            every so many steps.
        name: the optimizer's name.
        stochastic_rounding: round half and bfloat16 variables up or down at random, so
            that each is right on average, and steps that are too small for its dtype
            are not lost. It changes nothing for float32 and float64 variables.
        **kwargs: in Keras 3, `loss_scale_factor` and `gradient_accumulation_steps`
            of the base class (accumulators are dense). In Keras 2, `jit_compile`,
            False by default: the ops are faster than what XLA makes of the formula.

    Raises:
        ValueError: a number out of its range.

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
        if isinstance(learning_rate, numbers.Real):
            learning_rate = check_positive("learning_rate", learning_rate)
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
        if not learning_rate_power <= 0:  # NaN is not, either.
            raise ValueError(
                "`learning_rate_power` must be at most 0. "
                f"Received: learning_rate_power={learning_rate_power}"
            )
        self.learning_rate_power: float = float(learning_rate_power)
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
        """The name of the rule, and its numbers except `lr`."""
        return "ftrl", {
            "lr_power": self.learning_rate_power,
            "l1": self.l1_regularization_strength,
            "l2": self.l2_regularization_strength,
            "l2_shrinkage": self.l2_shrinkage_regularization_strength,
            "beta": self.beta,
        }

    def initial_slots(self) -> dict[str, float]:
        """The slots of each variable, with their initial values."""
        return {"accumulator": self.initial_accumulator_value, "linear": 0.0}

    def update_rows(
        self,
        rows: tf.Tensor,
        gradient: tf.Tensor,
        slots: dict[str, tf.Tensor],
        learning_rate: tf.Tensor,
    ) -> tuple[tf.Tensor, Mapping[str, tf.Tensor]]:
        """Moves rows of a variable, or all of it."""
        power, l1 = -self.learning_rate_power, self.l1_regularization_strength
        shrinkage = 2 * self.l2_shrinkage_regularization_strength * rows
        accumulator = slots["accumulator"] + gradient * gradient
        new_power = tf.pow(accumulator, power)
        sigma = (new_power - tf.pow(slots["accumulator"], power)) / learning_rate
        linear = slots["linear"] + gradient + shrinkage - sigma * rows
        quadratic = (new_power + self.beta) / learning_rate
        quadratic += 2 * self.l2_regularization_strength
        new_rows = (tf.clip_by_value(linear, -l1, l1) - linear) / quadratic
        return new_rows, {"accumulator": accumulator, "linear": linear}

    def get_config(self) -> dict[str, Any]:
        """Returns the configuration; `from_config` makes an equal optimizer of it."""
        return {
            **super().get_config(),
            "learning_rate_power": self.learning_rate_power,
            "initial_accumulator_value": self.initial_accumulator_value,
            "l1_regularization_strength": self.l1_regularization_strength,
            "l2_regularization_strength": self.l2_regularization_strength,
            "l2_shrinkage_regularization_strength": (
                self.l2_shrinkage_regularization_strength
            ),
            "beta": self.beta,
        }
