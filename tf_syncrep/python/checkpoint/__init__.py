"""Checkpoints: each task writes its own variables while training goes on."""
