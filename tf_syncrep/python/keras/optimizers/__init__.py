"""Optimizers that move only the rows that a gradient names.

The optimizers are `adagrad`, `adam_async`, `ftrl`, `rowwise_adagrad` and `sgd`.
`base_optimizer` and `lazy_optimizer` have their base classes, and `outer_optimizer` has
that of optimizers around others. Where our kernels cannot run, `adam_async_tf_ops`,
`rounding_tf_ops` and `handle_ops` take their place. `saved_optimizers` makes optimizers
from their configurations. `own_optimizers` makes optimizers that each train some
tables, and `table_optimizers` trains a model with them.
"""
