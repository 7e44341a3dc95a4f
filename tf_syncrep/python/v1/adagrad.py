"""Adagrad as a `tf.compat.v1.train.Optimizer`."""

from tf_syncrep.python.base.arguments import check_positive
from tf_syncrep.python.v1 import hyper_parameters
from tf_syncrep.python.v1.base_optimizer import with_common_text
from tf_syncrep.python.v1.rule_optimizer import RuleOptimizer, Slot

__all__ = ["AdagradOptimizer"]


@with_common_text
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
        initial = check_positive("initial_accumulator_value", initial_accumulator_value)
        slots = {"accumulator": Slot("accumulator", initial)}
        super().__init__("adagrad", slots, use_locking, name, {"epsilon": 0.0})
        self._keep("lr", "learning_rate", learning_rate)
