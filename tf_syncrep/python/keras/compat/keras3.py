"""The base classes of optimizers in Keras 3."""

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from tf_syncrep.python.keras.compat.gradient_sums import (
    sum_equal_rows,
    sum_over_replicas,
)
from tf_syncrep.python.keras.compat.native import native
from tf_syncrep.python.keras.compat.tracing import outside_of_functions


class _AtomicCounter(tf.keras.Variable):
    """A variable whose `assign_add` is one op.

    Keras's own variable reads, adds, and assigns, so that steps of several workers on
    one parameter server get lost.
    """

    def assign_add(self, value):
        self.value.assign_add(tf.cast(value, self.dtype))
        return self.value


class SlotOptimizer(tf.keras.optimizers.Optimizer):
    """Makes slots beside their variables, and works in any tf.distribute context.

    See the package's documentation for what subclasses override.
    """

    def __init__(self, learning_rate: Any, **kwargs: Any):
        super().__init__(learning_rate, **kwargs)
        # Private: the base class makes the counter, keeps it under several names, and
        # offers no way to choose its class. Another counter would have to replace it
        # under each of these names.
        self._iterations.__class__ = _AtomicCounter

    def add_filled_slot(
        self,
        variable: Any,
        name: str,
        shape: Any,
        dtype: tf.DType,
        fill: Callable[[Any, tf.DType], tf.Tensor],
    ) -> Any:
        """Adds an optimizer variable on the device of a model variable."""
        # `add_variable_from_reference` would force the variable's shape and dtype.
        path = getattr(variable, "path", variable.name)
        prefix = path.replace("/", "_").replace(":", "_")
        # Private: this is the strategy in whose scope the optimizer was made.
        extended = self._distribution_strategy.extended
        with extended.colocate_vars_with(native(variable)):
            return self.add_variable(
                shape=tuple(shape),
                dtype=dtype.name,
                initializer=lambda shape, dtype: fill(shape, tf.as_dtype(dtype)),
                name=f"{prefix}_{name}",
            )

    def slot_index(self, variable: Any) -> int:
        """Returns the place of a variable among those of `create_slots`."""
        # This is private, but the documentation of Keras tells optimizers to use it.
        return self._get_variable_index(variable)

    def has_slots_of(self, variable: Any) -> bool:
        """Returns whether a variable is one of those of `create_slots`."""
        # Private: these are the variables with which the optimizer was built.
        return self.built and any(x is variable for x in self._trainable_variables)

    def build(self, variables):
        """Makes the optimizer's variables, once."""
        if not self.built:
            outside_of_functions(lambda: self._make_variables(variables))

    def _make_variables(self, variables):
        super().build(variables)
        self.create_slots(variables)

    def update_step(self, gradient, variable, learning_rate):
        """Updates one variable; called by Keras."""
        self.update_variable(gradient, native(variable), learning_rate)

    def apply(self, grads, trainable_variables=None):
        """Applies gradients; in cross-replica context those of all replicas."""
        grads = list(grads)
        if trainable_variables is not None:
            trainable_variables = list(trainable_variables)
        if tf.distribute.in_cross_replica_context():
            # Private: these are the variables with which the optimizer was built.
            variables = trainable_variables or self._trainable_variables
            grads = sum_over_replicas(grads, [native(v) for v in variables])
        if self.loss_scale_factor is not None:
            grads = [_divisible(g) for g in grads]
        super().apply(grads, trainable_variables)

    # Private: the following methods are steps of `apply`. Those of the base class are
    # wrong for sparse gradients, in cross-replica context, or when several workers
    # race.

    def _clip_gradients(self, grads):
        # The base class clips each occurrence of a row separately, and makes sparse
        # gradients dense to find their global norm.
        if self.clipnorm or self.clipvalue or self.global_clipnorm:
            grads = sum_equal_rows(grads)
        if self.global_clipnorm:
            return tf.clip_by_global_norm(grads, self.global_clipnorm)[0]
        return super()._clip_gradients(grads)

    def _backend_apply_gradients(self, grads, trainable_variables):
        # The base class clips each replica's gradients separately, and assigns the
        # averages in replica context, which fails under most strategies.
        if self.gradient_accumulation_steps:
            super()._backend_apply_gradients(grads, trainable_variables)
            return
        variables = [native(v) for v in trainable_variables]
        is_one_of_several = tf.distribute.get_strategy().num_replicas_in_sync > 1
        if is_one_of_several and not tf.distribute.in_cross_replica_context():
            # The sum over one replica would be a copy, which would have to be sent. The
            # gradient itself, or the rows that it names, may have arrived already.
            pairs = list(zip(grads, variables, strict=True))
            grads = [g for g, _ in self._all_reduce_sum_gradients(pairs)]
        grads = self._clip_gradients(grads)
        self._apply_weight_decay(variables)
        pairs = list(zip(grads, variables, strict=True))
        # It is read here once. Otherwise the update of each variable would read it
        # again, and it would be sent again.
        rate = tf.convert_to_tensor(self.learning_rate)
        _merge(self._distributed_tf_update_step, pairs, rate)
        if self.use_ema:
            _merge(self._move_averages)

    def _overwrite_model_variables_with_average_value(self, trainable_variables):
        # The base class takes averages by position, and so those of other variables if
        # some of those with which the optimizer was built are not trained any more.
        averages = self._model_variables_moving_average
        for variable in filter(self.has_slots_of, trainable_variables):
            average = averages[self.slot_index(variable)]
            if average is not None:
                self._distribution_strategy.extended.update(
                    native(variable), lambda v, a: v.assign(a), args=(native(average),)
                )

    def _apply_weight_decay(self, variables):
        if self.weight_decay:
            decayed = [native(v) for v in variables if self._use_weight_decay(v)]
            _merge(self._decay_weights, decayed)

    def _decay_weights(self, strategy, variables):
        def decay(variable):
            rate = tf.cast(self.learning_rate, variable.dtype)
            variable.assign_sub(variable * self.weight_decay * rate)

        for variable in variables:
            strategy.extended.update(variable, decay, group=False)

    def _move_averages(self, strategy):
        """Updates the averages of all variables, and copies them back if it is time."""
        pairs = [
            (native(average), native(variable))
            for average, variable in zip(
                self._model_variables_moving_average,
                self._trainable_variables,
                strict=True,
            )
            if average is not None
        ]
        not_first_step = self._iterations.value > 0

        # The first step makes the average equal to the variable. It is one subtraction,
        # so that no worker's step is lost.
        def move(average, variable):
            kept = self.ema_momentum * tf.cast(not_first_step, average.dtype)
            average.assign_sub((1 - kept) * (average - variable))

        def copy_back():
            for average, variable in pairs:
                strategy.extended.update(
                    variable, lambda v, a: v.assign(a), args=(average,), group=False
                )

        for average, variable in pairs:
            strategy.extended.update(average, move, args=(variable,), group=False)
        if self.ema_overwrite_frequency:
            step = self._iterations.value + 1
            tf.cond(step % self.ema_overwrite_frequency == 0, copy_back, lambda: None)


class _DivisibleSlices(tf.IndexedSlices):
    """A sparse gradient that the base class can divide by its loss scale."""

    def __truediv__(self, divisor):
        return tf.IndexedSlices(self.values / divisor, self.indices, self.dense_shape)


def _divisible(gradient: Any) -> Any:
    """Wraps sparse gradients; returns others as they are."""
    if isinstance(gradient, tf.IndexedSlices):
        return _DivisibleSlices(gradient.values, gradient.indices, gradient.dense_shape)
    return gradient


def _merge(fn: Callable[..., None], *args: Any) -> None:
    """Calls `fn(strategy, *args)` in cross-replica context, from either context."""
    strategy = tf.distribute.get_strategy()
    if tf.distribute.in_cross_replica_context():
        fn(strategy, *args)
    else:
        # Private: it is like `merge_call`, but stays in the replica under strategies
        # that cannot leave it while XLA compiles.
        tf.__internal__.distribute.interim.maybe_merge_call(fn, strategy, *args)


class ReceivingOptimizer(tf.keras.optimizers.Optimizer):
    """Passes gradients to a subclass, whose inner optimizers make the updates.

    See the package's documentation for what subclasses override.
    """

    def __init__(self, leader: Any, name: str, **kwargs: Any):
        # The base class requires a rate, which nobody sees.
        super().__init__(learning_rate=0.0, name=name, **kwargs)
        # Private: `iterations`, schedules and checkpoints use this counter.
        self._iterations = leader._iterations

    @property
    def variables(self):
        """The variables of all inner optimizers."""
        return [v for optimizer in self._optimizers() for v in optimizer.variables]

    def build(self, variables: Sequence[Any]) -> None:
        """Makes the variables of all inner optimizers, once."""
        if self.built:
            return
        variables = list(variables)
        outside_of_functions(lambda: self._build_inner(variables))
        # Private: `apply` uses them if it is given no variables. The base class is not
        # called, since it would make averages of its own, and the attribute is not
        # assigned, since Keras would track it.
        self.__dict__["_trainable_variables"] = variables
        self.built = True

    def apply(self, grads, trainable_variables=None):
        """Hands in gradients, one for each variable; a gradient may be None."""
        grads = list(grads)
        if not grads:
            return
        if trainable_variables is not None:
            variables = list(trainable_variables)
            self.build(variables)
        elif self.built:
            variables = self._trainable_variables
        else:
            raise ValueError(
                "`apply` without `trainable_variables` needs an optimizer that is "
                "built: call `optimizer.build(trainable_variables)` first."
            )
        if len(grads) != len(variables):
            raise ValueError(
                "`grads` must have one gradient for each variable. Received: "
                f"{len(grads)} gradients for {len(variables)} variables."
            )
        # Private: this is the base class's own check, with its warning.
        self._receive(*self._filter_empty_gradients(grads, variables))
