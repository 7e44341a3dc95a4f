"""Training with Keras 3, tf_keras and Keras 2.

The folders are `fit`, `publishing`, `sync_replicas`, `embedding`, `tables`,
`optimizers`, `checkpoint` and `transfers`, and `compat` for private names. `cluster` is
the cluster of this coordinator, `parts` finds a model's optimizers and metrics,
`builds` sees each optimizer before it is built, and `optimizer_slots` finds the slots
of any.
`training_clock` measures training, and `sidecar_evaluator` evaluates its checkpoints.
"""
