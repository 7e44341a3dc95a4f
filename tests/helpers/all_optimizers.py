"""Optimizers that no list of a test can name: those of this Keras, and a user's own."""

import inspect

import tensorflow as tf

import tf_syncrep as tfs


def rules_in(module):
    """Optimizers that have a rule of their own, rather than an inner optimizer."""
    return {
        name: kind
        for name, kind in vars(module).items()
        if isinstance(kind, type)
        and "learning_rate" in inspect.signature(kind.__init__).parameters
    }


KERAS_OPTIMIZERS = rules_in(tf.keras.optimizers)


@tf.keras.utils.register_keras_serializable("tests")
class LionOfMine(tfs.keras.LazyOptimizer):
    """A rule without a kernel, as a user would write it."""

    def __init__(self, learning_rate=1e-4, momentum=0.5, **kwargs):
        super().__init__(learning_rate, **kwargs)
        self.momentum = momentum

    def initial_slots(self):
        return {"momentum": 0.0}

    def update_rows(self, rows, gradient, slots, learning_rate):
        m = self.momentum * slots["momentum"] + (1 - self.momentum) * gradient
        return rows - learning_rate * tf.sign(m), {"momentum": m}

    def get_config(self):
        return {**super().get_config(), "momentum": self.momentum}
