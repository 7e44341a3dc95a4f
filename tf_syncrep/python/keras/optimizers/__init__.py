"""Optimizers that move only the rows that a gradient names.

`base_optimizer` and `lazy_optimizer` have their base classes, and `outer_optimizer`
that of optimizers around others. `own_optimizers` makes optimizers that each train some
tables, and `table_optimizers` trains a model with them.
"""
