"""Training in tf.compat.v1 graphs and sessions."""
