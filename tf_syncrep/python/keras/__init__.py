"""Training with Keras 3, tf_keras and Keras 2.

The folders are `fit`, `sync_replicas`, `embedding`, `checkpoint` and `transfers`, and
`compat` for private names. Each optimizer has a module, such as `adam_async`, and
`base_optimizer` and `lazy_optimizer` have what they share.
"""
