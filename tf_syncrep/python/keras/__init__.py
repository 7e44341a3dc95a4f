"""Training with Keras 3, tf_keras and Keras 2.

The folders are `fit`, `sync_replicas`, `embedding`, `tables`, `optimizers`,
`checkpoint` and `transfers`, and `compat` for private names.
"""
