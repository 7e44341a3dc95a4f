"""Adagrad as a `tf.compat.v1.train.Optimizer`."""

from tf_syncrep.python.base.arguments import check_positive
from tf_syncrep.python.v1 import hyper_parameters
from tf_syncrep.python.v1.base_optimizer import with_common_text
from tf_syncrep.python.v1.rule_optimizer import RuleOptimizer, Slot

__all__ = ["AdagradOptimizer"]


@with_common_text("AdagradOptimizer(0.1)", loss=173.04)
class AdagradOptimizer(RuleOptimizer):
    r"""Adagrad that moves only the rows that a gradient names.

    Each element has a learning rate of its own, which falls with the sum of the squares
    of its gradients: an element with few gradients moves far with each of them.
    Initially \\(a = initial\_accumulator\_value\\) for each variable. An update with
    gradient \\(g\\) is:

    $$a := a + g^2$$
    $$variable := variable - learning\_rate \cdot g / \sqrt{a}$$

    Arguments, defaults and numbers are those of `tf.compat.v1.train.AdagradOptimizer`.
    (Nothing is added under the root, unlike in `tfs.keras.Adagrad` and Keras.)

    {{rows_and_dtypes}}
    In a checkpoint of `tf.compat.v1.train.Saver` the slot of `w` is `w/Adagrad`.

    Args:
        {{learning_rate}}
        initial_accumulator_value: number above 0 that \\(a\\) begins with.
        {{use_locking}}
        name: prefix of the ops' and slots' names.

    {{raises}}

    {{example}}

    Source: Duchi, Hazan and Singer, "Adaptive Subgradient Methods for Online Learning
    and Stochastic Optimization", 2011, in the form that TensorFlow has.
    """

    def __init__(
        self,
        learning_rate: hyper_parameters.HyperParameter,
        initial_accumulator_value: float = 0.1,
        use_locking: bool = False,
        name: str = "Adagrad",
    ):
        initial = check_positive("initial_accumulator_value", initial_accumulator_value)
        slots = {"accumulator": Slot("accumulator", initial)}
        super().__init__("adagrad", slots, use_locking, name, {"epsilon": 0.0})
        self._keep("lr", "learning_rate", learning_rate)
