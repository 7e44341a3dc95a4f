"""The base class of optimizers around others, in Keras 2."""

import importlib
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

# Private: the base class's own check of gradients, with its warning, is there.
_utils = importlib.import_module(
    tf.keras.optimizers.Optimizer.__module__.rpartition(".")[0] + ".utils"
)


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
        """Hands in gradients, one for each variable.

        `grads_and_vars`: pairs of gradient and variable; a gradient may be None.
        `skip_gradients_aggregation`: has no effect, since there is one replica. Raises
        ValueError: all gradients are None.
        """
        del name, skip_gradients_aggregation, kwargs
        pairs = list(grads_and_vars)
        if pairs:
            # As in the base class, variables are made outside any function.
            with tf.init_scope():
                self.build([variable for _, variable in pairs])
            pairs = _utils.filter_empty_gradients(pairs)
            self._receive(*zip(*pairs, strict=True))
        return self.iterations
