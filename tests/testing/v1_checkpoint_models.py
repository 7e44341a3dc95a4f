"""A model for tests of checkpoints of v1 graphs."""

import tensorflow.compat.v1 as tf

ROWS, WIDTH = 20_000, 16  # 1.28 MB: written by rows


def loss(use_resource, parts=None):
    """Builds the model: a table, whole or in parts, and a bias.

    The gradient is a function of these and of the global step, so that all replicas of
    a synchronous training give the same gradient.

    Args:
        use_resource: whether the variables are resource variables.
        parts: how many parts the table has.

    Returns:
        The loss.
    """
    step = tf.train.get_or_create_global_step()
    partitioner = tf.fixed_size_partitioner(parts) if parts else None
    with tf.variable_scope("", use_resource=use_resource):
        with tf.variable_scope("", partitioner=partitioner):
            table = tf.get_variable(
                "table", [ROWS, WIDTH], initializer=tf.ones_initializer()
            )
        bias = tf.get_variable("bias", [3, 2], initializer=tf.zeros_initializer())
    ids = tf.cast(tf.stack([step * 7, step * 7, step * 11]) % ROWS, tf.int64)
    rows = tf.nn.embedding_lookup(table, ids)
    scale = tf.cast(step + 1, tf.float32)
    return tf.reduce_sum(rows**2) * scale + tf.reduce_sum((bias - scale) ** 2)


def values(session):
    """The values of all variables of the graph, by name."""
    return session.run({v.op.name: v for v in tf.global_variables()})
