"""Checkpoints of Keras models."""
