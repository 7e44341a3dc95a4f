"""Optimizers that move only the rows that a gradient names."""
