"""The embedding ops, alone and together, against NumPy twins."""

import embedding_twin as twin
import numpy as np
import pytest
import tensorflow as tf
from combinations import thinned

from tf_syncrep.python.embedding import layout, lookup
from tf_syncrep.python.ops import embedding_ops

WIDTH = 5
TABLES = [
    layout.Table("small", 3, WIDTH),
    layout.Table("large", 1000, WIDTH),
    layout.Table("middle", 40, WIDTH),
]


def random_features(seed, examples):
    """Features of all kinds, some examples of which have no ids."""
    draw = np.random.default_rng(seed)
    features = []
    for combiner in (None, "sum", "mean", "sqrtn"):
        for is_ragged in (False, True):
            for is_weighted in (False, True):
                if combiner is None and (is_ragged or is_weighted):
                    continue
                table = TABLES[draw.integers(len(TABLES))]
                sizes = draw.integers(0, 4, examples) if is_ragged else [3] * examples
                rows = table.vocabulary_size
                ids = [draw.integers(rows, size=size).tolist() for size in sizes]
                weights = [(draw.integers(0, 4, size) / 4).tolist() for size in sizes]
                features.append(
                    twin.Feature(
                        table.name,
                        [row[0] for row in ids] if combiner is None else ids,
                        combiner,
                        weights if is_weighted else None,
                    )
                )
    return features


def as_tensors(feature, number):
    """A twin's feature in the form for `lookup`; every second one has int32 ids."""
    (table,) = [table for table in TABLES if table.name == feature.table]
    dtype = tf.int32 if number % 2 else tf.int64
    splits = weights = None
    ids = feature.ids
    if feature.combiner is not None:
        sizes = {len(row) for row in ids}
        ragged = tf.ragged.constant(ids, dtype, 1, row_splits_dtype=tf.int64)
        if sizes == {3}:
            ids = tf.reshape(ragged.values, [-1, 3])
        else:
            ids, splits = ragged.values, ragged.row_splits
        if feature.weights is not None:
            flat = [weight for row in feature.weights for weight in row]
            weights = tf.reshape(tf.constant(flat, tf.float32), tf.shape(ids))
    return lookup.Feature(
        f"feature_{number}",
        table,
        tf.cast(ids, dtype),
        feature.combiner,
        splits,
        weights,
    )


def random_parts(slab, seed, dtype=tf.float32):
    """Random tables, and the slab's parts that hold them."""
    draw = np.random.default_rng(seed)
    tables = {
        table.name: draw.normal(size=(table.vocabulary_size, WIDTH)) for table in TABLES
    }
    parts = []
    for shard in range(slab.num_parts):
        part = np.zeros([slab.part_rows(shard), WIDTH])
        for rows in slab.parts(shard):
            ids = slice(rows.first_id, None, slab.num_parts)
            part[rows.begin : rows.begin + rows.num_rows] = tables[rows.table.name][ids]
        parts.append(tf.Variable(tf.cast(part, dtype)))
        assert parts[-1].shape == (slab.part_rows(shard), WIDTH)
    rounded = {k: tf.cast(tf.cast(v, dtype), tf.float64) for k, v in tables.items()}
    return {name: table.numpy() for name, table in rounded.items()}, parts


def logical(slab, dense_parts):
    """Tables for the rows of the parts."""
    tables = {}
    for table in slab.tables:
        tables[table.name] = np.zeros([table.vocabulary_size, WIDTH])
        for shard, part in enumerate(dense_parts):
            rows = slab.part(table, shard)
            ids = slice(rows.first_id, None, slab.num_parts)
            tables[table.name][ids] = part[rows.begin : rows.begin + rows.num_rows]
    return tables


@thinned(
    "look_up, num_shards, seed, in_graph",
    [lookup.look_up, lookup.look_up_with_stock_ops],
    [1, 3, 64],
    range(4),
    [False, True],
)
def test_lookups_and_their_gradients_are_those_of_plain_tables(
    look_up, num_shards, seed, in_graph
):
    (slab,) = layout.stack(TABLES, num_shards)
    tables, parts = random_parts(slab, seed)
    features = random_features(seed, examples=[1, 0, 7, 50][seed])
    draw = np.random.default_rng(seed)
    shapes = [twin.look_up(tables, feature).shape for feature in features]
    of_vectors = [draw.normal(size=shape).astype(np.float32) for shape in shapes]

    def step():
        tensors = [as_tensors(feature, i) for i, feature in enumerate(features)]
        with tf.GradientTape() as tape:
            vectors = look_up(slab, parts, tensors)
            loss = tf.add_n(
                [tf.reduce_sum(x * y) for x, y in zip(vectors, of_vectors, strict=True)]
            )
        return vectors, tape.gradient(loss, parts)

    vectors, gradients = (tf.function(step) if in_graph else step)()
    for feature, actual in zip(features, vectors, strict=True):
        np.testing.assert_allclose(actual, twin.look_up(tables, feature), atol=1e-5)
    if look_up is lookup.look_up:
        for gradient in gradients:
            assert np.all(np.diff(gradient.indices) > 0)
    dense = [tf.convert_to_tensor(gradient).numpy() for gradient in gradients]
    expected = twin.gradients(tables, features, of_vectors)
    for name, actual in logical(slab, dense).items():
        np.testing.assert_allclose(actual, expected[name], atol=1e-4)


@pytest.mark.parametrize("dtype", [tf.float64, tf.bfloat16, tf.half])
def test_other_dtypes_are_summed_as_their_slots_are(dtype):
    (slab,) = layout.stack(TABLES, 2)
    tables, parts = random_parts(slab, 0, dtype)
    features = random_features(1, 20)
    vectors = lookup.look_up(
        slab, parts, [as_tensors(feature, i) for i, feature in enumerate(features)]
    )
    sum_dtype = tf.float64 if dtype == tf.float64 else tf.float32
    for feature, actual in zip(features, vectors, strict=True):
        assert actual.dtype == sum_dtype
        tolerance = 1e-12 if dtype == tf.float64 and feature.weights is None else 1e-5
        expected = twin.look_up(tables, feature)
        np.testing.assert_allclose(actual, expected, atol=tolerance)


@pytest.mark.parametrize("transfer_dtype", [tf.bfloat16, tf.half])
def test_rows_and_gradients_travel_in_fewer_bits_and_sums_stay_float(transfer_dtype):
    (slab,) = layout.stack(TABLES, 2)
    tables, parts = random_parts(slab, 0)
    rounded = {
        name: tf.cast(tf.cast(table, transfer_dtype), tf.float64).numpy()
        for name, table in tables.items()
    }
    feature = twin.Feature("small", [[0, 1, 1]] * 300, "sum")
    with tf.GradientTape() as tape:
        (vectors,) = lookup.look_up(
            slab, parts, [as_tensors(feature, 0)], transfer_dtype
        )
        loss = tf.reduce_sum(vectors) / 256
    assert vectors.dtype == tf.float32
    np.testing.assert_allclose(vectors, twin.look_up(rounded, feature), atol=1e-5)
    gradients = tape.gradient(loss, parts)
    assert all(gradient.values.dtype == tf.float32 for gradient in gradients)
    dense = [tf.convert_to_tensor(gradient).numpy() for gradient in gradients]
    # 600 / 256 in 8 bits: adding 1 / 256 again and again would have stopped before 2.
    for row, count in ((0, 300), (1, 600), (2, 0)):
        expected = tf.cast(tf.cast(count / 256, transfer_dtype), tf.float64)
        np.testing.assert_array_equal(logical(slab, dense)["small"][row], expected)


def test_gradient_op_needs_but_the_shapes_of_vectors():
    vectors = [tf.fill([2, WIDTH], np.nan), tf.fill([1, WIDTH], np.nan)]
    first, second = embedding_ops.embedding_combine_grad(
        [tf.ones([3, WIDTH])], vectors, [tf.constant([2, 0, 2])], [None]
    )
    np.testing.assert_array_equal(first, [[1.0] * WIDTH, [0.0] * WIDTH])
    np.testing.assert_array_equal(second, [[2.0] * WIDTH])


def rows_of(ids, **changes):
    arguments = {
        "num_rows": 10,
        "num_shards": 2,
        "first_rows": [4],
        "vocabulary_sizes": [6],
        "features": ["clicks"],
        "tables": ["items"],
    }
    return embedding_ops.embedding_rows(ids, **{**arguments, **changes})


def test_each_ragged_feature_has_as_many_vectors_as_its_own_splits_say():
    with tf.Graph().as_default():
        first, second = embedding_ops.embedding_combine(
            [tf.ones([3, 5])],
            [tf.constant([0, 1, 2]), tf.constant([2])],
            ["sum", "mean"],
            [tf.constant([0, 1, 3], tf.int64), tf.constant([0, 1], tf.int64)],
            [None, None],
        )
    assert first.shape == [2, 5]
    assert second.shape == [1, 5]


def test_ranges_of_rows_are_shards_too():
    rows, places = rows_of([tf.constant([[5, 0], [5, 1]])], shard_sizes=[5, 5])
    assert [row.numpy().tolist() for row in rows] == [[4], [0, 4]]
    assert places[0].numpy().tolist() == [[2, 0], [2, 1]]


@pytest.mark.parametrize("bad_id", [-1, 6, 2**31 - 1])
@pytest.mark.parametrize("look_up", [lookup.look_up, lookup.look_up_with_stock_ops])
def test_id_that_is_not_in_its_table_is_named(look_up, bad_id):
    (slab,) = layout.stack(
        [layout.Table("items", 6, 2), layout.Table("users", 9, 2)], 1
    )
    part = tf.Variable(tf.zeros([15, 2]))
    ids = tf.constant([0, bad_id, 5])
    feature = lookup.Feature("clicks", slab.tables[0], ids)
    with pytest.raises(tf.errors.InvalidArgumentError) as raised:
        look_up(slab, [part], [feature])
    for words in ("clicks", "items", "[0, 6)", str(bad_id)):
        assert words in str(raised.value)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_rows": 9}, "table items must lie in the 9 rows of all tables"),
        ({"first_rows": [-1]}, "table items must lie in"),
        ({"first_rows": [4, 4]}, "must be of 1 features, but one is of 2"),
        ({"shard_sizes": [10]}, "shard_sizes must be of 2 shards, but is of 1"),
        ({"shard_sizes": [5, 6]}, "must not be negative and come to num_rows, 10"),
        ({"shard_sizes": [5, 4]}, "must come to num_rows, 10, but come to 9"),
        ({"num_rows": 2**40}, "Trows cannot count the rows of a shard"),
    ],
)
def test_shards_and_tables_that_do_not_fit_are_refused(changes, message):
    with pytest.raises(tf.errors.InvalidArgumentError, match=message):
        rows_of([tf.constant([0])], **changes)


VECTORS = [tf.zeros([2, 3]), tf.zeros([1, 3])]


@pytest.mark.parametrize(
    ("vectors", "places", "options", "message"),
    [
        (VECTORS, [3], {}, "places must name rows of vectors"),
        (VECTORS, [-1], {}, "places must name rows of vectors"),
        ([tf.zeros([2, 3]), tf.zeros([1, 4])], [0], {}, "matrices of one width"),
        (VECTORS, 0, {"combiners": ["sum"]}, "must have an axis to combine|at least"),
        *(
            (
                VECTORS,
                [0, 1],
                {"combiners": ["sum"], "row_splits": [tf.constant(splits, tf.int64)]},
                "row_splits of feature 0 must ascend from 0 to 2",
            )
            for splits in ([0, 1], [0, 3, 2], [1, 2], [0, 2, 1, 2])
        ),
        (
            VECTORS,
            [0, 1],
            {"combiners": ["sum"], "row_splits": [tf.zeros([0], tf.int64)]},
            "must be vectors, the second not empty|must be non-negative|at least",
        ),
        (
            VECTORS,
            [[0, 1]],
            {"combiners": ["sum"], "weights": [tf.zeros([1])]},
            "must have as many weights as ids, 2, but has 1",
        ),
        (VECTORS, [0], {"weights": [tf.zeros([1])]}, "it must have a combiner"),
        (VECTORS, [0], {"combiners": [None, None]}, "of 1 features, but"),
    ],
)
def test_what_does_not_belong_together_is_refused(vectors, places, options, message):
    arguments = {"combiners": [None], **options}
    with pytest.raises((tf.errors.InvalidArgumentError, ValueError), match=message):
        embedding_ops.embedding_combine(vectors, [tf.constant(places)], **arguments)


def test_after_a_lookup_the_whole_table_is_read_without_a_copy():
    table = tf.Variable(tf.ones([4, 2]))
    before = np.asarray(table.read_value())
    embedding_ops.embedding_gather(
        table.handle, [3], shape=table.shape, dtype=table.dtype
    )
    assert np.shares_memory(before, np.asarray(table.read_value()))


def test_rows_are_read_in_range_and_from_matrices_only():
    table = tf.Variable(tf.ones([4, 2]))
    arguments = {"shape": table.shape, "dtype": table.dtype}
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"rows\[1\] = 4 is not"):
        embedding_ops.embedding_gather(table.handle, [3, 4], **arguments)
    with pytest.raises(tf.errors.InvalidArgumentError, match="rows must be a vector"):
        embedding_ops.embedding_gather(table.handle, 3, **arguments)
    flat = tf.Variable(tf.ones([4]))
    with pytest.raises(tf.errors.InvalidArgumentError, match="table must be a matrix"):
        embedding_ops.embedding_gather(flat.handle, [3], **arguments)
