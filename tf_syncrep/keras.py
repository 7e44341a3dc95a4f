"""Optimizers of whatever Keras `tf.keras` is: Keras 3, tf_keras or Keras 2."""

from tf_syncrep.python.keras.adam_async import AdamAsync

__all__ = ["AdamAsync"]
