"""Optimizers for tf.compat.v1 graphs and sessions."""
