"""Checkpoints of Keras models.

The callback is in `checkpoint`, and `contents` finds what a model's checkpoint holds.
`position` tracks where in its epochs a training is, and `ends` makes the last
checkpoint come after all other callbacks.
"""
