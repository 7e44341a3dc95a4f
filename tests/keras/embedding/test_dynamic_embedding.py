"""Tables that grow, in one process: lookups, training, arguments and messages."""

import copy
import pickle

import dynamic_models as models
import embedding_models
import keras_variants
import numpy as np
import pytest
import tensorflow as tf
from combinations import mostly_by_night

import tf_syncrep as tfs
from tf_syncrep.python.keras.embedding import (
    distributed_embedding,
    dynamic_embedding,
    embedding,
)
from tf_syncrep.python.keras.tables.growing.dynamic_tables import DynamicTables
from tf_syncrep.python.keras.tables.stacked_tables import (
    StackedTables,
    is_part,
    tables_with,
)

Dynamic = tfs.keras.Dynamic


def layer_of(size, width=4, **options):
    table = tfs.keras.TableConfig("t", size, width, **options)
    return tfs.keras.DistributedEmbedding(tfs.keras.FeatureConfig("f", table))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Dynamic(0), "`max_rows` must be a whole number of at least 1"),
        (lambda: Dynamic(2.5), "`max_rows` must be a whole number of at least 1"),
        (lambda: Dynamic(2**31), "`max_rows` must be at most 2,147,483,647"),
        (lambda: Dynamic(9, admit=3), "`admit` must be None or a tfs.keras.MinCount"),
        (
            lambda: tfs.keras.MinCount("3"),
            "`n` must be a whole number of at least 1. Received: n='3'",
        ),
        (lambda: tfs.keras.MinCount(float("nan")), "`n` must be a whole number"),
        (lambda: tfs.keras.MinCount(256), "`n` must be at most 255. Received: n=256"),
        (lambda: Dynamic(9, evict="least_recent"), "`evict` must be None, tfs.keras."),
        (lambda: Dynamic(9, unused_for=0), "`unused_for` must be a whole number"),
        (
            lambda: tfs.keras.TableConfig("t", Dynamic(9), 4, initializer="orthogonal"),
            "Table 't' grows, and so its initializer must be one whose rows",
        ),
        (
            lambda: tfs.keras.Embedding(Dynamic(9), 4, embeddings_constraint="nonneg"),
            "make the layer without embeddings_constraint",
        ),
        (lambda: tfs.keras.Embedding(Dynamic(9), 0), "`output_dim` must be a whole"),
        (
            lambda: type("Mine", (tfs.keras.Embedding,), {})(Dynamic(9), 4),
            "must have a table of fixed size: .* Mine with Dynamic(max_rows=9",
        ),
        (
            lambda: type("Mine", (tfs.keras.Embedding,), {})(input_dim=Dynamic(9)),
            "must have a table of fixed size: .* Mine with Dynamic(max_rows=9",
        ),
        (
            lambda: layer_of(Dynamic(9))(tf.constant([1.0])),
            "feature 'f' must be integers or strings, as its table grows",
        ),
        (
            lambda: tfs.keras.Embedding(Dynamic(9), 4, name="e")(tf.constant([1.0])),
            "layer 'e' must be integers or strings, as its table grows",
        ),
        (lambda: layer_of(9)(tf.constant(["a"])), "must be integers: put a "),
        (
            lambda: tfs.keras.Embedding(Dynamic(9), 4, mask_zero=True, name="e")(
                tf.constant(["a"])
            ),
            "Layer 'e' must be made without mask_zero for strings",
        ),
        (
            lambda: tfs.keras.Embedding(Dynamic(9), 4, mask_zero=True, name="e")(
                tf.keras.Input((1,), dtype="string")
            ),
            "Layer 'e' must be made without mask_zero for strings",
        ),
    ],
)
def test_bad_input_is_refused_in_a_sentence(make, message):
    with pytest.raises(ValueError, match=message.replace("(", r"\(")):
        make()


def test_defaults_of_what_concerns_a_whole_table_are_taken():
    unfit = dict.fromkeys(embedding._OF_FIXED_TABLES)
    layer = tfs.keras.Embedding(Dynamic(9), 4, name="e", **unfit)
    assert layer(tf.constant([3])).shape == (1, 4)


LOOKS = {
    "of a model": lambda variables: tables_with(StackedTables, variables, True),
    "of an optimizer": lambda variables: tf.keras.optimizers.SGD().build(variables),
    "of a part": lambda variables: is_part(tf.Variable(0.0)),
}


@pytest.mark.parametrize("look", LOOKS)
def test_layer_may_be_built_while_another_thread_looks_for_tables(look, monkeypatch):
    layers, trained = [], DynamicTables.trained

    def build():
        layers.append(tfs.keras.Embedding(Dynamic(9), 2))
        layers[-1].build()

    def build_meanwhile(tables, slab):
        monkeypatch.undo()
        build()
        return trained(tables, slab)

    build()
    monkeypatch.setattr(DynamicTables, "trained", build_meanwhile)
    LOOKS[look](layers[0].trainable_variables)
    assert len(layers) == 2


def test_tables_of_both_kinds_are_not_stacked_together():
    features = [
        tfs.keras.FeatureConfig("f", tfs.keras.TableConfig("t", Dynamic(9), 4)),
        tfs.keras.FeatureConfig("g", tfs.keras.TableConfig("u", 9, 4)),
    ]
    with pytest.raises(ValueError, match="must all grow, or none of them"):
        tfs.keras.DistributedEmbedding(features, table_stacking=["t", "u"])


def test_configuration_is_all_that_a_layer_is():
    sizes = [
        Dynamic(9),
        Dynamic(9, tfs.keras.MinCount(2), tfs.keras.LeastRecent(), 7),
        Dynamic(np.int64(9), evict=tfs.keras.LeastFrequent()),
    ]
    for size in sizes:
        layer = layer_of(size)
        config = layer.get_config()
        again = tfs.keras.DistributedEmbedding.from_config(config)
        assert again.get_config() == config
        assert config["tables"][0]["vocabulary_size"]["max_rows"] == 9
        one = tfs.keras.Embedding(size, 4, mask_zero=True)
        assert type(one).from_config(one.get_config()).input_dim == size


def test_only_training_makes_rows_and_others_are_zeros():
    layer = layer_of(Dynamic(9), combiner=None)
    ids = tf.constant([3, -4])
    for call in (layer, tf.function(layer)):
        np.testing.assert_array_equal(call(ids), np.zeros([2, 4]))
        np.testing.assert_array_equal(call(ids, training=False), np.zeros([2, 4]))
    assert layer.table_stats()["t"]["rows"] == 0
    vectors = layer(ids, training=True)
    assert np.all(np.any(vectors.numpy() != 0, axis=1))
    np.testing.assert_array_equal(layer(ids), vectors)
    np.testing.assert_array_equal(layer(tf.constant([5]))[0], np.zeros(4))
    assert layer.table_stats()["t"]["rows"] == 2


def test_empty_batches_are_taken():
    layer = layer_of(Dynamic(9))
    for training in (False, True):
        assert layer(tf.zeros([0, 3], tf.int64), training=training).shape == (0, 4)
        assert layer(tf.zeros([2, 0], tf.int64), training=training).shape == (2, 4)


def test_key_is_admitted_when_it_was_seen_often_enough():
    layer = layer_of(Dynamic(50, admit=tfs.keras.MinCount(3)))
    for seen in range(1, 5):
        # All lookups of a key in one batch count once.
        vectors = layer(tf.constant([[7], [7]]), training=True)
        assert np.all(vectors.numpy() != 0) == (seen >= 3)
    stats = layer.table_stats()["t"]
    assert stats["admitted"] == 1
    assert stats["without_row"] == 2


def test_more_rows_than_memory_could_ever_have_are_refused_at_once():
    layer = tfs.keras.Embedding(Dynamic(2**31 - 1), 1 << 17)
    with pytest.raises(
        tf.errors.ResourceExhaustedError,
        match=r"no memory for zeros of shape \[2147483647,131072\], about 11258999",
    ):
        layer(tf.constant([1]), training=True)
    assert not layer.variables


def test_full_table_refuses_and_says_so_once_in_a_fit_that_does(caplog):
    model = tf.keras.Sequential(
        [
            tf.keras.layers.Input((), dtype="int64"),
            tfs.keras.Embedding(Dynamic(4), 2, name="small"),
            tf.keras.layers.Dense(1),
        ]
    )
    model.compile("sgd", loss="mse")
    history = tfs.keras.fit(model, np.arange(10), np.ones([10, 1]), epochs=2, verbose=0)
    told = [x for x in caplog.messages if "is full" in x]
    assert len(told) == 1
    assert "Table 'small', or a part of it, is full: 4 of its 4 rows" in told[0]
    assert history.history["tables/rows"] == [4, 4]
    assert history.history["tables/without_row"] == [6, 6]
    assert history.history["tables/admitted"] == [4, 0]
    assert history.history["tables/evicted"] == [0, 0]
    np.testing.assert_array_equal(
        model.layers[0](np.arange(10)).numpy().any(axis=1).sum(), 4
    )
    caplog.clear()
    keys = model.layers[0].get_embedding_table().keys
    tfs.keras.fit(model, keys, np.ones([4, 1]), verbose=0)  # it refuses none
    assert "is full" not in caplog.text


class Untold(tf.keras.Model):
    """A model that does not tell its table of training."""

    def __init__(self, **options):
        super().__init__()
        self.table = tfs.keras.Embedding(Dynamic(99, **options), 4, name="words")
        self.score = tf.keras.layers.Dense(1)
        self.compile("sgd", loss="mse")

    def call(self, ids):
        return self.score(self.table(ids, training=False))


class WithoutArgument(Untold):
    def call(self, ids):
        return self.score(self.table(ids))


class WithArgument(Untold):
    def call(self, ids, training=None):
        return self.score(self.table(ids))


@pytest.mark.parametrize(
    "kind",
    [
        Untold,
        pytest.param(
            WithoutArgument,
            marks=pytest.mark.skipif(
                not keras_variants.IS_KERAS_3, reason="Keras 2 tells all layers"
            ),
        ),
    ],
)
def test_fit_says_once_that_no_step_has_looked_up_in_a_table(kind, caplog):
    def told():
        return [x for x in caplog.messages if "empty" in x]

    model, ids, targets = kind(), np.arange(8), np.ones([8, 1])
    tfs.keras.evaluate(model, ids, targets, verbose=0)
    tfs.keras.predict(model, ids, verbose=0)
    assert not told()
    tfs.keras.fit(model, ids, targets, epochs=3, verbose=0)
    (message,) = told()
    assert "Table 'words' stays empty: no training step has looked up" in message
    assert "`call` of the model must have an argument `training`" in message
    caplog.clear()
    model.table(ids, training=True)
    tfs.keras.fit(model, ids, targets, verbose=0)
    assert not told()


@pytest.mark.parametrize(("n", "rows"), [(1, 8), (9, 0)])
def test_fit_does_not_say_so_of_a_table_in_which_steps_look_up(n, rows, caplog):
    model = WithArgument(admit=tfs.keras.MinCount(n))
    tfs.keras.fit(model, np.arange(8), np.ones([8, 1]), verbose=0)
    assert "empty" not in caplog.text
    assert model.table.table_stats()["words"]["rows"] == rows


def told_of_nan(caplog, ids, dtype):
    """What is said of a table when a model with an Input of that dtype trains."""
    inputs = tf.keras.Input((2,), dtype=dtype)
    layer = tfs.keras.Embedding(Dynamic(9), 4, name="words")
    model = tf.keras.Model(inputs, layer(inputs))
    model.compile("sgd", "mse")
    tfs.keras.fit(model, ids, np.ones([1, 2, 4]), epochs=2, verbose=0)
    return [x for x in caplog.messages if "NaN" in x]


@pytest.mark.parametrize("dtype", ["int32", "int64"])
def test_fit_says_once_that_missing_values_have_become_an_id(dtype, caplog):
    (message,) = told_of_nan(caplog, np.array([[np.nan, 5.0]]), dtype)
    assert f"Table 'words' has a row of id {np.iinfo(dtype).min}, which" in message


def test_fit_does_not_speak_of_missing_values_where_there_are_none(caplog):
    assert not told_of_nan(caplog, np.array([[-5.0, 5.0]]), "int64")


@pytest.mark.parametrize(("dtype", "is_told"), [("int32", True), ("int64", False)])
@pytest.mark.parametrize("kind", ["embedding", "distributed"])
def test_input_to_which_wider_ids_are_cast_is_told(kind, dtype, is_told, caplog):
    if kind == "embedding":
        layer = tfs.keras.Embedding(Dynamic(9), 4)
    else:
        layer = layer_of(Dynamic(9))
    layer(tf.keras.Input((2,), dtype=dtype))
    layer(tf.constant([[1, 2]], tf.int32))  # These are as they came.
    told = [x for x in caplog.messages if "come by an Input of int32" in x]
    assert len(told) == is_told


OPTIMIZERS = {
    "sgd": lambda: tf.keras.optimizers.SGD(0.1),
    "momentum": lambda: tf.keras.optimizers.SGD(0.1, momentum=0.9),
    "adagrad": lambda: tf.keras.optimizers.Adagrad(0.1),
    "adam": lambda: tf.keras.optimizers.Adam(0.1),
    "rmsprop": lambda: tf.keras.optimizers.RMSprop(0.1),
    "ftrl": lambda: tf.keras.optimizers.Ftrl(0.1),
    "adam_async": lambda: tfs.keras.AdamAsync(0.1),
    "rowwise_adagrad": lambda: tfs.keras.RowwiseAdagrad(0.1),
    "lazy_adagrad": lambda: tfs.keras.Adagrad(0.1),
    "lazy_ftrl": lambda: tfs.keras.FTRL(0.1),
    "lazy_momentum": lambda: tfs.keras.SGD(0.1, momentum=0.9),
    "sync": lambda: tfs.keras.SyncReplicas(tfs.keras.AdamAsync(0.1), 2),
    "tables": lambda: tfs.keras.TableOptimizers(tfs.keras.AdamAsync(0.1)),
}
# Optimizers of a table's own, where the other table has the model's.
OWN = {"tables": {"items": tfs.keras.RowwiseAdagrad(0.1)}}
QUICK = ("adam", "adagrad", "rowwise_adagrad", "lazy_ftrl", "sync", "tables")


@pytest.mark.parametrize("optimizer", mostly_by_night(OPTIMIZERS, *QUICK))
def test_trains_like_a_fixed_table_of_the_same_values_bit_for_bit(optimizer):
    tables = models.initial_tables()
    results = []
    for with_keys in (True, False):
        make, own = OPTIMIZERS[optimizer], OWN.get(optimizer)
        if with_keys:
            model = models.growing(make(), own)
        else:
            model = models.fixed(make(), tables, own)
        # This makes all rows exist from the first step, as in the other model.
        if with_keys:
            model(models.as_keys(models.all_ids()), training=True)
        data = models.dataset(range(6), 8, with_keys)
        history = tfs.keras.fit(model, data, epochs=2, verbose=0)
        results.append((history.history["loss"], model.tables()))
    tolerance = models.tolerance(optimizer)
    np.testing.assert_allclose(results[0][0], results[1][0], rtol=tolerance)
    models.assert_same_by_key(results[0][1], results[1][1], tolerance)
    assert not np.allclose(
        results[0][1]["items"].vectors, tables["items"].vectors, atol=1e-3
    )


def test_powers_advance_without_rows_as_those_of_a_fixed_table_do():
    no_rows = tf.IndexedSlices(tf.zeros([0, 4]), tf.zeros([0], tf.int64))
    for size in (9, Dynamic(9)):
        layer = layer_of(size)
        layer.build()
        (part,) = layer.trainable_variables
        optimizer = tfs.keras.AdamAsync(0.1, beta_1=0.5)
        optimizer.apply_gradients([(no_rows, part)])
        power = tf.convert_to_tensor(optimizer.slots(part)["beta_1_power"])
        assert power.numpy().tolist() == [0.25]


def test_rows_begin_with_the_same_values_in_any_order():
    expected = models.initial_tables()
    model = models.growing("sgd")
    ids = models.as_keys(models.all_ids())
    for part in (slice(None, None, -3), slice(0, 20), slice(None)):
        model({name: x[part] for name, x in ids.items()}, training=True)
    for name, table in model.tables().items():
        np.testing.assert_array_equal(table.keys, expected[name].keys)
        np.testing.assert_array_equal(table.vectors, expected[name].vectors)


@pytest.mark.parametrize(
    ("initializer", "check"),
    [
        ("zeros", lambda x: not x.any()),
        ("ones", lambda x: (x == 1).all()),
        (tf.keras.initializers.Constant(2.5), lambda x: (x == 2.5).all()),
        (
            tf.keras.initializers.RandomUniform(1.0, 3.0, seed=1),
            lambda x: 1 <= x.min() < 1.1 and 2.9 < x.max() <= 3,
        ),
        (
            tf.keras.initializers.RandomNormal(5.0, 0.5),
            lambda x: abs(x.mean() - 5) < 0.05 and abs(x.std() - 0.5) < 0.05,
        ),
        (
            tf.keras.initializers.TruncatedNormal(5.0, 0.5),
            lambda x: abs(x - 5).max() <= 1 and abs(x.std() - 0.44) < 0.05,
        ),
        (
            tf.keras.initializers.VarianceScaling(mode="fan_out"),
            lambda x: abs(x.std() - 0.25) < 0.02,
        ),
        (
            tf.keras.initializers.GlorotUniform(),
            lambda x: abs(x).max() <= np.sqrt(6 / 1016) and abs(x).max() > 0.07,
        ),
    ],
)
def test_rows_are_drawn_as_the_initializer_says(initializer, check):
    layer = layer_of(Dynamic(1000), 16, initializer=initializer, combiner=None)
    vectors = layer(tf.range(200), training=True).numpy()
    assert check(vectors)
    if vectors.std():
        assert len(np.unique(vectors)) > 3000


def test_rows_depend_on_the_seed_of_any_kind():
    def rows(seed):
        initializer = tf.keras.initializers.RandomNormal(seed=seed)
        layer = layer_of(Dynamic(9), initializer=initializer)
        return layer(tf.constant([3, 4]), training=True).numpy()

    seven, is_keras_3 = rows(7), keras_variants.IS_KERAS_3
    same = tf.keras.random.SeedGenerator(7) if is_keras_3 else np.int64(7)
    np.testing.assert_array_equal(rows(same), seven)
    assert np.all(rows(None) != seven)


def test_tables_are_set_by_key():
    layer = layer_of(Dynamic(9), combiner=None)
    layer(tf.constant([5, 6]), training=True)
    layer.set_embedding_tables({"t": ([8, 5, -1], np.arange(12.0).reshape([3, 4]))})
    keys, vectors = layer.get_embedding_tables()["t"]
    assert keys.tolist() == [-1, 5, 8]
    np.testing.assert_array_equal(vectors[:, 0], [8, 4, 0])
    np.testing.assert_array_equal(layer(tf.constant([6, 5]))[:, 0], [0, 4])
    layer.set_embedding_tables({"t": ([], np.zeros([0, 4]))})
    assert layer.table_stats()["t"]["rows"] == 0


@pytest.mark.parametrize(
    ("table", "message"),
    [
        (([1, 1], np.ones([2, 4])), "Keys of table 't' must differ. Received: key 1"),
        (([1, 2], np.ones([2, 3])), "must have shapes \\[n\\] and \\[n, 4\\]"),
        (([1.0, 2.0], np.ones([2, 4])), "must be int32 or int64. Received: keys of"),
        (np.ones([3, 4]), "grows, and is set by keys and vectors"),
        ((range(10), np.ones([10, 4])), "must be given at most 9 keys"),
        (([1], [["x"] * 4]), "'t' must be real numbers. Received: values of dtype <U1"),
        (([1], np.ones([1, 4], "M8[s]")), "must be real numbers. Received: values of"),
    ],
)
def test_bad_tables_are_refused_and_nothing_is_changed(table, message):
    layer = layer_of(Dynamic(9))
    layer(tf.constant([5]), training=True)
    before = layer.get_embedding_tables()["t"]
    with pytest.raises(ValueError, match=message):
        layer.set_embedding_tables({"t": table})
    np.testing.assert_array_equal(layer.get_embedding_tables()["t"].keys, before.keys)


def test_refused_tables_leave_those_that_were_not():
    sizes = {"t": Dynamic(9), "u": 2}
    layer = embedding_models.layer_of(
        *(tfs.keras.TableConfig(name, size, 4) for name, size in sizes.items())
    )
    layer.build(None)
    with pytest.raises(ValueError, match="'u' must be real numbers"):
        layer.set_embedding_tables(
            {"t": ([1], np.ones([1, 4])), "u": np.full([2, 4], 1j)}
        )
    assert not len(layer.get_embedding_tables()["t"].keys)


def test_layer_of_one_table_masks_pickles_and_takes_ragged_ids():
    layer = tfs.keras.Embedding(Dynamic(9), 4, mask_zero=True)
    ids = tf.ragged.constant([[3, 4], []])
    vectors = layer(ids, training=True)
    assert vectors.shape == (2, None, 4)
    assert layer.compute_mask(tf.constant([[3, 0]])).numpy().tolist() == [[True, False]]
    again = pickle.loads(pickle.dumps(layer))
    np.testing.assert_array_equal(again(ids).flat_values, vectors.flat_values)
    keys, _ = again.get_embedding_table()
    again.set_embedding_table((keys, np.ones([2, 4])))
    assert np.all(again(ids).flat_values == 1)
    assert not np.any(layer(ids).flat_values == 1)


@pytest.mark.parametrize("is_functional", [True, False])
def test_padding_is_masked_in_a_model_that_is_built_by_its_input(is_functional):
    layers = [
        tfs.keras.Embedding(Dynamic(9), 4, mask_zero=True, name="table"),
        tf.keras.layers.GlobalAveragePooling1D(),
    ]
    inputs = tf.keras.Input((4,), dtype="int64")
    model = tf.keras.Sequential([inputs, *layers])
    if is_functional:
        model = tf.keras.Model(inputs, layers[1](layers[0](inputs)))
    table = ([0, 3, 5], [[9.0] * 4, [1.0] * 4, [2.0] * 4])
    model.get_layer("table").set_embedding_table(table)
    means = model.predict(np.array([[3, 5, 0, 0], [5, 0, 0, 0]]), verbose=0)
    np.testing.assert_array_equal(means, [[1.5] * 4, [2.0] * 4])


@pytest.mark.parametrize(
    "copied", [copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))]
)
@pytest.mark.parametrize("make", [tfs.keras.Embedding, layer_of])
def test_copies_have_rows_in_use_alone_in_any_number_of_parts(
    make, copied, monkeypatch
):
    layer = make(Dynamic(2_000_000), 16)
    keys = tf.constant([3, -4, 2**40])
    for _ in range(2):
        vectors = layer(keys, training=True)
    assert len(pickle.dumps(layer)) < 100_000
    for module in (dynamic_embedding, distributed_embedding):
        monkeypatch.setattr(module, "num_parts", lambda: 3)
    again = copied(layer)
    assert len(again.trainable_variables) == 3
    np.testing.assert_array_equal(again(keys), vectors)
    (name,) = again._growing.by_name
    rows, same = (x._growing.rows_of(name) for x in (layer, again))
    np.testing.assert_array_equal(rows.keys, same.keys)
    np.testing.assert_array_equal(rows.uses, same.uses)


def test_strategies_that_copy_variables_are_refused():
    with tf.distribute.MirroredStrategy(["CPU:0"]).scope():
        layer = layer_of(Dynamic(9))
        with pytest.raises(ValueError, match="Received: MirroredStrategy"):
            layer(tf.constant([1]))


def loop(model, data, **options):
    """A step of a loop of one's own."""
    del options
    ids, targets = next(iter(data))
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean((model(ids, training=True) - targets) ** 2)
    gradients = tape.gradient(loss, model.trainable_variables)
    pairs = zip(gradients, model.trainable_variables, strict=True)
    model.optimizer.apply_gradients(pairs)


@pytest.mark.parametrize(
    "train", [tfs.keras.fit, lambda model, *args, **x: model.fit(*args, **x), loop]
)
@pytest.mark.parametrize(
    "make",
    [
        lambda: tf.keras.optimizers.Adam(0.1, use_ema=True),
        lambda: tfs.keras.SGD(0.1, use_ema=True),
        lambda: tfs.keras.GradientAccumulation(tfs.keras.SGD(use_ema=True), 2),
    ],
    ids=["stock", "ours", "inner"],
)
def test_averages_of_an_optimizer_are_refused(train, make):
    model = models.growing(make())
    with pytest.raises(ValueError, match="must be made without use_ema"):
        train(model, models.dataset([0], 4, True), verbose=0)


@pytest.mark.parametrize("wrap", [lambda x: x, lambda x: tfs.keras.SyncReplicas(x, 1)])
def test_averages_of_what_trains_no_table_that_grows_are_taken(wrap):
    own = dict.fromkeys(models.SIZES, "adagrad")
    optimizer = wrap(tfs.keras.TableOptimizers(tfs.keras.SGD(0.1, use_ema=True)))
    model = models.growing(optimizer, own)
    tfs.keras.fit(model, models.dataset([0], 4, True), verbose=0)
    assert len(model.tables()["items"].keys)
