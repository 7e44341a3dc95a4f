"""The base class of an optimizer that consists of several, in Keras 2."""

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tf_syncrep.python.keras.compat.of_inner import OfInner
from tf_syncrep.python.keras.compat.of_several import OfSeveral


class SeveralOptimizers(OfSeveral, tf.keras.optimizers.Optimizer):
    """Hands the gradients of a batch to the optimizers of their variables.

    See the package's documentation for what subclasses override.
    """

    # Private: the counter, which Keras 2 lets one replace.
    _iterations = OfInner("optimizer")

    def __init__(
        self,
        optimizer: Any,
        name: str,
        global_clipnorm: float | None,
        loss_scale_factor: float | None,
    ):
        if loss_scale_factor is not None:
            raise ValueError(
                "`loss_scale_factor` must be None: Keras 2 has LossScaleOptimizer. "
                f"Received: loss_scale_factor={loss_scale_factor}"
            )
        super().__init__(name=name, global_clipnorm=global_clipnorm, jit_compile=False)
        self.loss_scale_factor = None
        self.optimizer = optimizer
        # Private: the counter and the list that checkpoints and files look at. The
        # counter is that of `optimizer` already; this makes TensorFlow track it.
        self._iterations = optimizer._iterations
        # Filled when all are built: a list that TensorFlow tracks may only get longer.
        self._variables = []

    def build(self, var_list: Sequence[Any]) -> None:
        """Makes the variables of all optimizers, once."""
        # Private: how optimizers of Keras 2 remember that they were built.
        if getattr(self, "_built", False):
            return
        self._build_all(list(var_list))
        for optimizer in self.all_optimizers():
            self._variables.extend(optimizer._variables)
        # Private: what was found to track before the others were made.
        vars(self).pop("_coalesced_children", None)
        self._built = True

    def apply_gradients(
        self, grads_and_vars, name=None, skip_gradients_aggregation=False, **kwargs
    ):
        """Applies gradients, one for each variable.

        Args:
            grads_and_vars: pairs of gradient and variable; a gradient may be None.
            name: name scope of the ops, by default each optimizer's name.
            skip_gradients_aggregation: the gradients are those of the whole step.
            **kwargs: older names of the same.

        Returns:
            `iterations`.

        Raises:
            ValueError: no gradient at all.
        """
        pairs = list(grads_and_vars)
        if not pairs:
            return self.iterations
        gradients, variables = zip(*pairs, strict=True)
        # As in the base class: variables are made outside of any function.
        with tf.init_scope():
            self.build(variables)
        if all(gradient is None for gradient in gradients):
            raise ValueError("No gradients provided for any variable.")
        for optimizer, of_it, own in self._parts(gradients, variables):
            if any(gradient is not None for gradient in of_it):
                optimizer.apply_gradients(
                    zip(of_it, own, strict=True),
                    name=name,
                    skip_gradients_aggregation=skip_gradients_aggregation,
                    **kwargs,
                )
            else:
                optimizer.iterations.assign_add(1, read_value=False)
        return self.iterations
