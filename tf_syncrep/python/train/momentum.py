"""Gradient descent with momentum as a `tf.compat.v1.train.Optimizer`."""

from tf_syncrep.python.train import hyper_parameters
from tf_syncrep.python.train.rule_optimizer import RuleOptimizer, Slot

__all__ = ["MomentumOptimizer"]


class MomentumOptimizer(RuleOptimizer):
    r"""Gradient descent with momentum that moves only the rows that a gradient names.

    Initially \\(m = 0\\) for each variable. An update with gradient \\(g\\) is:

    $$m := momentum \cdot m + g$$
    $$variable := variable - learning\_rate \cdot m$$

    With `use_nesterov`, the second line takes off \\(learning\_rate \cdot (g +
    momentum \cdot m)\\). Arguments, defaults and numbers are those of
    `tf.compat.v1.train.MomentumOptimizer`. (The learning rate is outside of the
    momentum; in `tfs.keras.SGD`, as in Keras, it is within.)

    A sparse gradient (`tf.IndexedSlices`) moves only the rows that it names, in the
    variable and in its slots, as with TensorFlow's class: while no gradient
    names a row, its momentum neither decays nor moves the row. A row named several
    times gets the sum of its gradients, once. One op does it, atomically for each row:
    no update of any worker is lost, and the gradient goes through no op that finds
    equal rows first.

    Variables may be reference or resource variables, partitioned or not, of half,
    bfloat16, float32 or float64, on CPUs. Slots are float64 for float64 variables and
    float32 for all others. In a checkpoint of `tf.compat.v1.train.Saver` the slot of
    `w` is `w/Momentum`, so that checkpoints of TensorFlow's class with float32 and
    float64 variables can be restored. (TensorFlow's slots of half
    variables are half.)

    Example:
    ```python
    import tensorflow.compat.v1 as tf
    import tf_syncrep as tfs

    with tf.Graph().as_default():
        table = tf.get_variable("table", [10, 16], initializer=tf.ones_initializer())
        rows = tf.nn.embedding_lookup(table, [0, 1, 2, 5, 6, 7])
        loss = tf.reduce_sum(rows * 2.0)
        train_op = tfs.train.MomentumOptimizer(0.1, 0.9).minimize(loss)
        with tf.Session() as session:
            session.run(tf.global_variables_initializer())
            session.run(train_op)
            print(session.run(loss).round(2))  # 153.6, from 192
    ```

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
        """Makes an optimizer; its slots are made when gradients are first applied.

        The first two may be numbers of at least 0, scalar tensors, variables, or
        callables without arguments that return one of these; they are evaluated at each
        step.

        Args:
            learning_rate: at least 0.
            momentum: at least 0.
            use_locking: let sparse updates of one variable wait for one another as
                wholes. Without it they are atomic for each row, and no update is
                lost either way.
            name: prefix of the ops' and slots' names.
            use_nesterov: look one gradient ahead.

        Raises:
            ValueError: a number out of range, a tensor that is not a scalar, or an
                empty name.
            TypeError: an argument of another kind.
        """
        rule = "gradient_nesterov" if use_nesterov else "gradient_momentum"
        super().__init__(rule, {"momentum": Slot("momentum", 0.0)}, use_locking, name)
        self._keep("lr", "learning_rate", learning_rate)
        self._keep("momentum", "momentum", momentum)
