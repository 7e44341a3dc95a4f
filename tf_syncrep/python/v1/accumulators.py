"""Drop-in replacements for TensorFlow's conditional accumulators."""

from typing import Any

import tensorflow as tf

from tf_syncrep.python.ops import accumulator_ops

__all__ = ["ConditionalAccumulator", "SparseConditionalAccumulator"]


class _AccumulatorMethods(tf.compat.v1.ConditionalAccumulatorBase):
    """The methods of both classes, which are instances of TensorFlow's base class."""

    def __init__(self, make_accumulator, dtype, shape, shared_name, name, reduction):
        dtype = tf.as_dtype(dtype)
        # In a graph, an accumulator without a shared name belongs to its op, and is
        # destroyed with the session. In eager execution nothing owns it like this, so
        # it is destroyed with its handle.
        handle = make_accumulator(
            dtype,
            shape,
            reduction_type=reduction,
            shared_name=shared_name or "",
            counted=tf.executing_eagerly() and not shared_name,
            name=name,
        )
        super().__init__(dtype, shape, handle)
        self._eager_name = name if tf.executing_eagerly() else None

    @property
    def name(self) -> str:
        """The name of the accumulator's op, without its scopes."""
        return super().name if self._eager_name is None else self._eager_name

    def num_accumulated(self, name: str | None = None) -> tf.Tensor:
        """Returns the number of gradients that the accumulator holds.

        Args:
            name: name of the op.

        Returns:
            int32 scalar.
        """
        return accumulator_ops.accumulator_num_accumulated(
            self.accumulator_ref, name=name or f"{self.name}_NumAccumulated"
        )

    def set_global_step(
        self, new_global_step: Any, name: str | None = None
    ) -> tf.Operation | None:
        """Sets the accumulator's time step; gradients that are held stay.

        A step that goes back is logged as a warning.

        Args:
            new_global_step: integer scalar, a variable perhaps: the time step.
            name: name of the op.

        Returns:
            The op in a graph, None when executing eagerly.
        """
        return accumulator_ops.accumulator_set_global_step(
            self.accumulator_ref, _as_int64(new_global_step), name=name
        )

    def stats(self, name: str | None = None) -> accumulator_ops.AccumulatorStats:
        """Counts what has become of all gradients: accepted, dropped, discarded, taken.

        Args:
            name: name of the op.

        Returns:
            `tf_syncrep.ops.AccumulatorStats` of int64 scalars.
        """
        return accumulator_ops.accumulator_stats(self.accumulator_ref, name=name)


class ConditionalAccumulator(_AccumulatorMethods):
    """Adds up gradients; a drop-in for `tf.compat.v1.ConditionalAccumulator`.

    Gradients that are up to date (computed at a time step that is not below the
    accumulator's own) are added; others are dropped. The mean of the gradients can be
    taken once there are enough.

    It has the constructor, methods and error messages of TensorFlow's class, and
    differs where that class gives wrong results or cannot be used:

    - it works in sessions, eagerly and in `tf.function`;
    - half gradients are summed in float32, and bfloat16 is supported (in TensorFlow's
      class the mean of three half gradients of 40000 is inf);
    - an argument that is not a scalar, or a shared name that is in use for another
      dtype or shape, is an error (in TensorFlow's class it ends the process).

    Example:
    ```python
    import tensorflow as tf
    import tf_syncrep as tfs

    accumulator = tfs.train.ConditionalAccumulator(tf.float32, shape=[2])
    accumulator.apply_grad([1.0, 2.0], local_step=0)
    accumulator.apply_grad([3.0, 4.0], local_step=0)
    accumulator.take_grad(2)  # [2.0, 3.0]; the time step is now 1
    ```
    """

    def __init__(
        self,
        dtype: Any,
        shape: Any = None,
        shared_name: str | None = None,
        name: str = "conditional_accumulator",
        reduction_type: str = "MEAN",
    ):
        """Makes an accumulator, or finds the one of this shared name.

        Args:
            dtype: dtype of the gradients: half, bfloat16, float32 or float64.
            shape: shape of the gradients, as far as it is known.
            shared_name: name under which all sessions of a task share the
                accumulator.
            name: name of the op.
            reduction_type: `"MEAN"` or `"SUM"`.
        """
        super().__init__(
            accumulator_ops.dense_accumulator,
            dtype,
            shape,
            shared_name,
            name,
            reduction_type,
        )

    def apply_grad(
        self, grad: Any, local_step: Any = 0, name: str | None = None
    ) -> tf.Operation | None:
        """Offers a gradient, which is silently dropped if it is stale.

        Args:
            grad: the gradient.
            local_step: integer scalar: the time step at which it was computed. It
                is stale if this is below the accumulator's.
            name: name of the op.

        Returns:
            The op in a graph, None when executing eagerly.

        Raises:
            ValueError: `grad` has another shape, as far as is known when the op is
                made.
            tf.errors.InvalidArgumentError: the same, when the op runs.
        """
        grad = tf.convert_to_tensor(grad, self.dtype)
        grad.shape.assert_is_compatible_with(self._shape)
        accepted = accumulator_ops.accumulator_apply_dense(
            self.accumulator_ref, _as_int64(local_step), grad, name=name
        )
        return _op(accepted)

    def take_grad(self, num_required: Any, name: str | None = None) -> tf.Tensor:
        """Waits for enough gradients, then takes the reduction of all that are held.

        The accumulator is empty afterwards, and its time step one higher.

        Args:
            num_required: int32 scalar: how many gradients to wait for.
            name: name of the op.

        Returns:
            The reduced gradient.

        Raises:
            tf.errors.InvalidArgumentError: `num_required` is less than 1.
            tf.errors.CancelledError: the session was closed while this waited.
        """
        out = accumulator_ops.accumulator_take_dense(
            self.accumulator_ref, num_required, self.dtype, name=name
        )
        out.set_shape(self._shape)
        return out


class SparseConditionalAccumulator(_AccumulatorMethods):
    """Adds up `tf.IndexedSlices`; a drop-in for TensorFlow's class.

    It is like `ConditionalAccumulator`, but for sparse gradients, with the constructor,
    methods and error messages of `tf.compat.v1.SparseConditionalAccumulator`. Besides
    the differences that `ConditionalAccumulator` names, it has these:

    - indices may come in any order and may repeat (TensorFlow's sums are then wrong);
    - a negative index is an error;
    - adding a gradient costs time for its own rows only, however many there are
      already;
    - there is `reduction_type="CMEAN"`.

    Example:
    ```python
    import tensorflow as tf
    import tf_syncrep as tfs

    accumulator = tfs.train.SparseConditionalAccumulator(tf.float32, shape=[10, 2])
    accumulator.apply_grad([1, 3], [[1.0, 1.0], [2.0, 2.0]])
    accumulator.apply_grad([3], [[4.0, 4.0]])
    mean = accumulator.take_indexed_slices_grad(2)
    # mean.indices: [1, 3]; mean.values: [[1.0, 1.0], [3.0, 3.0]]
    ```
    """

    def __init__(
        self,
        dtype: Any,
        shape: Any = None,
        shared_name: str | None = None,
        name: str = "sparse_conditional_accumulator",
        reduction_type: str = "MEAN",
    ):
        """Makes an accumulator, or finds the one of this shared name.

        Args:
            dtype: dtype of the gradients: half, bfloat16, float32 or float64.
            shape: shape of the variable, as far as it is known. The first dimension
                bounds the indices. `[]` stands for an unknown shape.
            shared_name: name under which all sessions of a task share the
                accumulator.
            name: name of the op.
            reduction_type: `"SUM"`; `"MEAN"`, which divides each row by the number
                of gradients that contain it; or `"CMEAN"`, which divides by the
                number of all gradients, as the mean of dense ones does.
        """
        super().__init__(
            accumulator_ops.sparse_accumulator,
            dtype,
            shape,
            shared_name,
            name,
            reduction_type,
        )

    def apply_indexed_slices_grad(
        self, grad: tf.IndexedSlices, local_step: Any = 0, name: str | None = None
    ) -> tf.Operation | None:
        """Offers a gradient in place of its parts; see `apply_grad`."""
        return self.apply_grad(
            grad_indices=grad.indices,
            grad_values=grad.values,
            grad_shape=grad.dense_shape,
            local_step=local_step,
            name=name,
        )

    def apply_grad(
        self,
        grad_indices: Any,
        grad_values: Any,
        grad_shape: Any = None,
        local_step: Any = 0,
        name: str | None = None,
    ) -> tf.Operation | None:
        """Offers a gradient, which is silently dropped if it is stale.

        Args:
            grad_indices: integer vector: the row of the variable that each row of
                `grad_values` belongs to.
            grad_values: the rows, as many as indices.
            grad_shape: shape of the variable; if given, it is checked against the
                accumulator's.
            local_step: integer scalar: the time step at which the gradient was
                computed. It is stale if this is below the accumulator's.
            name: name of the op.

        Returns:
            The op in a graph, None when executing eagerly.

        Raises:
            tf.errors.InvalidArgumentError: the gradient has another shape, or an
                index out of range.
        """
        accepted = accumulator_ops.accumulator_apply_sparse(
            self.accumulator_ref,
            _as_int64(local_step),
            _as_indices(grad_indices),
            tf.convert_to_tensor(grad_values, dtype_hint=self.dtype),
            None if grad_shape is None else tf.cast(grad_shape, tf.int64),
            name=name,
        )
        return _op(accepted)

    def take_grad(self, num_required: Any, name: str | None = None) -> Any:
        """Waits for enough gradients, then takes the reduction of all that are held.

        The accumulator is empty afterwards, and its time step one higher.

        Args:
            num_required: int32 scalar: how many gradients to wait for.
            name: name of the op.

        Returns:
            Named tuple of `indices` (ascending, each row once), `values` and `shape`.

        Raises:
            tf.errors.InvalidArgumentError: `num_required` is less than 1.
            tf.errors.CancelledError: the session was closed while this waited.
        """
        return accumulator_ops.accumulator_take_sparse(
            self.accumulator_ref, num_required, self.dtype, name=name
        )

    def take_indexed_slices_grad(
        self, num_required: Any, name: str | None = None
    ) -> tf.IndexedSlices:
        """Takes what `take_grad` takes, as `tf.IndexedSlices`."""
        taken = self.take_grad(num_required, name=name)
        return tf.IndexedSlices(
            indices=taken.indices, values=taken.values, dense_shape=taken.shape
        )


def _as_int64(value: Any) -> tf.Tensor:
    """Converts a step, an integer of any type, for the ops."""
    return tf.cast(tf.convert_to_tensor(value), tf.int64)


def _as_indices(value: Any) -> tf.Tensor:
    """Converts indices for the op: types other than int32 and int64 become int64."""
    indices = tf.convert_to_tensor(value)
    if indices.dtype in (tf.int32, tf.int64):
        return indices
    return tf.cast(indices, tf.int64)


def _op(output: tf.Tensor) -> tf.Operation | None:
    """Returns the result of methods without outputs: the op, or None if eager."""
    return None if tf.executing_eagerly() else output.op
