"""Training in tf.compat.v1 graphs and sessions.

The folders are `sync_replicas` and `checkpoint`. AdamAsync is in `adam_async`,
accumulators of gradients are in `accumulators`, and lookups in partitioned tables in
`embedding_lookup`. `v1_names` puts the optimizers under TensorFlow's own names.
"""
