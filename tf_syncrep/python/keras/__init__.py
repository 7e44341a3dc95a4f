"""Optimizers for Keras 3, tf_keras and Keras 2."""
