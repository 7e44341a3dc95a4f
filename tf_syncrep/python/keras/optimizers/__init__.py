"""Optimizers that move only the rows that a gradient names.

`base_optimizer` and `lazy_optimizer` are their base classes. `own_optimizers` makes
those that tables have for themselves, and `table_optimizers` trains a model with them.
"""
