"""FTRL as a `tf.compat.v1.train.Optimizer`."""

from tf_syncrep.python.base.arguments import check_number, check_power
from tf_syncrep.python.v1 import hyper_parameters
from tf_syncrep.python.v1.base_optimizer import with_common_text
from tf_syncrep.python.v1.rule_optimizer import RuleOptimizer, Slot

__all__ = ["FtrlOptimizer"]


@with_common_text("FtrlOptimizer(0.1)", loss=143.05)
class FtrlOptimizer(RuleOptimizer):
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

    A variable whose divisor is 0 becomes 0: with `initial_accumulator_value=0` that is
    one that has had gradients of zero alone, if \\(\beta\\) and \\(l2\\) are 0, too.

    Arguments, defaults and numbers are those of `tf.compat.v1.train.FtrlOptimizer`.

    {{rows_and_dtypes}}
    In a checkpoint of `tf.compat.v1.train.Saver` those of `w` are `w/Ftrl` (n) and
    `w/Ftrl_1` (z).

    Args:
        {{learning_rate}}
            An update with another value fails; one with 0 changes nothing.
        learning_rate_power: number of at most 0; 0 for a rate that does not fall.
        initial_accumulator_value: number of at least 0 that \\(n\\) begins with.
        l1_regularization_strength: number of at least 0.
        l2_regularization_strength: number of at least 0.
        {{use_locking}}
        name: prefix of the ops' and slots' names.
        accum_name: what the slot \\(n\\) is called in place of `name`.
        linear_name: what the slot \\(z\\) is called in place of `name`.
        l2_shrinkage_regularization_strength: number of at least 0: a penalty on the
            size of the weights, in the gradient; in the rows that it names, if it
            is sparse.
        beta: number of at least 0, the paper's; None for 0.

    {{raises}}

    {{example}}

    Source: McMahan et al., "Ad Click Prediction: a View from the Trenches", 2013, in
    the form that TensorFlow has.
    """

    def __init__(
        self,
        learning_rate: hyper_parameters.HyperParameter,
        learning_rate_power: float = -0.5,
        initial_accumulator_value: float = 0.1,
        l1_regularization_strength: float = 0.0,
        l2_regularization_strength: float = 0.0,
        use_locking: bool = False,
        name: str = "Ftrl",
        accum_name: str | None = None,
        linear_name: str | None = None,
        l2_shrinkage_regularization_strength: float = 0.0,
        beta: float | None = None,
    ):
        constants = {
            "lr_power": check_power("learning_rate_power", learning_rate_power),
            "l1": check_number(
                "l1_regularization_strength", l1_regularization_strength
            ),
            "l2": check_number(
                "l2_regularization_strength", l2_regularization_strength
            ),
            "l2_shrinkage": check_number(
                "l2_shrinkage_regularization_strength",
                l2_shrinkage_regularization_strength,
            ),
            "beta": 0.0 if beta is None else check_number("beta", beta),
        }
        initial = check_number("initial_accumulator_value", initial_accumulator_value)
        slots = {
            "accumulator": Slot("accum", initial, accum_name),
            "linear": Slot("linear", 0.0, linear_name),
        }
        super().__init__("ftrl", slots, use_locking, name, constants)
        self._keep("lr", "learning_rate", learning_rate)
