"""The base class of optimizers that move only the rows that a gradient names."""

import functools
from collections.abc import Collection, Mapping, Sequence
from typing import Any, ClassVar

import tensorflow as tf

from tf_syncrep.python.keras.compat.gradient_sums import sum_by_row
from tf_syncrep.python.keras.optimizers.rules.base_optimizer import (
    BaseOptimizer,
    is_beyond_kernels,
    with_common_text,
)
from tf_syncrep.python.keras.optimizers.tf_ops import handle_ops, rounding_tf_ops
from tf_syncrep.python.ops import rule_ops
from tf_syncrep.python.ops.update_inputs import slot_dtype

__all__ = ["LazyOptimizer"]


@with_common_text
class LazyOptimizer(BaseOptimizer):
    """Base class of optimizers whose updates only touch the rows of a sparse gradient.

    A subclass defines the slots of each variable, and how rows move. Everything else is
    here: dense gradients and sparse ones, in any `tf.distribute.Strategy` and under
    XLA, learning rate schedules, clipping, weight decay, averages, and files of every
    kind, in which slots of tables are saved by table.

    A sparse gradient (`tf.IndexedSlices`, as of an embedding layer) moves the rows that
    it names and no others, in the variable and in its slots. Such an optimizer is
    called lazy: a momentum does not decay in rows that no gradient names. If a row is
    named several times, the sum of its gradients is applied once. Weight decay and
    `use_ema` are Keras' own, and touch the whole table in every step.

    A subclass overrides two methods, and `row_slots` where it helps; `get_config`
    returns the constructor's arguments, as in Keras. A variable's update consists of
    several of TensorFlow's ops: if several workers train asynchronously, one of two
    updates of a row at the same moment may get lost. The classes of this package have
    kernels that lose none.

    Args:
        {{learning_rate}}
        {{base_arguments}}
        name: the optimizer's name; None for the class's.
        stochastic_rounding: round half and bfloat16 variables up or down at random, so
            that each is right on average, and steps that are too small for its dtype
            are not lost; `update_rows` computes in float32 either way. It changes
            nothing for float32 and float64 variables.
        **kwargs: in Keras 3, `loss_scale_factor` and `gradient_accumulation_steps`
            of the base class (accumulators are dense). In Keras 2, `jit_compile`,
            False by default.

    Raises:
        ValueError: the learning rate is below 0.

    Example:
    >>> @tf.keras.utils.register_keras_serializable("mine")
    ... class Lion(tfs.keras.LazyOptimizer):
    ...     def __init__(self, learning_rate=1e-4, beta=0.9, **kwargs):
    ...         super().__init__(learning_rate, **kwargs)
    ...         self.beta = beta
    ...
    ...     def initial_slots(self):
    ...         return {"m": 0.0}
    ...
    ...     def update_rows(self, rows, gradient, slots, learning_rate):
    ...         m = self.beta * slots["m"] + (1 - self.beta) * gradient
    ...         return rows - learning_rate * tf.sign(m), {"m": m}
    ...
    ...     def get_config(self):
    ...         return {**super().get_config(), "beta": self.beta}
    >>> table = tf.Variable(tf.ones([4, 2]))
    >>> gradient = tf.IndexedSlices(tf.ones([2, 2]), tf.constant([3, 1]))
    >>> optimizer = Lion(0.5)
    >>> _ = optimizer.apply_gradients([(gradient, table)])
    >>> print(table.numpy()[:, 0])
    [1.  0.5 1.  0.5]

    [Optimizers](../optimizers.md) has more of this.
    """

    def initial_slots(self) -> dict[str, float]:
        """Returns the slots of each variable; to be overridden.

        Returns:
            The initial value of all elements, by the name of the slot. Slots are
            float64 for float64 variables and float32 for all others.
        """
        raise NotImplementedError

    def row_slots(self) -> Collection[str]:
        """Returns the names of the slots with one number for each row of a variable.

        Such a slot has the variable's first dimension, and 1 for every other. All other
        slots have the variable's shape.
        """
        return ()

    def update_rows(
        self,
        rows: tf.Tensor,
        gradient: tf.Tensor,
        slots: dict[str, tf.Tensor],
        learning_rate: tf.Tensor,
    ) -> tuple[tf.Tensor, Mapping[str, tf.Tensor]]:
        """Moves rows of a variable, or the whole variable; to be overridden.

        Args:
            rows: rows of a variable, in the dtype of its slots.
            gradient: their gradient, of the same shape and dtype.
            slots: the slots of the same rows, by name.
            learning_rate: a scalar of the same dtype.

        Returns:
            The new rows, and their new slots by name.
        """
        raise NotImplementedError

    def create_slots(self, variables: Sequence[Any]) -> None:
        """Makes the slots; called once, when the optimizer is built."""
        made: dict[str, list[Any]] = {name: [] for name in self.initial_slots()}
        for variable in variables:
            dtype = slot_dtype(variable.dtype)
            for name, value in self.initial_slots().items():
                shape = list(variable.shape)
                if name in self.row_slots():
                    shape = rule_ops.row_slot_shape(shape)
                made[name].append(self.add_slot(variable, name, shape, dtype, value))
        self._slots_by_name = made
        self.create_rounding_counts(variables)

    def slots_of_rule(self, variable: Any) -> dict[str, Any]:
        """Returns the slots of `initial_slots`."""
        i = self.slot_index(variable)
        return {name: made[i] for name, made in self._slots_by_name.items()}

    def update_variable(
        self, gradient: Any, variable: tf.Variable, learning_rate: Any
    ) -> None:
        """Updates one variable and its slots; called where the variable is."""
        var_dtype = variable.dtype
        dtype = slot_dtype(var_dtype)
        rate = tf.cast(learning_rate, dtype)
        rounding = self.rounding_of(variable)
        handles = {k: x.handle for k, x in self.slots_of_rule(variable).items()}
        if isinstance(gradient, tf.IndexedSlices):
            values = tf.cast(gradient.values, dtype)
            rows, gradient = sum_by_row(values, gradient.indices)
            get = functools.partial(handle_ops.gather, rows=rows)
            put = functools.partial(handle_ops.scatter, rows=rows)
        else:
            rows, gradient = None, tf.cast(gradient, dtype)
            get, put = handle_ops.read, handle_ops.assign
        values, slots = self.update_rows(
            tf.cast(get(variable.handle, dtype=var_dtype), dtype),
            gradient,
            {k: get(handle, dtype=dtype) for k, handle in handles.items()},
            rate,
        )
        values = rounding_tf_ops.narrow(values, var_dtype, rounding, rows)
        put(variable.handle, value=values)
        for name, handle in handles.items():
            put(handle, value=slots[name])


class RuleOptimizer(LazyOptimizer):
    """A lazy optimizer whose updates are one op, if there is a kernel for it."""

    #: The arguments that only this class has. Attributes have their values.
    _own_arguments: ClassVar[Sequence[str]] = ()

    def rule(self) -> tuple[str, dict[str, float]]:
        """Returns the rule's name, and its numbers except `lr`; to be overridden."""
        raise NotImplementedError

    def row_slots(self) -> Collection[str]:
        """Returns the names of the slots with one number for each row of a variable."""
        rule = rule_ops.RULES[self.rule()[0]]
        return rule.slots if rule.is_rowwise else ()

    def update_variable(
        self, gradient: Any, variable: tf.Variable, learning_rate: Any
    ) -> None:
        """Updates one variable and its slots; called where the variable is."""
        if is_beyond_kernels(variable):
            super().update_variable(gradient, variable, learning_rate)
            return
        rule, rest = self.rule()
        dtype = slot_dtype(variable.dtype)
        operands = (
            rule,
            variable.handle,
            {k: slot.handle for k, slot in self.slots_of_rule(variable).items()},
            {"lr": tf.cast(learning_rate, dtype), **rest},
        )
        rounding = self.rounding_of(variable)
        if isinstance(gradient, tf.IndexedSlices):
            values = tf.cast(gradient.values, variable.dtype)
            rule_ops.resource_sparse_apply_rule(
                *operands, values, gradient.indices, rounding=rounding
            )
        else:
            gradient = tf.cast(gradient, variable.dtype)
            rule_ops.resource_apply_rule(*operands, gradient, rounding=rounding)

    def get_config(self) -> dict[str, Any]:
        """Returns the configuration; `from_config` makes an equal optimizer of it."""
        own = {name: getattr(self, name) for name in self._own_arguments}
        return {**super().get_config(), **own}
