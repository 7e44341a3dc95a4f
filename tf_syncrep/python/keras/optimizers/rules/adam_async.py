"""AdamAsync as a Keras optimizer."""

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tf_syncrep.python.base.arguments import check_number
from tf_syncrep.python.keras.optimizers.rules.base_optimizer import (
    BaseOptimizer,
    is_beyond_kernels,
    with_common_text,
)
from tf_syncrep.python.keras.optimizers.tf_ops import adam_async_tf_ops
from tf_syncrep.python.keras.tables.stacked_tables import is_part
from tf_syncrep.python.ops import adam_async_ops, embedding_ops
from tf_syncrep.python.ops.update_inputs import slot_dtype

__all__ = ["AdamAsync"]


@tf.keras.utils.register_keras_serializable(package="tf_syncrep")
@with_common_text
class AdamAsync(BaseOptimizer):
    r"""Adam for asynchronous training with parameter servers.

    Adam scales the step of each element by how large its gradients were recently. The
    moving averages begin at zero, and a correction for that depends on the number of
    steps that they have seen. Stock Adam takes this number from the optimizer's
    `iterations`, one counter for all variables and workers, and moves every row of an
    embedding table at every step. Here each variable has its own powers of the betas,
    beside it on its parameter server, and one op advances everything that belongs to
    it. No update of any worker is lost, and the cost of a sparse gradient depends on
    its rows, not on the length of the table.

    Initially \\(m = v = 0\\) and \\(t = 0\\) for each variable. An update with gradient
    \\(g\\) is:

    $$t := t + 1$$
    $$\alpha := learning\_rate \cdot \sqrt{1 - \beta_2^t} / (1 - \beta_1^t)$$
    $$m := \beta_1 m + (1 - \beta_1) g$$
    $$v := \beta_2 v + (1 - \beta_2) g^2$$
    $$variable := variable - \alpha \, m / (\sqrt{v} + \epsilon)$$

    With `use_nesterov`, \\(m\\) in the last line is \\(\beta_1 m + (1 - \beta_1) g\\).

    Dense gradients train as with `tf.keras.optimizers.Adam`. A sparse gradient
    (`tf.IndexedSlices`, as of an embedding layer) moves only the rows that it names, in
    the variable and in the averages. If a row is named several times, the sum of its
    gradients is applied once. A gradient without rows changes nothing. With
    `apply_sparse_rmsprop`, sparse gradients follow RMSProp instead:

    $$v := \beta_2 v + (1 - \beta_2) g^2$$
    $$m := momentum \cdot m + learning\_rate \cdot g / \sqrt{v + \epsilon}$$
    $$variable := variable - m$$

    The slots of a variable are "m" and "v", of its shape, and the powers of the step to
    come, "beta_1_power" and "beta_2_power", of shape (1,).

    Variables may be half, bfloat16, float32 or float64; the averages and powers are
    float64 for float64 variables and float32 for all others. It works with any
    `tf.distribute.Strategy`, in replica context and in cross-replica context, where
    gradients are the results of `strategy.run`, or tensors. In functions that XLA
    compiles, and on GPUs if tf_syncrep was built without GPU kernels (see `tf-syncrep
    doctor`), the update is made of TensorFlow's own ops, which are slower, and do not
    check that the indices are in range.

    Args:
        {{learning_rate}}
        beta_1: decay of the moving average of the gradient, in [0, 1).
        beta_2: decay of the moving average of its square, in [0, 1).
        epsilon: a number of at least 0, which is added to the root of \\(v\\); the
            "epsilon hat" of the paper.
        apply_sparse_rmsprop: whether sparse gradients follow RMSProp.
        use_nesterov: whether to look one gradient ahead; it does not affect RMSProp.
        {{base_arguments}}
        name: the optimizer's name.
        rmsprop_momentum: momentum of RMSProp, in [0, 1). None stands for `beta_1`,
            with which DeepRec computes; 0 omits the moving average, as DeepRec's manual
            describes it. Without `apply_sparse_rmsprop` it has no effect.
        {{more_arguments}}

    Raises:
        ValueError: a number is out of its range.

    Example:
    ```python
    import tensorflow as tf
    import tf_syncrep as tfs

    model = tf.keras.Sequential(
        [tf.keras.layers.Embedding(1000, 8), tf.keras.layers.GlobalAveragePooling1D()]
    )
    model.compile(optimizer=tfs.keras.AdamAsync(0.01), loss="mse")
    words = tf.random.uniform([256, 5], maxval=1000, dtype=tf.int32)
    model.fit(words, tf.ones([256, 8]), epochs=3)
    ```

    A model file names the class, so `tf_syncrep` has to be imported before
    `tf.keras.models.load_model` reads the file, unless `compile=False` is passed.

    Sources: Kingma and Ba, "Adam: A Method for Stochastic Optimization", 2015
    (https://arxiv.org/abs/1412.6980), in the form at the end of its section 2; the
    AdamAsync optimizer of DeepRec, for the powers of each variable and for the
    RMSProp variant; Dozat, "Incorporating Nesterov Momentum into Adam", 2016.
    """

    def __init__(
        self,
        learning_rate: Any = 0.001,
        beta_1: float = 0.9,
        beta_2: float = 0.999,
        epsilon: float = 1e-7,
        apply_sparse_rmsprop: bool = False,
        use_nesterov: bool = False,
        weight_decay: float | None = None,
        clipnorm: float | None = None,
        clipvalue: float | None = None,
        global_clipnorm: float | None = None,
        use_ema: bool = False,
        ema_momentum: float = 0.99,
        ema_overwrite_frequency: int | None = None,
        name: str = "AdamAsync",
        *,
        rmsprop_momentum: float | None = None,
        stochastic_rounding: bool = False,
        **kwargs: Any,
    ):
        super().__init__(
            learning_rate=learning_rate,
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
        self.beta_1: float = check_number("beta_1", beta_1, below=1)
        self.beta_2: float = check_number("beta_2", beta_2, below=1)
        self.epsilon: float = check_number("epsilon", epsilon)
        self.apply_sparse_rmsprop: bool = bool(apply_sparse_rmsprop)
        self.use_nesterov: bool = bool(use_nesterov)
        if rmsprop_momentum is not None:
            rmsprop_momentum = check_number(
                "rmsprop_momentum", rmsprop_momentum, below=1
            )
        self.rmsprop_momentum = rmsprop_momentum

    def create_slots(self, variables: Sequence[Any]) -> None:
        """Makes both moving averages and both powers of each variable.

        The powers have rank 1, so that those of a partitioned variable's parts can
        be saved as one partitioned variable.
        """
        self._m, self._v = [], []
        self._beta_1_powers, self._beta_2_powers = [], []
        for variable in variables:
            dtype = slot_dtype(variable.dtype)
            for made, name, shape, value in (
                (self._m, "m", variable.shape, 0.0),
                (self._v, "v", variable.shape, 0.0),
                (self._beta_1_powers, "beta_1_power", [1], self.beta_1),
                (self._beta_2_powers, "beta_2_power", [1], self.beta_2),
            ):
                made.append(self.add_slot(variable, name, shape, dtype, value))
        self.create_rounding_counts(variables)

    def slots_of_rule(self, variable: Any) -> dict[str, Any]:
        """Returns both averages, and the powers of the step to come."""
        i = self.slot_index(variable)
        return {
            "m": self._m[i],
            "v": self._v[i],
            "beta_1_power": self._beta_1_powers[i],
            "beta_2_power": self._beta_2_powers[i],
        }

    def update_variable(
        self, gradient: Any, variable: tf.Variable, learning_rate: Any
    ) -> None:
        """Updates one variable and its slots."""
        rounding = self.rounding_of(variable)
        # The kernels for GPUs round to nearest.
        is_beyond = is_beyond_kernels(variable, on_gpu=rounding is None)
        ops = adam_async_tf_ops if is_beyond else adam_async_ops
        operands = (
            variable.handle,
            *[slot.handle for slot in self.slots_of_rule(variable).values()],
            tf.cast(learning_rate, slot_dtype(variable.dtype)),
            self.beta_1,
            self.beta_2,
            self.epsilon,
        )
        if isinstance(gradient, tf.IndexedSlices):
            momentum = self.rmsprop_momentum
            ops.resource_sparse_apply_adam_async(
                *operands,
                tf.cast(gradient.values, variable.dtype),
                gradient.indices,
                use_nesterov=self.use_nesterov,
                apply_sparse_rmsprop=self.apply_sparse_rmsprop,
                rmsprop_momentum=-1.0 if momentum is None else momentum,
                # A part of a table advances as the whole table would.
                count_empty=is_part(variable)
                or embedding_ops.are_embedding_rows(gradient.indices),
                rounding=rounding,
            )
        else:
            ops.resource_apply_adam_async(
                *operands,
                tf.cast(gradient, variable.dtype),
                use_nesterov=self.use_nesterov,
                rounding=rounding,
            )

    def get_config(self) -> dict[str, Any]:
        """Returns the configuration; `from_config` makes an equal optimizer of it."""
        return {
            **super().get_config(),
            "beta_1": self.beta_1,
            "beta_2": self.beta_2,
            "epsilon": self.epsilon,
            "apply_sparse_rmsprop": self.apply_sparse_rmsprop,
            "use_nesterov": self.use_nesterov,
            "rmsprop_momentum": self.rmsprop_momentum,
        }
