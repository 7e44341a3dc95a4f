"""Adagrad as a `tf.compat.v1.train.Optimizer`."""

from tf_syncrep.python.sync.arguments import check_positive
from tf_syncrep.python.train import hyper_parameters
from tf_syncrep.python.train.rule_optimizer import RuleOptimizer, Slot

__all__ = ["AdagradOptimizer"]


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

    A sparse gradient (`tf.IndexedSlices`) moves only the rows that it names, in the
    variable and in its slots, as with TensorFlow's class. A row named several times
    gets the sum of its gradients, once. One op does it, atomically for each row: no
    update of any worker is lost, and the gradient goes through no op that finds equal
    rows first.

    Variables may be reference or resource variables, partitioned or not, of half,
    bfloat16, float32 or float64, on CPUs. Slots are float64 for float64 variables and
    float32 for all others. In a checkpoint of `tf.compat.v1.train.Saver` the slot of
    `w` is `w/Adagrad`, so that checkpoints of TensorFlow's class with float32 and
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
        train_op = tfs.train.AdagradOptimizer(0.1).minimize(loss)
        with tf.Session() as session:
            session.run(tf.global_variables_initializer())
            session.run(train_op)
            print(session.run(loss).round(2))  # 173.04, from 192
    ```

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
        r"""Makes an optimizer; its slots are made when gradients are first applied.

        Args:
            learning_rate: a number of at least 0, a scalar tensor, a variable, or a
                callable without arguments that returns one of these, which is
                evaluated at each step.
            initial_accumulator_value: number above 0 that \\(a\\) begins with.
            use_locking: let sparse updates of one variable wait for one another as
                wholes. Without it they are atomic for each row, and no update is
                lost either way.
            name: prefix of the ops' and slots' names.

        Raises:
            ValueError: a number out of range, a tensor that is not a scalar, or an
                empty name.
            TypeError: a learning rate of another kind.
        """
        initial = check_positive("initial_accumulator_value", initial_accumulator_value)
        slots = {"accumulator": Slot("accumulator", initial)}
        super().__init__("adagrad", slots, use_locking, name, {"epsilon": 0.0})
        self._keep("lr", "learning_rate", learning_rate)
