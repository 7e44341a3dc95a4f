"""RowwiseAdagrad as a Keras optimizer."""

from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from tf_syncrep.python.base.arguments import check_number
from tf_syncrep.python.keras.optimizers.rules.base_optimizer import with_common_text
from tf_syncrep.python.keras.optimizers.rules.lazy_optimizer import RuleOptimizer

__all__ = ["RowwiseAdagrad"]


@tf.keras.utils.register_keras_serializable(package="tf_syncrep")
@with_common_text
class RowwiseAdagrad(RuleOptimizer):
    r"""Adagrad with one number of state for each row of a table.

    Adagrad keeps an array as large as the table. Here all elements of a row share a
    learning rate, which falls as the sum of the mean squares of the row's gradients
    grows. This takes 4 bytes for each row, whatever its width. Initially \\(a =
    initial\_accumulator\_value\\) for each row. An update with gradient \\(g\\) of a
    row is:

    $$a := a + \text{mean}(g^2)$$
    $$row := row - learning\_rate \cdot g / (\sqrt{a} + \epsilon)$$

    The first dimension counts the rows: in a kernel of shape `[inputs, units]` a row
    has the weights of one input, and in a bias it is one element. Arguments have the
    same names as those of `Adagrad`; the rule and the defaults are FBGEMM's.

    {{rows_and_dtypes}}

    Args:
        {{learning_rate}}
        initial_accumulator_value: the initial value of \\(a\\), at least 0.
        epsilon: a number of at least 0, which is added to the root of \\(a\\).
        {{base_arguments}}
        name: the optimizer's name.
        {{more_arguments}}

    Raises:
        ValueError: a number is out of its range.

    Example:
    >>> table = tf.Variable(tf.ones([4, 2]))
    >>> gradient = tf.IndexedSlices(tf.ones([2, 2]), tf.constant([3, 1]))
    >>> optimizer = tfs.keras.RowwiseAdagrad(0.25)
    >>> _ = optimizer.apply_gradients([(gradient, table)])
    >>> print(table.numpy()[:, 0].round(3))
    [1.   0.75 1.   0.75]

    Source: EXACT_ROWWISE_ADAGRAD of FBGEMM, with which TorchRec trains tables.
    """

    _own_arguments = ("initial_accumulator_value", "epsilon")

    def __init__(
        self,
        learning_rate: Any = 0.01,
        initial_accumulator_value: float = 0.0,
        epsilon: float = 1e-8,
        weight_decay: float | None = None,
        clipnorm: float | None = None,
        clipvalue: float | None = None,
        global_clipnorm: float | None = None,
        use_ema: bool = False,
        ema_momentum: float = 0.99,
        ema_overwrite_frequency: int | None = None,
        name: str = "RowwiseAdagrad",
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
        return "rowwise_adagrad", {"epsilon": self.epsilon}

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
        elements = list(range(1, len(rows.shape)))
        squares = tf.reduce_mean(gradient * gradient, elements, keepdims=True)
        accumulator = slots["accumulator"] + squares
        step_size = tf.math.divide_no_nan(
            learning_rate, tf.sqrt(accumulator) + self.epsilon
        )
        return rows - step_size * gradient, {"accumulator": accumulator}
