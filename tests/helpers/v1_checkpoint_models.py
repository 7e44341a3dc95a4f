"""A model for tests of checkpoints of v1 graphs."""

import tensorflow.compat.v1 as tf

ROWS, WIDTH = 20_000, 16  # 1.28 MB: written by rows


def loss(use_resource, parts=None):
    """Builds the model: a table, whole or in parts, and a bias; returns the loss.

    The gradient is a function of these and of the global step, so that all replicas of
    a synchronous training give the same gradient.
    """
    step = tf.train.get_or_create_global_step()
    table, bias = _variables(use_resource, parts)
    ids = tf.cast(tf.stack([step * 7, step * 7, step * 11]) % ROWS, tf.int64)
    rows = tf.nn.embedding_lookup(table, ids)
    scale = tf.cast(step + 1, tf.float32)
    return tf.reduce_sum(rows**2) * scale + tf.reduce_sum((bias - scale) ** 2)


def _variables(use_resource, parts):
    partitioner = tf.fixed_size_partitioner(parts) if parts else None
    with tf.variable_scope("", use_resource=use_resource):
        with tf.variable_scope("", partitioner=partitioner):
            table = tf.get_variable(
                "table", [ROWS, WIDTH], initializer=tf.ones_initializer()
            )
        bias = tf.get_variable("bias", [3, 2], initializer=tf.zeros_initializer())
    return table, bias


def serve(parts=None):
    """Builds what serves: it looks rows up, and returns them and the bias."""
    table, bias = _variables(None, parts)
    ids = tf.placeholder(tf.int64, [None])
    rows = tf.nn.embedding_lookup(table, ids, partition_strategy="div")
    return {"ids": ids}, {"rows": rows, "bias": tf.identity(bias)}


def trained_alone(optimizer, steps, use_resource, parts=None, scope=""):
    """The values after each of these numbers of steps of one process.

    The function `optimizer` makes the optimizer, which makes its slots in a scope.
    """
    found = {}
    with tf.Graph().as_default(), tf.Session() as session:
        made = loss(use_resource, parts)
        with tf.variable_scope(scope, auxiliary_name_scope=False):
            train_op = optimizer().minimize(made, tf.train.get_global_step())
        session.run(tf.global_variables_initializer())
        for step in range(1, max(steps) + 1):
            session.run(train_op)
            if step in steps:
                found[step] = values(session)
    return found


def values(session):
    """The values of all variables of the graph, by name."""
    return session.run({v.op.name: v for v in tf.global_variables()})
