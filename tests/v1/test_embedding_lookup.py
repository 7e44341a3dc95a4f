"""Lookups in partitioned tables, compared with TensorFlow's own."""

import numpy as np
import pytest
import tensorflow as tf
from combinations import thinned

import tf_syncrep as tfs

tf1 = tf.compat.v1
ROWS, WIDTH = 11, 4
TABLE = np.random.default_rng(0).normal(size=(ROWS, WIDTH)).astype(np.float32)


def parts_of(kind, use_resource):
    """A table as v1 scripts make it, with its strategy."""
    if kind == "partitioned":

        def rows_of_part(shape, dtype, partition_info):
            (begin, _) = partition_info.var_offset
            return tf.constant(TABLE[begin : begin + shape[0]], dtype)

        with tf1.variable_scope("scope", use_resource=use_resource):
            table = tf1.get_variable(
                "table",
                TABLE.shape,
                initializer=rows_of_part,
                partitioner=tf1.fixed_size_partitioner(3),
            )
        return table, "div"
    if kind == "one":
        return tf1.Variable(TABLE, use_resource=use_resource), "mod"
    parts = np.split(TABLE, [4, 8])
    if kind == "mod":
        parts = [TABLE[i::3] for i in range(3)]
    return [tf1.Variable(part, use_resource=use_resource) for part in parts], kind


def stock(params, ids, weights, combiner, strategy):
    """The same by TensorFlow's own function."""
    if combiner is None:
        return tf1.nn.embedding_lookup(params, ids, strategy)
    return tf1.nn.embedding_lookup_sparse(
        params, ids, weights, strategy, combiner=combiner
    )


@pytest.fixture
def shapes(request):
    """Sizes are `Dimension`s after `tf.compat.v1.disable_v2_behavior`."""
    if request.param == "v1":
        tf1.disable_v2_tensorshape()
    yield request.param
    tf1.enable_v2_tensorshape()


@thinned(
    "shapes, kind, use_resource, combiner",
    ["v1", "v2"],
    ["partitioned", "mod", "div", "one"],
    [False, True],
    [None, "sum", "mean", "sqrtn"],
    indirect=["shapes"],
)
def test_vectors_and_a_step_are_those_of_tensorflow(
    shapes, kind, use_resource, combiner
):
    results = []
    for ours in (False, True):
        with tf.Graph().as_default(), tf1.Session() as session:
            params, strategy = parts_of(kind, use_resource)
            ids, weights = tf.constant([[10, 0, 3], [3, 3, 7]], tf.int64), None
            if combiner is not None:
                places = [[0, 0], [0, 2], [1, 1], [1, 2], [1, 4]]
                ids = tf.SparseTensor(places, [10, 0, 3, 3, 7], [2, 5])
                weights = tf.SparseTensor(places, [1.0, 0.5, 2.0, 1.0, 0.25], [2, 5])
            if ours:
                vectors = tfs.train.embedding_lookup(
                    params,
                    ids,
                    weights=weights,
                    combiner=combiner,
                    partition_strategy=strategy,
                )
            else:
                vectors = stock(params, ids, weights, combiner, strategy)
            variables = tf1.trainable_variables()
            loss = tf.reduce_sum(vectors**2)
            step = tf1.train.GradientDescentOptimizer(0.1).minimize(loss)
            gradients = tf1.gradients(loss, variables)
            assert all(isinstance(x, tf.IndexedSlices) for x in gradients)
            session.run(tf1.global_variables_initializer())
            found = session.run(vectors)
            rows = session.run([gradient.indices for gradient in gradients])
            session.run(step)
            results.append((found, *session.run(variables)))
            if ours:
                assert all(np.all(np.diff(x) > 0) for x in rows)
    for expected, actual in zip(*results, strict=True):
        np.testing.assert_allclose(actual, expected, atol=1e-5)


def test_entries_of_sparse_ids_come_in_any_order():
    with tf.Graph().as_default(), tf1.Session() as session:
        params, _ = parts_of("one", True)
        found = []
        for order in (slice(None), [3, 0, 2, 1]):
            places = np.array([[0, 0], [0, 1], [1, 0], [3, 0]])[order]
            ids = tf.SparseTensor(places, np.array([10, 0, 3, 7])[order], [4, 2])
            shares = np.array([0.5, 1.5, 2.0, 3.0], np.float32)[order]
            weights = tf.SparseTensor(places, shares, [4, 2])
            found.append(
                tfs.train.embedding_lookup(params, ids, weights=weights, combiner="sum")
            )
        session.run(tf1.global_variables_initializer())
        expected, actual = session.run(found)
    np.testing.assert_array_equal(actual, expected)
    weighted = 0.5 * TABLE[10] + 1.5 * TABLE[0]
    np.testing.assert_allclose(expected[0], weighted, atol=1e-5)


def test_id_that_is_not_in_the_table_is_named():
    with tf.Graph().as_default(), tf1.Session() as session:
        params, _ = parts_of("partitioned", True)
        vectors = tfs.train.embedding_lookup(params, [3, 11], name="words")
        session.run(tf1.global_variables_initializer())
        with pytest.raises(tf.errors.InvalidArgumentError, match=r"table words.*id 11"):
            session.run(vectors)


@pytest.mark.parametrize(
    ("params", "options", "message"),
    [
        ([TABLE], {"combiner": "max"}, "must be 'sum', 'mean', 'sqrtn' or None"),
        ([TABLE], {"partition_strategy": "hash"}, "must be 'mod' or 'div'. Received"),
        ([TABLE], {"weights": [1.0]}, "and weights, need a combiner"),
        (
            [TABLE],
            {"weights": tf.ragged.constant([[1.0]]), "combiner": "sum"},
            r"lookup 'embedding_lookup' must be ragged or sparse if .* ids=",
        ),
        (
            [TABLE],
            {"weights": [[1.0]], "combiner": "sum"},
            r"must have the shape of its ids, \(1,\)\. Received: .* shape \(1, 1\)",
        ),
        ([TABLE[:, 0]], {}, "must be variables of rank 2"),
        (
            tfs.keras.Dynamic(9),
            {},
            r"use tfs.keras.DistributedEmbedding with .*params=Dynamic\(max_rows=9",
        ),
        ([TABLE, TABLE[:, :2]], {}, "must be of one width and dtype"),
        ([TABLE[:1], TABLE[1:]], {}, r"must have \[6, 5\] rows. Received: parts of"),
    ],
)
def test_what_does_not_belong_together_is_refused(params, options, message):
    with tf.Graph().as_default():
        if isinstance(params, list):
            params = [tf1.Variable(part, use_resource=True) for part in params]
        with pytest.raises(ValueError, match=message):
            tfs.train.embedding_lookup(params, [0], **options)
