"""DistributedEmbedding in one process, beside a plain layer for each table."""

import copy
import pathlib
import pickle
import typing

import embedding_models as models
import embedding_twin as twin
import keras_variants
import numpy as np
import programs
import pytest
import tensorflow as tf
from combinations import thinned
from same import assert_same

import tf_syncrep as tfs
from tf_syncrep.python.embedding import layout
from tf_syncrep.python.keras import compat
from tf_syncrep.python.keras.tables import (
    fixed_tables,
    initial_values,
    stacked_tables,
)

EXAMPLES, STEPS = 12, 4

OPTIMIZERS = {
    "rowwise_adagrad": lambda: tfs.keras.RowwiseAdagrad(0.1),
    "sgd": lambda: tf.keras.optimizers.SGD(0.5, momentum=0.9),
    "adam": lambda: tf.keras.optimizers.Adam(0.1),
    "adagrad": lambda: tf.keras.optimizers.Adagrad(0.5),
    "ftrl": lambda: tf.keras.optimizers.Ftrl(0.5),
    "adam_async": lambda: tfs.keras.AdamAsync(0.1),
    "clipped": lambda: tfs.keras.AdamAsync(0.1, global_clipnorm=0.1),
    "sync": lambda: tfs.keras.SyncReplicas(tf.keras.optimizers.Adam(0.1), 2),
    "sync_adam_async": lambda: tfs.keras.SyncReplicas(tfs.keras.AdamAsync(0.1), 2),
}


@thinned("optimizer, stacking", OPTIMIZERS, ("auto", None))
def test_trains_as_one_layer_for_each_table_does(optimizer, stacking):
    results = []
    tables = models.initial_tables()
    for cls, options in (
        (models.Plain, {}),
        (models.Distributed, {"table_stacking": stacking}),
    ):
        model = models.make(cls, OPTIMIZERS[optimizer](), tables, **options)
        losses = [
            keras_variants.train_on_batch(model, *models.batch(EXAMPLES, step))
            for step in range(STEPS)
        ]
        results.append((losses, model.tables()))
    (losses, plain), (other_losses, distributed) = results
    np.testing.assert_allclose(other_losses, losses, rtol=1e-5)
    for name, table in plain.items():
        assert not np.allclose(table, tables[name], atol=0.01)
        # Sums are computed in other orders.
        np.testing.assert_allclose(distributed[name], table, atol=2e-5)


# What ids are in tables of fixed size and in those that grow, by a number below 10.
FIXED = {"int32": np.int32, "int64": np.int64}
GROWING = {
    "growing_int32": lambda x: np.where(x < 8, x, x - 10).astype(np.int32),
    "growing_int64": lambda x: np.where(x < 8, x, x - 10),
    "growing_strings": lambda x: np.reshape([f"id {i}" for i in x.ravel()], x.shape),
}


def vectors_by_number(table, ids):
    """The vectors of `ids` in what get_embedding_tables returns of a table."""
    if not isinstance(table, tuple):
        return table.astype(np.float64)
    keys, values = table
    own = tfs.keras.string_keys(ids).numpy() if ids.dtype.kind == "U" else ids
    places = np.searchsorted(keys, own)
    np.testing.assert_array_equal(keys[places], own)
    return values[places].astype(np.float64)


@pytest.mark.parametrize(
    ("kind_of_ids", "training"),
    [*((x, t) for x in FIXED for t in (False, True)), *((x, True) for x in GROWING)],
)
def test_ids_of_all_kinds_and_their_weights(kind_of_ids, training):
    as_ids = {**FIXED, **GROWING}[kind_of_ids]
    size = tfs.keras.Dynamic(100) if kind_of_ids in GROWING else 20
    tables = {
        name: tfs.keras.TableConfig(name, size, 4, combiner=combiner)
        for name, combiner in (("s", "sum"), ("m", "mean"), ("q", "sqrtn"), ("n", None))
    }

    def ids_of(numbers):
        return tf.constant(as_ids(np.array(numbers)))

    lists = {
        "dense": [[9, 2, 3], [4, 4, 0]],
        "ragged": [[1, 8, 3, 4], []],
        "sparse": [[3, 7], [7]],
        "one": [[5], [6]],
        "all": [[*range(10)]],
    }
    flat = {
        "dense": [[0.5, 1.0, 0.0], [2.0, 1.0, 1.0]],
        "ragged": [[0.5, 1.0, 0.0, 3.0], []],
        "sparse": [[0.25, 4.0], [2.0]],
        "one": [[3.0], [0.0]],
        "all": [[*range(10)]],
    }

    def inputs_of(lists, convert):
        """The same as tensors of all kinds."""
        first, second = lists["sparse"]
        values = convert([*first, *second])
        ragged = convert([*lists["ragged"][0]])
        return {
            "dense": convert(lists["dense"]),
            "ragged": tf.RaggedTensor.from_row_splits(ragged, [0, 4, 4]),
            "sparse": tf.SparseTensor([[0, 5], [0, 9], [1, 2]], values, [2, 10]),
            "one": convert([x for (x,) in lists["one"]]),
            "all": convert(lists["all"]),
        }

    kinds = inputs_of(lists, ids_of)
    weights = inputs_of(flat, lambda x: tf.constant(x, tf.float32))
    names = {f"{table}_{kind}": (table, kind) for table in tables for kind in kinds}
    layer = tfs.keras.DistributedEmbedding(
        {
            name: tfs.keras.FeatureConfig(name, tables[table])
            for name, (table, _) in names.items()
        }
    )
    inputs = {name: kinds[kind] for name, (_, kind) in names.items()}
    some = {
        name: None if table == "n" else weights[kind]
        for name, (table, kind) in names.items()
    }
    for of_ids in (None, some):
        arguments = {} if of_ids is None else {"weights": of_ids}
        vectors = layer(inputs, training=training, **arguments)
        values = {
            name: vectors_by_number(table, as_ids(np.arange(10)))
            for name, table in layer.get_embedding_tables().items()
        }
        for name, (table, kind) in names.items():
            actual = vectors[name]
            if table == "n":
                expected = values[table][[x for row in lists[kind] for x in row]]
                if kind in ("ragged", "sparse"):
                    actual = actual.values
                expected = expected.reshape(actual.shape)
            else:
                feature = twin.Feature(
                    table,
                    lists[kind],
                    tables[table].combiner,
                    None if of_ids is None else flat[kind],
                )
                expected = twin.look_up(values, feature)
            np.testing.assert_allclose(actual, expected, atol=1e-6)


def test_function_compiled_by_xla_looks_up_in_tables_of_fixed_size():
    table = tfs.keras.TableConfig("t", 20, 4, combiner="mean")
    layer = tfs.keras.DistributedEmbedding(tfs.keras.FeatureConfig("f", table))
    ids, weights = tf.constant([[2, 3], [3, 4]]), tf.constant([[1.0, 2.0], [3.0, 1.0]])
    expected = layer(ids, weights)
    compiled = tf.function(layer, jit_compile=True)
    np.testing.assert_allclose(compiled(ids, weights), expected, rtol=1e-6)


def test_mixed_precision_looks_up_in_float_and_computes_in_bfloat16():
    layer = tfs.keras.DistributedEmbedding(
        models.feature_configs(), dtype="mixed_bfloat16"
    )
    vectors = layer(models.batch(3)[0], training=True)
    assert {x.dtype for x in vectors.values()} == {tf.bfloat16}
    assert {x.dtype for x in models.variables_of(layer)} == {tf.float32}


def test_configuration_is_all_that_a_layer_is():
    movies = tfs.keras.TableConfig("movies", 31, 6, "zeros", combiner=None)
    days = tfs.keras.TableConfig("days", 7, 6, tf.keras.initializers.Ones())
    nested = {
        "some": [
            tfs.keras.FeatureConfig("a", movies, (None, 2)),
            (tfs.keras.FeatureConfig("b", days), tfs.keras.FeatureConfig("c", movies)),
        ]
    }
    layer = tfs.keras.DistributedEmbedding(
        nested, table_stacking=["days", "movies"], transfer_dtype="bfloat16", name="all"
    )
    config = layer.get_config()
    again = tfs.keras.DistributedEmbedding.from_config(config)
    assert again.get_config() == config
    one, two, three = tf.constant([[1, 2]]), tf.constant([[3]]), tf.constant([4])
    vectors = again({"some": [one, (two, three)]})
    assert tf.nest.map_structure(lambda x: x.shape.as_list(), vectors) == {
        "some": [[1, 2, 6], ([1, 6], [1, 6])]
    }
    assert len(again.trainable_variables) == 1
    assert again.get_embedding_tables()["days"].tolist() == [[1.0] * 6] * 7


class Pair(typing.NamedTuple):
    """A structure of features."""

    user: typing.Any
    item: typing.Any


@pytest.mark.parametrize(
    "copied",
    [
        copy.deepcopy,
        lambda x: pickle.loads(pickle.dumps(x)),
        lambda x: type(x).from_config(x.get_config()),
    ],
)
def test_features_may_be_in_a_named_tuple(copied):
    table = tfs.keras.TableConfig("t", 3, 2)
    features = (tfs.keras.FeatureConfig(name, table) for name in Pair._fields)
    layer = copied(tfs.keras.DistributedEmbedding(Pair(*features)))
    found = layer(Pair(tf.constant([1]), tf.constant([1])))
    np.testing.assert_array_equal(found.user, found.item)


def test_features_share_a_table_after_their_configuration():
    table = tfs.keras.TableConfig("t", 3, 2)
    features = [
        tfs.keras.FeatureConfig.from_config(
            tfs.keras.FeatureConfig(name, table).get_config()
        )
        for name in "ab"
    ]
    layer = tfs.keras.DistributedEmbedding(features)
    layer.build()
    assert [tuple(x.shape) for x in layer.weights] == [(3, 2)]


@pytest.mark.parametrize("kind", ["keras", "h5"])
def test_files_hold_logical_tables_for_any_stacking_and_plain_layers(kind, tmp_path):
    inputs = {
        name: tf.keras.Input(shape, dtype="int64", name=name)
        for name, shape in models.SHAPES.items()
    }

    def make(stacking):
        layer = tfs.keras.DistributedEmbedding(
            models.feature_configs(), table_stacking=stacking, name="tables"
        )
        vectors = list(layer(inputs).values())
        model = tf.keras.Model(inputs, tf.keras.layers.Concatenate()(vectors))
        return model, layer

    model, layer = make("auto")
    ids, _ = models.batch(5)
    if kind == "keras":
        model.save(tmp_path / "model.keras")
        other = tf.keras.models.load_model(tmp_path / "model.keras")
    else:
        model.save_weights(tmp_path / "model.weights.h5")
        other, other_layer = make(None)
        assert len(other_layer.weights) == 3
        other.load_weights(tmp_path / "model.weights.h5")
    np.testing.assert_array_equal(
        other.predict(ids, verbose=0), model.predict(ids, verbose=0)
    )
    plain = tf.keras.layers.Embedding(31, models.WIDTH)
    plain.build((None,))
    plain.set_weights([layer.get_embedding_tables()["movies"]])
    np.testing.assert_allclose(
        plain(ids["candidate"]), layer(ids)["candidate"], rtol=1e-6
    )


@pytest.mark.parametrize(
    "optimizer", ["adam_async", "sync_adam_async", "rowwise_adagrad"]
)
def test_training_goes_on_from_a_file_as_if_never_stopped(optimizer, tmp_path):
    def make(stacking):
        model = models.make(
            models.Distributed,
            OPTIMIZERS[optimizer](),
            models.initial_tables(),
            table_stacking=stacking,
        )
        model.optimizer.build(model.trainable_variables)
        return model

    path = str(tmp_path / "model.weights.h5")
    model = make("auto")
    for step in range(2 * STEPS):
        if step == STEPS:
            model.save_weights(path)
        keras_variants.train_on_batch(model, *models.batch(EXAMPLES, step))
    other = make(None)
    other.load_weights(path)
    for step in range(STEPS, 2 * STEPS):
        keras_variants.train_on_batch(other, *models.batch(EXAMPLES, step))
    assert_same(other.tables(), model.tables())


SERVES = """
import sys
import tensorflow as tf

served = tf.saved_model.load(sys.argv[1])
assert "tf_syncrep" not in sys.modules
serve = served.signatures["serving_default"]
print(sorted(serve.structured_input_signature[1]))
ids = {"watched": [[3, 7, 7, 0]], "candidate": [30], "user": [49], "day": [[6, 0]]}
(served,) = serve(**{k: tf.constant(v, tf.int64) for k, v in ids.items()}).values()
print(float(tf.squeeze(served)))
try:
    serve(**{k: tf.constant(v, tf.int64) + 1 for k, v in ids.items()})
except tf.errors.InvalidArgumentError as error:
    print("ids of feature candidate must be in [0, 31)" in str(error))
"""


@pytest.mark.ci
def test_exported_model_serves_where_the_package_is_not(tmp_path):
    inputs = {
        name: tf.keras.Input(shape, dtype="int64", name=name)
        for name, shape in models.SHAPES.items()
    }
    layer = tfs.keras.DistributedEmbedding(models.feature_configs())
    vectors = tf.keras.layers.Concatenate()(list(layer(inputs).values()))
    model = tf.keras.Model(inputs, tf.keras.layers.Dense(1)(vectors))
    model.compile(tfs.keras.AdamAsync(), loss="mse")
    model.fit(*models.batch(8), verbose=0)
    folder = str(tmp_path / "served")
    if hasattr(model, "export"):
        model.export(folder)
    else:
        tf.saved_model.save(model, folder)
    signature, output, error = programs.run_without_package(SERVES, folder)[-3:]
    assert signature == "['candidate', 'day', 'user', 'watched']"
    ids = {"watched": [[3, 7, 7, 0]], "candidate": [30], "user": [49], "day": [[6, 0]]}
    expected = model({k: np.asarray(v) for k, v in ids.items()}).numpy()
    # The sum may be near zero, where its rounding is large beside it.
    assert float(output) == pytest.approx(float(expected[0, 0]), rel=1e-4, abs=1e-6)
    assert error == "True"


@pytest.mark.parametrize("training", [False, True])
def test_id_that_is_in_no_table_is_named_and_nothing_is_changed(training):
    model = models.make(
        models.Distributed, tf.keras.optimizers.SGD(1.0), models.initial_tables()
    )
    ids, targets = models.batch(3)
    ids["user"][1] = 50
    step = model.train_on_batch if training else model.test_on_batch
    with pytest.raises(tf.errors.InvalidArgumentError) as raised:
        step(ids, targets)
    for words in ("feature user", "table users", "[0, 50)", "50"):
        assert words in str(raised.value)
    assert_same(model.tables(), models.initial_tables())


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("dtype", [tf.uint32, tf.uint64])
def test_wide_id_without_a_sign_does_not_become_another_one(dtype, training):
    id_ = dtype.max if dtype == tf.uint32 else 2**32 + 5
    feature = tfs.keras.FeatureConfig("f", tfs.keras.TableConfig("t", 9, 2))
    plain = tfs.keras.Embedding(9, 2)
    for layer in (tfs.keras.DistributedEmbedding(feature), plain):
        valid = layer(tf.constant([5], dtype), training=training)
        expected = layer(tf.constant([5], tf.int32), training=training)
        np.testing.assert_array_equal(valid, expected)
        with pytest.raises(tf.errors.InvalidArgumentError, match=str(id_)):
            layer(tf.constant([id_], dtype), training=training)


@pytest.mark.parametrize("training", [False, True])
def test_sparse_ids_and_weights_may_come_in_any_order(training):
    table = tfs.keras.TableConfig("t", 9, 2, combiner="sum")
    layer = tfs.keras.DistributedEmbedding(tfs.keras.FeatureConfig("f", table))
    indices = [[0, 0], [0, 3], [1, 0], [2, 1]]
    some = [2, 0, 3, 1]
    results = []
    for order in (range(4), some):
        ids, weights = (
            tf.SparseTensor(
                [indices[i] for i in order], [values[i] for i in order], [3, 4]
            )
            for values in ([3, 4, 5, 6], [1.0, 2.0, 0.5, 4.0])
        )
        results.append(
            [
                layer(ids, training=training),
                layer(ids, weights=weights, training=training),
            ]
        )
    assert_same(*results)


def weighted(signature=None):
    """A lookup of weighted ids of a feature "f" in a function, or without one."""
    table = tfs.keras.TableConfig("t", 9, 2, initializer="ones", combiner="sum")
    layer = tfs.keras.DistributedEmbedding(tfs.keras.FeatureConfig("f", table))
    layer.build()

    def look_up(ids, weights):
        return layer(ids, weights=weights)

    if signature is None:
        return look_up
    return tf.function(look_up, input_signature=signature)


RAGGED = [tf.RaggedTensorSpec([None, None], x) for x in (tf.int32, tf.float32)]


@pytest.mark.parametrize("signature", [None, RAGGED])
@pytest.mark.parametrize(
    "weights",
    [
        [[1.0], [10.0, 100.0]],
        [[1.0, 10.0], [100.0], []],
        [[1.0, 10.0, 100.0]],
    ],
)
def test_weights_of_other_rows_than_their_ids_are_refused(weights, signature):
    ids, weights = tf.ragged.constant([[1, 2], [3]]), tf.ragged.constant(weights)
    with pytest.raises(
        tf.errors.InvalidArgumentError,
        match="must be as many in each row as its ids",
    ):
        weighted(signature)(ids, weights)


def test_weights_of_another_shape_than_their_ids_are_refused():
    ids, rule = tf.ones([2, 3], tf.int32), "Weights of feature 'f' must have the shape"
    for shape in ([3, 2], [6], [2, 2], [2, 3, 1]):
        with pytest.raises(
            ValueError, match=rf"{rule} of its ids, \(2, 3\)\. Received"
        ):
            weighted()(ids, tf.ones(shape))
    look_up = weighted(
        [tf.TensorSpec([None, None], x) for x in (ids.dtype, tf.float32)]
    )
    for shape in ([3, 2], [2, 2]):
        with pytest.raises(tf.errors.InvalidArgumentError, match="have the shape"):
            look_up(ids, tf.ones(shape))
    np.testing.assert_array_equal(look_up(ids, tf.ones([2, 3])), [[3, 3]] * 2)
    of_rows = weighted()(tf.constant([4, 5]), [1.0, 2.0])
    np.testing.assert_array_equal(of_rows, [[1, 1], [2, 2]])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"name": ""}, "A table must have a name. Received: name=''"),
        (
            {"vocabulary_size": 0},
            "vocabulary_size must be a whole number of at least 1",
        ),
        ({"embedding_dim": 2.5}, "embedding_dim must be a whole number of at least 1"),
        (
            {"combiner": "max"},
            "must be 'sum', 'mean', 'sqrtn' or None. Received: combin",
        ),
        (
            {"placement": "sparsecore"},
            "there are no other places here. Received: place",
        ),
    ],
)
def test_bad_table_is_refused_in_a_sentence(arguments, message):
    good = {"name": "t", "vocabulary_size": 3, "embedding_dim": 2}
    with pytest.raises(ValueError, match=message):
        tfs.keras.TableConfig(**{**good, **arguments})


TABLE = tfs.keras.TableConfig("t", 3, 2)
NONE = tfs.keras.TableConfig("n", 3, 2, combiner=None)
FEATURE = tfs.keras.FeatureConfig("f", TABLE)


@pytest.mark.parametrize(
    ("configs", "options", "message"),
    [
        ([], {}, "feature_configs must have a feature"),
        ([3], {}, "must be FeatureConfigs, or a nested structure of them. Received: 3"),
        (
            tfs.keras.FeatureConfig("f", 3),
            {},
            "must be a TableConfig. Received: table=3",
        ),
        (
            [FEATURE, tfs.keras.FeatureConfig("g", tfs.keras.TableConfig("t", 4, 2))],
            {},
            "Tables must have different names",
        ),
        (FEATURE, {"table_stacking": "all"}, "table_stacking must be 'auto', None"),
        (FEATURE, {"transfer_dtype": "int8"}, "Received: transfer_dtype='int8'"),
        (FEATURE, {"transfer_dtype": "nine"}, "Received: transfer_dtype='nine'"),
        (
            FEATURE,
            {"transfer_dtype": "float16", "dtype": "float64"},
            "variables of float64",
        ),
    ],
)
def test_bad_features_are_refused_in_a_sentence(configs, options, message):
    with pytest.raises(ValueError, match=message):
        tfs.keras.DistributedEmbedding(configs, **options)


@pytest.mark.parametrize(
    ("features", "inputs", "weights", "message"),
    [
        (
            {"f": FEATURE},
            {"g": tf.constant(1)},
            None,
            "inputs must have the structure of feature_co",
        ),
        (
            [FEATURE],
            [tf.constant([1])],
            [],
            "weights must have the structure of feature_configs",
        ),
        (
            [tfs.keras.FeatureConfig("f", NONE)],
            [tf.constant([1])],
            [tf.constant([1.0])],
            "Feature 'f' has no combiner, and so no weights",
        ),
        (
            [FEATURE],
            [tf.constant([[1, 2], [3, 4]])],
            [tf.ragged.constant([[1.0], [2.0, 3.0, 4.0]])],
            "Weights of feature 'f' must be ragged or sparse if its ids are",
        ),
        (
            [FEATURE],
            [tf.ragged.constant([[1], [2, 3, 4]])],
            [tf.constant([[1.0, 2.0], [3.0, 4.0]])],
            "Weights of feature 'f' must be ragged or sparse if its ids are",
        ),
        (
            [FEATURE],
            [tf.ragged.constant([[[1], [2]]])],
            None,
            r"Ragged ids of feature 'f' must have shape \[batch, None\]",
        ),
        *(
            (
                [FEATURE],
                [tf.SparseTensor([[0] * rank], [1], [2] * rank)],
                None,
                r"Sparse ids of feature 'f' must have shape \[batch, n\]. Received: a "
                rf"SparseTensor of shape \[{', '.join('2' * rank)}\]",
            )
            for rank in (1, 3)
        ),
        (
            [FEATURE],
            [tf.SparseTensor([[0, 0]], [1], [2, 2])],
            [tf.SparseTensor([[0, 0, 0]], [1.0], [2, 2, 2])],
            r"Sparse weights of feature 'f' must have shape \[batch, n\]",
        ),
        (
            [FEATURE],
            [tf.constant(["a"])],
            None,
            "Ids of feature 'f' must be integers: .*Dynamic.* of dtype string",
        ),
        (
            [tfs.keras.FeatureConfig("f", tfs.keras.TableConfig("t", 2_049, 2))],
            [tf.constant([1], tf.float16)],
            None,
            "Ids of feature 'f' must be int32 or int64: float16 is rounded beyond 2,0",
        ),
    ],
)
def test_bad_inputs_are_refused_in_a_sentence(features, inputs, weights, message):
    layer = tfs.keras.DistributedEmbedding(features)
    with pytest.raises(ValueError, match=message):
        layer.call(inputs, weights)


@pytest.mark.parametrize(
    ("name", "dtype", "message"),
    [
        ("f", "string", "Ids of feature 'f' must be integers"),
        ("g", "int32", "inputs must have the structure of feature_configs"),
    ],
)
def test_bad_inputs_of_a_functional_model_are_told_first(name, dtype, message):
    layer = tfs.keras.DistributedEmbedding({"f": FEATURE})
    with pytest.raises(ValueError, match=f"^{message}"):
        layer({name: tf.keras.Input((1,), dtype=dtype)})


def test_tables_are_set_by_name_and_of_their_shape():
    layer = tfs.keras.DistributedEmbedding(FEATURE)
    layer.build()
    with pytest.raises(ValueError, match=r"`tables` must .*: \['t'\]. Received: 'u'"):
        layer.set_embedding_tables({"u": np.zeros([3, 2])})
    with pytest.raises(ValueError, match=r"table 't' must have shape \(3, 2\)"):
        layer.set_embedding_tables({"t": np.zeros([2, 3])})
    with pytest.raises(ValueError, match=r"shape \(3, 2\). Received: .* \(2, 2\)"):
        layer.set_embedding_tables({"t": [[1.0, 2.0], [3.0, 4.0]]})
    with pytest.raises(ValueError, match=r"table 't' must be an array. Received: list"):
        layer.set_embedding_tables({"t": [[1.0, 2.0], [3.0], [4.0, 5.0]]})
    layer.set_embedding_tables({"t": [[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]})
    assert layer.get_embedding_tables()["t"].tolist() == [[1, 2], [3, 4], [5, 6]]


def test_no_table_is_set_if_one_is_refused():
    layer = models.layer_of(*(tfs.keras.TableConfig(x, 3, 2) for x in "ab"))
    layer.build()
    before = layer.get_embedding_tables()
    with pytest.raises(ValueError, match="table 'b' must have shape"):
        layer.set_embedding_tables({"a": np.ones([3, 2]), "b": np.ones([2, 2])})
    np.testing.assert_array_equal(layer.get_embedding_tables()["a"], before["a"])


def test_update_of_another_table_stays_while_a_table_is_set(monkeypatch):
    layer = models.layer_of(*(tfs.keras.TableConfig(x, 3, 2) for x in "ab"))
    layer.build()
    (part,) = layer.trainable_variables
    layer.set_embedding_tables({"b": np.zeros([3, 2])})
    # It comes right before the rows are written.
    update = tf.IndexedSlices(tf.ones([1, 2]), tf.constant([4]))
    monkeypatch.setattr(
        stacked_tables, "keep", lambda *_: compat.native(part).scatter_add(update)
    )
    layer.set_embedding_tables({"a": np.ones([3, 2])})
    found = layer.get_embedding_tables()
    assert found["a"].tolist() == [[1, 1]] * 3
    assert found["b"].tolist() == [[0, 0], [1, 1], [0, 0]]


WIDTH_OF_PARTS, SIZES_IN_PARTS = 3, {"a": 5, "b": 17, "c": 1}


def tables_in_three_parts():
    """Stacked tables in three variables, as on three servers."""
    stacked = [layout.Table(x, n, WIDTH_OF_PARTS) for x, n in SIZES_IN_PARTS.items()]
    made = fixed_tables.Tables([layout.Slab("slab", stacked, num_parts=3)])
    made.make(
        lambda shape, dtype, **_: tf.Variable(tf.zeros(shape, dtype)),
        dict.fromkeys(SIZES_IN_PARTS, "zeros"),
    )
    return made


def test_large_tables_are_read_and_set_some_rows_at_a_time(monkeypatch):
    rows_at_a_time = 2
    monkeypatch.setattr(
        stacked_tables, "CHUNK_BYTES", rows_at_a_time * WIDTH_OF_PARTS * 4
    )
    made = tables_in_three_parts()
    for seed, (name, size) in enumerate(SIZES_IN_PARTS.items()):
        shape = [size, WIDTH_OF_PARTS]
        values = np.random.default_rng(seed).random(shape, np.float32)
        made.write(name, values)
        np.testing.assert_array_equal(made.read(name), values)


def test_files_have_the_power_of_the_part_that_made_most_steps():
    made = tables_in_three_parts()
    optimizer = tfs.keras.AdamAsync(0.1)
    optimizer.build(made.all_variables())
    for part, power in zip(made.all_variables(), (0.5, 0.125, 0.25), strict=True):
        optimizer.slots(part)["beta_1_power"].assign([power])
    saved = {}
    optimizer.save_own_variables(saved)
    for name in SIZES_IN_PARTS:
        assert saved[f"beta_1_power.0.{name}"].tolist() == [0.125]


WHOLE_TABLE_INITIALIZERS = {"Identity", "Orthogonal", "STFT"}
KERAS_INITIALIZERS = {
    kind.__name__: kind
    for kind in vars(tf.keras.initializers).values()
    if isinstance(kind, type) and kind is not tf.keras.initializers.Initializer
}


def parts_of_table(initializer):
    """The initial values with three servers, and the shapes that were asked for."""
    shapes = []

    def recorded(call):
        def record(self, shape, *args, **kwargs):
            shapes.append(tuple(shape))
            return call(self, shape, *args, **kwargs)

        return record

    with pytest.MonkeyPatch.context() as patch:
        for kind in {type(initializer), *KERAS_INITIALIZERS.values()}:
            if "__call__" in vars(kind):
                patch.setattr(kind, "__call__", recorded(kind.__call__))
        parts = [
            initial_values.initial_rows(
                initializer, layout.Table("t", 3000, 16), 1000, first_id, 3, "float32"
            )
            for first_id in range(3)
        ]
    return [np.asarray(x) for x in parts], set(shapes)


@pytest.mark.parametrize("name", sorted(KERAS_INITIALIZERS))
def test_each_server_makes_its_rows_alone_as_those_of_the_whole_table(name):
    guide = pathlib.Path(__file__).parents[3] / "docs" / "embeddings.md"
    _, _, section = guide.read_text().partition("\n## Initial values\n")
    section, _, _ = section.partition("\n## ")
    assert (f"`{name}`" in section) == (name in WHOLE_TABLE_INITIALIZERS)
    if name == "STFT":
        pytest.skip("its values have three dimensions")
    initializer = KERAS_INITIALIZERS[name]()
    whole = np.asarray(initializer((3000, 16), dtype="float32"))
    parts, shapes = parts_of_table(initializer)
    if name in WHOLE_TABLE_INITIALIZERS:
        assert shapes == {(3000, 16)}
        return
    assert shapes == {(1000, 16)}
    for values in parts:
        np.testing.assert_allclose(values.std(), whole.std(), rtol=0.05)
        np.testing.assert_allclose(values.mean(), whole.mean(), atol=0.1 * whole.std())
    if whole.std():
        assert np.abs(np.corrcoef([x.ravel() for x in parts]) - np.eye(3)).max() < 0.1


def test_initial_values_have_the_options_of_the_initializer():
    initializers = tf.keras.initializers
    for initializer, deviation in (
        (initializers.RandomNormal(stddev=0.5, seed=1), 0.5),
        (initializers.VarianceScaling(mode="fan_out"), 0.25),
        (initializers.VarianceScaling(mode="fan_avg"), np.sqrt(2 / 3016)),
        (initializers.get("uniform"), 0.1 / np.sqrt(12)),
    ):
        parts, shapes = parts_of_table(initializer)
        assert shapes == {(1000, 16)}
        for values in parts:
            np.testing.assert_allclose(values.std(), deviation, rtol=0.05)
        assert np.abs(np.corrcoef([x.ravel() for x in parts]) - np.eye(3)).max() < 0.1
    parts, shapes = parts_of_table(initializers.Constant(0.25))
    assert shapes == {(1000, 16)}
    assert np.all(np.stack(parts) == 0.25)


def seeds():
    """Makes equal seeds of each kind that this Keras takes."""
    if not compat.IS_KERAS_3:
        return [lambda: 7, lambda: np.int64(7)]
    return [lambda: 7, lambda: tf.keras.random.SeedGenerator(7)]


@pytest.mark.parametrize("kind", ["RandomNormal", "GlorotUniform"])
@pytest.mark.parametrize("seed", seeds())
def test_parts_differ_whatever_the_seed_is(seed, kind):
    parts, shapes = parts_of_table(KERAS_INITIALIZERS[kind](seed=seed()))
    assert shapes == {(1000, 16)}
    assert np.abs(np.corrcoef([x.ravel() for x in parts]) - np.eye(3)).max() < 0.1


def test_what_looks_at_the_whole_table_is_called_for_it():
    class FirstRowZero(tf.keras.initializers.Ones):
        def __call__(self, shape, dtype=None, **kwargs):
            del kwargs
            return tf.concat([tf.zeros((1, shape[1])), tf.ones((shape[0] - 1, 16))], 0)

    table = np.arange(48000.0, dtype=np.float32).reshape(3000, 16)
    for initializer, whole in (
        (FirstRowZero(), np.r_[np.zeros((1, 16)), np.ones((2999, 16))]),
        (tf.keras.initializers.Constant(table), table),
    ):
        parts, shapes = parts_of_table(initializer)
        assert shapes == {(3000, 16)}
        for first_id, values in enumerate(parts):
            np.testing.assert_array_equal(values, whole[first_id::3])


@pytest.mark.slow
def test_configs_of_keras_rs_are_taken():
    keras_rs = pytest.importorskip("keras_rs")
    table = keras_rs.layers.TableConfig("t", 5, 4, combiner="sum")
    features = [keras_rs.layers.FeatureConfig("f", table, (2, 3), (2, 4))] * 2
    layer = tfs.keras.DistributedEmbedding(features)
    # The layer of keras_rs also accepts shapes that differ from those of the features.
    ids = [tf.ones([2], tf.int32), tf.sparse.eye(2, 7, tf.int32)]
    for inputs in ([tf.ones([2, 3], tf.int32)] * 2, ids):
        assert [x.shape.as_list() for x in layer(inputs)] == [[2, 4]] * 2
    # The default of keras_rs cannot be told from none.
    for name, own in (("adam", {}), ("sgd", {"t": tfs.keras.SGD})):
        table.optimizer = name
        layer = tfs.keras.DistributedEmbedding(features)
        layer.build()
        optimizer = tfs.keras.TableOptimizers("adam")
        optimizer.build(layer.trainable_variables)
        made = {k: type(x) for k, x in optimizer.table_optimizers.items()}
        assert made == own


def test_layer_in_a_subclassed_model_is_built_without_a_warning(recwarn):
    class Ranking(tf.keras.Model):
        def __init__(self):
            super().__init__()
            self.embedding = tfs.keras.DistributedEmbedding(models.feature_configs())

        def call(self, ids, training=None):
            vectors = self.embedding(ids, training=training)
            return tf.concat([*vectors.values()], axis=-1)[:, :1]

    model = Ranking()
    model.compile("sgd", loss="mse")
    ids, targets = models.batch(EXAMPLES)
    history = tfs.keras.fit(
        model, tf.data.Dataset.from_tensors((ids, targets)), verbose=0
    )
    assert [*history.history] == ["loss"]  # none of tables that grow
    assert [str(x.message) for x in recwarn if "unbuilt" in str(x.message)] == []
