"""Training in tf.compat.v1 graphs and sessions.

The folders are `sync_replicas` and `checkpoint`. Optimizers are in `adagrad`,
`adam_async`, `ftrl`, `gradient_descent` and `momentum`; all but AdamAsync are a rule
(`rule_optimizer`), and what it shares with them is in `base_optimizer`. Accumulators of
gradients are in `accumulators`, and lookups in partitioned tables in
`embedding_lookup`. `hyper_parameters` may be numbers, tensors, variables or callables,
and `variable_rows` says which rows of which table a variable holds. `part_scalars` are
AdamAsync's powers, which restore into any number of parts. `v1_names` puts AdamAsync
and SyncReplicas under TensorFlow's own names.
"""
