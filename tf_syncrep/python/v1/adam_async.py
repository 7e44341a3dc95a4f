"""AdamAsync as a `tf.compat.v1.train.Optimizer`."""

from typing import Any

import tensorflow as tf

from tf_syncrep.python.base.arguments import check_number
from tf_syncrep.python.base.docstrings import with_texts
from tf_syncrep.python.ops import adam_async_ops
from tf_syncrep.python.ops.update_inputs import slot_dtype
from tf_syncrep.python.v1 import hyper_parameters
from tf_syncrep.python.v1.base_optimizer import COMMON_TEXTS, BaseOptimizer
from tf_syncrep.python.v1.part_scalars import add_scalar

__all__ = ["AdamAsyncOptimizer"]


@with_texts(COMMON_TEXTS)
class AdamAsyncOptimizer(BaseOptimizer):
    r"""Adam for asynchronous training with parameter servers.

    Adam scales each step by how large the gradient has been of late, element by
    element, and corrects for the slots having begun at zero. The correction needs the
    number of steps made so far, which stock Adam keeps in one pair of powers for all
    variables. So each variable waits for the task that holds the pair, and a row of an
    embedding table moves even if no gradient touched it, because the pair moved. Here
    each variable has a pair of its own, on its own task, and one op advances everything
    that belongs to it. Nothing is shared, no update is lost among many workers, and the
    cost of a sparse gradient depends on its rows, not on the length of the table.

    Initialization, for each variable:

    $$m := 0, \quad v := 0, \quad t := 0$$

    Update with gradient \\(g\\):

    $$t := t + 1$$
    $$\alpha := learning\_rate \cdot \sqrt{1 - \beta_2^t} / (1 - \beta_1^t)$$
    $$m := \beta_1 m + (1 - \beta_1) g$$
    $$v := \beta_2 v + (1 - \beta_2) g^2$$
    $$variable := variable - \alpha \, m / (\sqrt{v} + \epsilon)$$

    With a dense gradient this is `tf.compat.v1.train.AdamOptimizer`, number for
    number. With an `tf.IndexedSlices` gradient only the rows that it names move,
    in the variable and in the slots; a row named several times gets the sum of its
    gradients, once. (Stock Adam lets the momentum of all other rows run on.)

    With `apply_sparse_rmsprop`, sparse gradients follow RMSProp instead, with
    `rmsprop_momentum` for the moving average of the steps:

    $$v := \beta_2 v + (1 - \beta_2) g^2$$
    $$m := momentum \cdot m + learning\_rate \cdot g / \sqrt{v + \epsilon}$$
    $$variable := variable - m$$

    Variables may be reference or resource variables, partitioned or not, of half,
    bfloat16, float32 or float64. Slots are float64 for float64 variables and
    float32 for all others, and live where their variable lives. In a checkpoint of
    `tf.compat.v1.train.Saver`, those of `w` are `w/AdamAsync` (m), `w/AdamAsync_1`
    (v), `w/AdamAsync_2` and `w/AdamAsync_3` (scalars: beta1 and beta2 to the power
    of the step to come), as in DeepRec, whose float32 and float64 checkpoints can
    be restored. Each part of a partitioned variable has powers of its own. A
    checkpoint is restored into any number of parts: if it was written from another
    number, each part gets the powers of the part with the most steps.

    Learning rate, betas and epsilon may be numbers, scalar tensors, variables, or
    callables without arguments that return one of these; they are evaluated at each
    step. The powers start from the values of `beta1` and `beta2` when the slots are
    made, which is when gradients are first applied, or from their initial values if
    they are variables of a graph.

    Args:
        learning_rate: at least 0.
        beta1: decay of the moving average of the gradient, in [0, 1).
        beta2: decay of the moving average of its square, in [0, 1).
        epsilon: at least 0; keeps the division finite where `v` is small.
        {{use_locking}}
        apply_sparse_rmsprop: let sparse gradients follow RMSProp.
        name: prefix of the ops' and slots' names.
        use_nesterov: look one gradient ahead (Dozat, 2016); without effect on
            RMSProp.
        rmsprop_momentum: momentum of RMSProp, in [0, 1). None stands for `beta1`,
            which is what DeepRec computes; 0 leaves the moving average out, which
            is what its manual describes. Without `apply_sparse_rmsprop` it has
            no effect.

    {{raises}}

    Example:
    ```python
    import tensorflow.compat.v1 as tf
    import tf_syncrep as tfs

    with tf.Graph().as_default():
        table = tf.get_variable("table", [10, 16], initializer=tf.ones_initializer())
        rows = tf.nn.embedding_lookup(table, [0, 1, 2, 5, 6, 7])
        loss = tf.reduce_sum(rows * 2.0)
        step = tf.train.get_or_create_global_step()
        train_op = tfs.train.AdamAsyncOptimizer(0.1).minimize(loss, step)
        with tf.Session() as session:
            session.run(tf.global_variables_initializer())
            print(session.run([loss, train_op])[0])  # 192.0
            print(session.run([loss, train_op])[0])  # 172.8
    ```

    Sources: Kingma and Ba, "Adam: A Method for Stochastic Optimization", 2015
    (https://arxiv.org/abs/1412.6980), in the form at the end of its section 2, so
    that `epsilon` is the "epsilon hat" of the paper; the AdamAsync optimizer of
    DeepRec and its manual.
    """

    def __init__(
        self,
        learning_rate: hyper_parameters.HyperParameter = 0.001,
        beta1: hyper_parameters.HyperParameter = 0.9,
        beta2: hyper_parameters.HyperParameter = 0.999,
        epsilon: hyper_parameters.HyperParameter = 1e-8,
        use_locking: bool = False,
        apply_sparse_rmsprop: bool = False,
        name: str = "AdamAsync",
        *,
        use_nesterov: bool = False,
        rmsprop_momentum: float | None = None,
    ):
        super().__init__(use_locking, name)
        self._keep("lr", "learning_rate", learning_rate)
        self._keep("beta1", "beta1", beta1, below=1)
        self._keep("beta2", "beta2", beta2, below=1)
        self._keep("epsilon", "epsilon", epsilon)
        # They are attributes of the ops, so they cannot be tensors.
        self._options = {
            "use_locking": self._use_locking,
            "use_nesterov": bool(use_nesterov),
        }
        if rmsprop_momentum is None:
            momentum = -1.0
        else:
            momentum = check_number("rmsprop_momentum", rmsprop_momentum, below=1)
        self._sparse_options = {
            **self._options,
            "apply_sparse_rmsprop": bool(apply_sparse_rmsprop),
            "rmsprop_momentum": momentum,
        }

    # Slots.

    def _create_slots(self, var_list):
        # The order fixes the names in a checkpoint.
        for var in var_list:
            self._make_slot(var, "m", 0.0)
            self._make_slot(var, "v", 0.0)
            self._make_power(var, "beta1_power", "beta1")
            self._make_power(var, "beta2_power", "beta2")

    def _make_power(self, var, slot_name, beta_name):
        """Makes a scalar slot that starts at beta."""

        # It is an initializer rather than a tensor, so that its ops are placed beside
        # the slot and are made only if there is a slot.
        def initialize(shape, dtype: Any = None, partition_info=None):
            del shape, partition_info
            return hyper_parameters.evaluate_as_initial_value(
                beta_name, self._arguments[beta_name].value, dtype, below=1
            )

        slot = self._get_or_make_slot_with_initializer(
            var,
            initialize,
            tf.TensorShape([]),
            slot_dtype(var.dtype),
            slot_name,
            self._name,
        )
        if not tf.compat.v1.executing_eagerly_outside_functions():
            add_scalar(var, slot)

    def _get_or_make_slot_with_initializer(
        self, var, initializer, shape, dtype, slot_name, op_name
    ):
        # When an object-based checkpoint is restored eagerly, this is called before
        # `_create_slots`, for every slot with the shape of its variable.
        shape = tf.TensorShape([]) if slot_name.endswith("_power") else shape
        return super()._get_or_make_slot_with_initializer(
            var, initializer, shape, dtype, slot_name, op_name
        )

    # Updates.

    def _operands(self, var):
        """Returns the inputs of all ops that come before the gradient."""
        slots = [
            self.get_slot(var, name)
            for name in ("m", "v", "beta1_power", "beta2_power")
        ]
        return [var, *slots, *self._hyper_parameters(var).values()]

    def _apply_dense(self, grad, var):
        return adam_async_ops.apply_adam_async(
            *self._operands(var), grad, **self._options
        ).op

    def _apply_sparse(self, grad, var):
        return adam_async_ops.sparse_apply_adam_async(
            *self._operands(var), grad.values, grad.indices, **self._sparse_options
        ).op

    def _resource_apply_dense(self, grad, handle):
        return adam_async_ops.resource_apply_adam_async(
            *self._operands(handle), grad, **self._options
        )

    def _resource_apply_sparse(self, grad, handle, indices):
        return adam_async_ops.resource_sparse_apply_adam_async(
            *self._operands(handle), grad, indices, **self._sparse_options
        )
