"""Training in tf.compat.v1 graphs and sessions.

The optimizers are in `adam_async` and `sync_replicas`, accumulators of gradients in
`accumulators`, lookups in partitioned tables in `embedding_lookup`, and checkpoints in
`checkpoint_saver_hook`. `v1_names` puts them under TensorFlow's own names. The other
modules are parts of these.
"""
