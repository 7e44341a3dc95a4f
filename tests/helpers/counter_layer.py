"""A layer by which tests see whether a model was called."""

import tensorflow as tf


class Counter(tf.keras.layers.Layer):
    """Counts its calls by itself."""

    def build(self, _):
        self.counted = self.add_weight(
            shape=(), initializer="zeros", trainable=False, name="counted"
        )

    def call(self, x):
        self.counted.assign_add(1.0)
        return x
