"""Gradient descent with momentum as a `tf.compat.v1.train.Optimizer`."""

from tf_syncrep.python.v1 import hyper_parameters
from tf_syncrep.python.v1.base_optimizer import with_common_text
from tf_syncrep.python.v1.rule_optimizer import RuleOptimizer, Slot

__all__ = ["MomentumOptimizer"]


@with_common_text("MomentumOptimizer(0.1, 0.9)", loss=153.6)
class MomentumOptimizer(RuleOptimizer):
    r"""Gradient descent with momentum that moves only the rows that a gradient names.

    Initially \\(m = 0\\) for each variable. An update with gradient \\(g\\) is:

    $$m := momentum \cdot m + g$$
    $$variable := variable - learning\_rate \cdot m$$

    With `use_nesterov`, the second line takes off \\(learning\_rate \cdot (g +
    momentum \cdot m)\\). Arguments, defaults and numbers are those of
    `tf.compat.v1.train.MomentumOptimizer`. (The learning rate is outside of the
    momentum; in `tfs.keras.SGD`, as in Keras, it is within.)

    While no gradient names a row, its momentum neither decays nor moves the row.

    {{rows_and_dtypes}}
    In a checkpoint of `tf.compat.v1.train.Saver` the slot of `w` is `w/Momentum`.

    Learning rate and momentum may be numbers of at least 0, scalar tensors, variables,
    or callables without arguments that return one of these; they are evaluated at each
    step.

    Args:
        learning_rate: at least 0.
        momentum: at least 0.
        {{use_locking}}
        name: prefix of the ops' and slots' names.
        use_nesterov: look one gradient ahead.

    {{raises}}

    {{example}}

    Source: Sutskever et al., "On the importance of initialization and momentum in deep
    learning", 2013, in the form that TensorFlow has.
    """

    def __init__(
        self,
        learning_rate: hyper_parameters.HyperParameter,
        momentum: hyper_parameters.HyperParameter,
        use_locking: bool = False,
        name: str = "Momentum",
        use_nesterov: bool = False,
    ):
        rule = "gradient_nesterov" if use_nesterov else "gradient_momentum"
        super().__init__(rule, {"momentum": Slot("momentum", 0.0)}, use_locking, name)
        self._keep("lr", "learning_rate", learning_rate)
        self._keep("momentum", "momentum", momentum)
