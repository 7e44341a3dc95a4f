"""Gradient descent as a `tf.compat.v1.train.Optimizer`."""

from tf_syncrep.python.v1 import hyper_parameters
from tf_syncrep.python.v1.base_optimizer import with_common_text
from tf_syncrep.python.v1.rule_optimizer import RuleOptimizer

__all__ = ["GradientDescentOptimizer"]


@with_common_text("GradientDescentOptimizer(0.1)", loss=153.6)
class GradientDescentOptimizer(RuleOptimizer):
    r"""Gradient descent whose updates lose nothing among many workers.

    An update with gradient \\(g\\) is:

    $$variable := variable - learning\_rate \cdot g$$

    Arguments, defaults and numbers are those of
    `tf.compat.v1.train.GradientDescentOptimizer`. A sparse gradient
    (`tf.IndexedSlices`) moves only the rows that it names; a row named several times
    gets the sum of its gradients, once. One op does it, atomically for each row.

    Variables may be reference or resource variables, partitioned or not, of half,
    bfloat16, float32 or float64, on CPUs. Half and bfloat16 are computed in float32 and
    rounded once. There are no slots.

    Args:
        {{learning_rate}}
        {{use_locking}}
        name: prefix of the ops' names.

    {{raises}}

    {{example}}
    """

    def __init__(
        self,
        learning_rate: hyper_parameters.HyperParameter,
        use_locking: bool = False,
        name: str = "GradientDescent",
    ):
        super().__init__("sgd", {}, use_locking, name)
        self._keep("lr", "learning_rate", learning_rate)
