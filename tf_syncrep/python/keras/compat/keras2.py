"""The base classes of optimizers in Keras 2: tf_keras, or Keras of TensorFlow 2.15."""

import importlib
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from tf_syncrep.python.keras.compat.gradient_sums import (
    sum_equal_rows,
    sum_over_replicas,
)

# Private: the base class's own check of gradients, with its warning, is there.
_utils = importlib.import_module(
    tf.keras.optimizers.Optimizer.__module__.rpartition(".")[0] + ".utils"
)


class SlotOptimizer(tf.keras.optimizers.Optimizer):
    """Makes slots beside their variables, and works in any tf.distribute context.

    See the package's documentation for what subclasses override.
    """

    def __init__(self, learning_rate: Any, *, jit_compile: bool = False, **kwargs: Any):
        # Unlike in the base class, the default is off: if XLA compiles an update, it
        # cannot be one of this package's ops, which are faster.
        super().__init__(jit_compile=jit_compile, **kwargs)

        # Each step assigns a schedule's rate to a variable, in replica context; the
        # base class does not say what that means if there are several replicas.
        def only_first_replica(next_creator, **kwargs):
            aggregation = tf.VariableAggregation.ONLY_FIRST_REPLICA
            return next_creator(**{**kwargs, "aggregation": aggregation})

        with tf.variable_creator_scope(only_first_replica):
            # This is private, but every optimizer of Keras 2 uses it.
            self._learning_rate = self._build_learning_rate(learning_rate)

    def add_filled_slot(
        self,
        variable: tf.Variable,
        name: str,
        shape: Any,
        dtype: tf.DType,
        fill: Callable[[Any, tf.DType], tf.Tensor],
    ) -> tf.Variable:
        """Adds an optimizer variable on the device of a model variable."""

        # `add_variable_from_reference` would force the model variable's dtype.
        def with_dtype(next_creator, **kwargs):
            return next_creator(**{**kwargs, "dtype": dtype})

        with tf.variable_creator_scope(with_dtype):
            return self.add_variable_from_reference(
                variable,
                name,
                # It is a callable, so that it is computed where the slot is: a table of
                # a parameter server must not be sent there.
                initial_value=lambda: fill(shape, dtype),
            )

    def slot_index(self, variable: tf.Variable) -> int:
        """Returns the place of a variable among those of `create_slots`."""
        # This is private, but the documentation of Keras tells optimizers to use it.
        return self._index_dict[self._var_key(variable)]

    def has_slots_of(self, variable: tf.Variable) -> bool:
        """Returns whether a variable is one of those of `create_slots`."""
        # This is private, as in `slot_index`.
        return getattr(self, "_built", False) and (
            self._var_key(variable) in self._index_dict
        )

    def build(self, var_list):
        """Makes the optimizer's variables, once."""
        # Private: `_built` is how optimizers of Keras 2 remember it.
        if getattr(self, "_built", False):
            return
        super().build(var_list)
        self.create_slots(var_list)
        self._built = True

    def update_step(self, gradient, variable):
        """Updates one variable; called by Keras."""
        self.update_variable(gradient, variable, self.learning_rate)

    def get_config(self):
        """Returns the configuration; `from_config` makes an equal optimizer of it."""
        # This is private, but every optimizer of Keras 2 uses it.
        rate = self._serialize_hyperparameter(self._learning_rate)
        return {**super().get_config(), "learning_rate": rate}

    def apply_gradients(
        self, grads_and_vars, name=None, skip_gradients_aggregation=False, **kwargs
    ):
        """Applies gradients; in cross-replica context those of all replicas."""
        grads_and_vars = list(grads_and_vars)
        if tf.distribute.in_cross_replica_context():
            if grads_and_vars and not skip_gradients_aggregation:
                grads, variables = zip(*grads_and_vars, strict=True)
                grads = sum_over_replicas(grads, variables)
                grads_and_vars = list(zip(grads, variables, strict=True))
            skip_gradients_aggregation = True
        return super().apply_gradients(
            grads_and_vars,
            name=name,
            skip_gradients_aggregation=skip_gradients_aggregation,
            **kwargs,
        )

    def aggregate_gradients(self, grads_and_vars):
        """Sums gradients over replicas, in replica context; called by Keras."""
        if tf.distribute.get_strategy().num_replicas_in_sync == 1:
            # The sum would be a copy, which would have to be sent. The gradient itself,
            # or the rows that it names, may have arrived already.
            return grads_and_vars
        return super().aggregate_gradients(grads_and_vars)

    # Private: these two methods leave the replica for an update. Those of the base
    # class work only in replica context.

    def _internal_apply_gradients(self, grads_and_vars):
        if not tf.distribute.in_cross_replica_context():
            return super()._internal_apply_gradients(grads_and_vars)
        return self._distributed_apply_gradients_fn(
            tf.distribute.get_strategy(), grads_and_vars
        )

    def _apply_weight_decay(self, variables):
        if not self.weight_decay:
            return
        if not tf.distribute.in_cross_replica_context():
            super()._apply_weight_decay(variables)
            return

        def decay(variable):
            rate = tf.cast(self.learning_rate, variable.dtype)
            variable.assign_sub(variable * self.weight_decay * rate)

        for variable in variables:
            if self._use_weight_decay(variable):
                tf.distribute.get_strategy().extended.update(
                    variable, decay, group=False
                )

    # Private: the base class clips each occurrence of a row separately, and then sums.
    def _clip_gradients(self, grads):
        if self._is_clipping:
            grads = sum_equal_rows(grads)
        return super()._clip_gradients(grads)

    # Private: this sums equal rows on the worker. The ops do that themselves, and
    # faster; it pays only if fewer rows are sent to a parameter server.
    def _deduplicate_sparse_grad(self, grads):
        is_sent = isinstance(
            self._distribution_strategy, tf.distribute.ParameterServerStrategy
        )
        if is_sent and not self._is_clipping:
            return sum_equal_rows(grads)
        return grads

    @property
    def _is_clipping(self) -> bool:
        """Whether equal rows were summed already, in order to be clipped."""
        return bool(self.clipnorm or self.clipvalue or self.global_clipnorm)


class ReceivingOptimizer(tf.keras.optimizers.Optimizer):
    """Passes gradients to a subclass, whose inner optimizers make the updates.

    See the package's documentation for what subclasses override.
    """

    def __init__(self, leader: Any, name: str, **kwargs: Any):
        super().__init__(name=name, jit_compile=False, **kwargs)
        # Private: checkpoints and files use this counter and this list. A list that
        # TensorFlow tracks may only get longer, so this one is empty until the inner
        # optimizers are built.
        self._iterations = leader._iterations
        self._variables = []

    def build(self, var_list: Sequence[Any]) -> None:
        """Makes the variables of all inner optimizers, once."""
        # Private: optimizers of Keras 2 remember here that they were built.
        if getattr(self, "_built", False):
            return
        self._build_inner(list(var_list))
        leader, *_ = optimizers = self._optimizers()
        self._iterations = leader._iterations  # It may have been set meanwhile.
        for optimizer in optimizers:
            self._variables.extend(optimizer._variables)
        # Private: these objects were found to track before others were made.
        vars(self).pop("_coalesced_children", None)
        self._built = True

    def apply_gradients(
        self, grads_and_vars, name=None, skip_gradients_aggregation=False, **kwargs
    ):
        """Hands in gradients, one for each variable; a gradient may be None."""
        del name, skip_gradients_aggregation, kwargs  # There is one replica.
        pairs = list(grads_and_vars)
        if pairs:
            # As in the base class, variables are made outside any function.
            with tf.init_scope():
                self.build([variable for _, variable in pairs])
            pairs = _utils.filter_empty_gradients(pairs)
            self._receive(*zip(*pairs, strict=True))
        return self.iterations
