"""Optimizers with ops of their own, one a rule."""
