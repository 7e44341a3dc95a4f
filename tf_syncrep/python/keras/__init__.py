"""Training with Keras 3, tf_keras and Keras 2.

The folders are `fit`, `sync_replicas`, `embedding` and `checkpoint`, and `compat` for
private names. AdamAsync is in `adam_async`.
"""
