"""An embedding layer whose table stays where it is."""

import ast
import collections
import copy
import pickle

import embedding_models
import keras_variants
import numpy as np
import programs
import pytest
import tensorflow as tf
from same import assert_same

import tf_syncrep as tfs
from tf_syncrep.python.keras.embedding import embedding

ROWS, DIMENSIONS = 100, 8
IDS = np.array([[3, 7, 3], [0, 99, 42]])


def make_layer(cls, **arguments):
    layer = cls(ROWS, DIMENSIONS, **arguments)
    layer.build((None, 3))
    table = np.random.default_rng(1).normal(size=(ROWS, DIMENSIONS))
    layer.set_weights([table.astype(np.float32)])
    return layer


def native(layer):
    (table,) = layer.trainable_variables
    return keras_variants.native(table)


@pytest.mark.parametrize("dtype", [np.int32, np.int64, np.uint8, np.float32])
@pytest.mark.parametrize("policy", ["float32", "mixed_bfloat16"])
def test_vectors_and_gradients_are_those_of_keras(dtype, policy):
    results = []
    for cls in (tf.keras.layers.Embedding, tfs.keras.Embedding):
        layer = make_layer(cls, dtype=policy)
        with tf.GradientTape() as tape:
            vectors = layer(tf.constant(IDS.astype(dtype)))
            loss = tf.reduce_sum(tf.cast(vectors, tf.float32) ** 2)
        gradient = tape.gradient(loss, native(layer))
        assert isinstance(gradient, tf.IndexedSlices)
        results.append((vectors, tf.convert_to_tensor(gradient)))
    for expected, actual in zip(*results, strict=True):
        assert actual.dtype == expected.dtype
        np.testing.assert_array_equal(
            tf.cast(actual, tf.float32), tf.cast(expected, tf.float32)
        )


def ops_of_a_step(layer, model):
    """How many ops of each type the gradient of a table needs."""

    @tf.function
    def step(ids):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.cast(model(ids), tf.float32) ** 2)
        return tape.gradient(loss, native(layer))

    concrete = step.get_concrete_function(tf.TensorSpec([None, 3], tf.int64))
    return collections.Counter(op.type for op in concrete.graph.get_operations())


@pytest.mark.parametrize("policy", ["float32", "mixed_bfloat16"])
@pytest.mark.parametrize("model_policy", [None, "float32", "mixed_bfloat16"])
def test_no_step_reads_the_table(policy, model_policy):
    layer = make_layer(tfs.keras.Embedding, dtype=policy)
    model = layer
    if model_policy is not None:
        model = tf.keras.Sequential([layer])
        if keras_variants.IS_KERAS_3:
            model.dtype_policy = model_policy
    ops = ops_of_a_step(layer, model)
    assert ops["ResourceGather"] == 1
    # With Keras 3's own layer there is one.
    assert not ops["ReadVariableOp"]


def model_with_table():
    inputs = tf.keras.Input([3], dtype="int64")
    layer = tfs.keras.Embedding(ROWS, DIMENSIONS, mask_zero=True, name="table")
    model = tf.keras.Model(inputs, layer(inputs))
    model.compile(tfs.keras.SyncReplicas(tfs.keras.AdamAsync(0.5), 2), loss="mse")
    return model


# This is the class of a saved model's layer with the package; Keras 2 does not use
# ours.
LOADED_CLASS = (
    tfs.keras.Embedding if keras_variants.IS_KERAS_3 else tf.keras.layers.Embedding
)


def test_model_with_it_is_saved_and_loaded(tmp_path):
    model = model_with_table()
    model.save(tmp_path / "model.keras")
    loaded = tf.keras.models.load_model(tmp_path / "model.keras")
    assert type(loaded.get_layer("table")) is LOADED_CLASS
    np.testing.assert_array_equal(loaded(IDS), model(IDS))
    mask = loaded.get_layer("table").compute_mask(tf.constant(IDS))
    np.testing.assert_array_equal(mask, IDS != 0)


def test_layer_of_a_file_that_names_the_package_is_loaded():
    config = tf.keras.layers.serialize(tfs.keras.Embedding(ROWS, DIMENSIONS))
    config["module"], config["registered_name"] = None, "tf_syncrep>Embedding"
    assert type(tf.keras.layers.deserialize(config)) is tfs.keras.Embedding


def test_keras_own_layer_stays_keras_own():
    config = tf.keras.layers.serialize(tf.keras.layers.Embedding(ROWS, DIMENSIONS))
    loaded = tf.keras.layers.deserialize(config)
    assert type(loaded) is tf.keras.layers.Embedding


# Programs for processes that have imported nothing yet, or the package alone. The
# argument is the file.
LOAD = """
import sys
import tensorflow as tf
{imports}
model = tf.keras.models.load_model(sys.argv[1], compile={compile})
layer = model.get_layer("table")
print("RESULT", [
    "tf_syncrep" in sys.modules,
    layer.call.__module__.partition(".")[0],
    type(model.optimizer).__name__ if {compile} else "none",
    [round(float(x), 4) for x in model(tf.constant([[3, 7, 3]]))[0, 1]],
])
"""


@pytest.mark.ci
@pytest.mark.parametrize("has_package", [True, False])
def test_saved_model_is_loaded_by_a_fresh_process(has_package, tmp_path):
    model = model_with_table()
    path = tmp_path / "model.keras"
    model.save(path)
    code = LOAD.format(
        imports="import tf_syncrep" if has_package else "", compile=has_package
    )
    if has_package:
        finished = programs.run_source(code, str(path))
        assert finished.returncode == 0, finished.stderr[-3000:]
        lines = finished.stdout.splitlines()
    else:
        lines = programs.run_without_package(code, str(path))
    (line,) = [x for x in lines if x.startswith("RESULT")]
    is_imported, home, optimizer, vector = ast.literal_eval(line.removeprefix("RESULT"))
    is_ours = has_package and keras_variants.IS_KERAS_3
    assert is_imported == has_package
    assert (home == "tf_syncrep") == is_ours
    assert optimizer == ("SyncReplicas" if has_package else "none")
    expected = np.asarray(native(model.get_layer("table")))[7]
    np.testing.assert_allclose(vector, expected, atol=1e-4)


def test_ids_out_of_range_are_refused():
    layer = make_layer(tfs.keras.Embedding)
    for bad in (-1, ROWS, -0.5):
        with pytest.raises(tf.errors.InvalidArgumentError, match=r"in \[0, 100\)"):
            layer(tf.constant([[0, bad]]))


@pytest.mark.parametrize("shards", [1, 2])
def test_ids_that_a_float_cannot_name_are_refused(shards):
    layer = tfs.keras.Embedding(2**24 + 1, 1, "zeros", shards=shards, name="words")
    with pytest.raises(ValueError, match="Ids of layer 'words' must be int32 or int64"):
        tf.keras.Sequential([layer])(tf.constant([[1, 2**24]]))  # Makes them float32.


@pytest.mark.skipif(
    not keras_variants.IS_KERAS_3, reason="this Keras knows the dtype of ids"
)
def test_subclassed_model_of_more_ids_than_a_float_can_name_is_saved(tmp_path):
    class Model(tf.keras.Model):
        def __init__(self):
            super().__init__()
            self.table = tfs.keras.Embedding(2**24 + 2, 1, dtype="float16")

        def call(self, ids):
            return self.table(ids)

    model = Model()
    ids = tf.constant([2**24 + 1])
    expected = model(ids)
    serve = tf.function(model, input_signature=[tf.TensorSpec([None], tf.int32)])
    tf.saved_model.save(model, str(tmp_path), signatures=serve)
    served = tf.saved_model.load(str(tmp_path)).signatures["serving_default"](ids)
    np.testing.assert_array_equal(served["output_0"], expected)


@pytest.mark.parametrize("shards", [1, 3, 1000])
def test_table_in_parts_is_the_same_layer(shards, tmp_path):
    whole = make_layer(tfs.keras.Embedding, mask_zero=True)
    parted = make_layer(tfs.keras.Embedding, mask_zero=True, shards=shards)
    sizes = [keras_variants.native(part).shape[0] for part in parted.weights]
    assert sum(sizes) == ROWS
    assert len(sizes) == min(shards, ROWS)
    np.testing.assert_array_equal(parted(IDS), whole(IDS))
    np.testing.assert_array_equal(parted.compute_mask(IDS), whole.compute_mask(IDS))
    if keras_variants.IS_KERAS_3 or shards == 1:
        np.testing.assert_array_equal(parted.embeddings, whole.embeddings)
    (table,) = parted.get_weights()
    np.testing.assert_array_equal(table, whole.get_weights()[0])
    again = tfs.keras.Embedding.from_config(parted.get_config())
    again.build((None,))
    assert len(again.weights) == len(sizes)
    path = str(tmp_path / "model.weights.h5")
    models = [tf.keras.Sequential([x]) for x in (parted, again)]
    for model in models:
        model(IDS)
    models[0].save_weights(path)
    models[1].load_weights(path)
    np.testing.assert_array_equal(again(IDS), whole(IDS))


def scores(use, layer, hidden, ids):
    """Language models use the table of their words' vectors like this."""
    if use == "tied":
        return tf.matmul(hidden, layer.embeddings, transpose_b=True)
    sampled = tf.constant([1, 2, 50, 98, 99], tf.int64)
    return tf.nn.sampled_softmax_loss(
        layer.embeddings,
        tf.zeros([ROWS], hidden.dtype),
        tf.cast(ids[:, :1], tf.int64),
        hidden,
        num_sampled=5,
        num_classes=ROWS,
        sampled_values=(sampled, tf.ones([2, 1]), tf.ones([5])),
    )


@pytest.mark.parametrize(
    ("use", "policy"),
    [("tied", "float32"), ("tied", "mixed_bfloat16"), ("sampled", "float32")],
)
def test_table_in_parts_is_used_as_in_one_piece(use, policy):
    class Words(tf.keras.Model):
        def __init__(self, layer):
            super().__init__(dtype=policy)
            self.words = layer

        def call(self, ids):
            return scores(use, self.words, tf.reduce_mean(self.words(ids), axis=1), ids)

    results = []
    for cls, arguments in [
        (tf.keras.layers.Embedding, {}),
        (tfs.keras.Embedding, {}),
        (tfs.keras.Embedding, {"shards": 3}),
    ]:
        model = Words(make_layer(cls, dtype=policy, **arguments))
        model.compile(tf.keras.optimizers.SGD(0.5), loss=lambda _, y: y)
        results.append(model.predict_on_batch(IDS))
        for _ in range(2):
            model.train_on_batch(IDS, np.zeros([2, 1], np.float32))
        results.append(model.words.get_weights()[0])
    for got in (results[2:4], results[4:]):
        for pair in zip(got, results[:2], strict=True):
            # NumPy before 2.0 cannot compare bfloat16 with a tolerance.
            actual, expected = (np.asarray(x, np.float32) for x in pair)
            np.testing.assert_allclose(actual, expected, rtol=1e-6, atol=1e-6)


def _distributed():
    table = tfs.keras.TableConfig("table", 7, 3)
    return tfs.keras.DistributedEmbedding(
        tfs.keras.FeatureConfig("ids", table, (2,), (2, 3))
    )


class Own(tfs.keras.Embedding):
    """A layer of a user's own."""


LAYERS = {
    "whole": lambda: tfs.keras.Embedding(7, 3, name="words"),
    "parts": lambda: tfs.keras.Embedding(7, 3, shards=2, trainable=False),
    "distributed": _distributed,
    "subclass": lambda: Own(7, 3),
}


@pytest.mark.parametrize("layer", LAYERS)
@pytest.mark.parametrize("is_built", [False, True])
@pytest.mark.parametrize(
    "copied", [copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))]
)
def test_copies_and_what_pickle_makes_are_equal_layers(layer, is_built, copied):
    layer = LAYERS[layer]()
    if is_built:
        layer.build(None)
    again = copied(layer)
    assert type(again) is type(layer)
    assert again is not layer
    assert again.get_config() == layer.get_config()
    assert_same(again.get_weights(), layer.get_weights())
    ids = tf.constant([[3, 5]])
    assert again(ids).shape == layer(ids).shape


def test_weights_of_models_do_not_tell_of_parts():
    def make(shards, seed):
        tf.keras.utils.set_random_seed(seed)
        layer = make_layer(tfs.keras.Embedding, shards=shards, name="words")
        inner = tf.keras.Sequential([layer, tf.keras.layers.GlobalAveragePooling1D()])
        model = tf.keras.Sequential([inner, tf.keras.layers.Dense(1)])
        model(IDS)
        return model, layer

    (single, whole), (model, parted) = make(1, 1), make(3, 2)
    model.set_weights([x + 1 for x in single.get_weights()])
    assert len(model.weights) == len(single.weights) + 2
    expected = [x + 1 for x in single.get_weights()]
    for weights in (
        model.get_weights(),
        [*model.layers[0].get_weights(), *expected[1:]],
    ):
        assert_same(weights, expected)
    np.testing.assert_array_equal(parted.get_weights()[0], whole.get_weights()[0] + 1)
    with pytest.raises(ValueError, match=r"Received: weights of shapes \[\(3, 8\)"):
        model.set_weights([expected[0][:3], *expected[1:]])
    assert_same(model.get_weights(), expected)


@pytest.mark.parametrize("shards", [0, -1, 1.5, True, "2"])
def test_number_of_parts_is_a_number(shards):
    with pytest.raises(ValueError, match="whole number of at least 1"):
        tfs.keras.Embedding(ROWS, DIMENSIONS, shards=shards)


def mean_of_squares(table):
    return tf.reduce_mean(tf.square(tf.convert_to_tensor(table)))


class MeanOfSquares(tf.keras.regularizers.L2):
    """It derives from a sum, and is none."""

    def __call__(self, x):
        return mean_of_squares(x)


class SumOfCubes(tf.keras.regularizers.Regularizer):
    sums_over_elements = True

    def __call__(self, x):
        return tf.reduce_sum(tf.abs(tf.convert_to_tensor(x)) ** 3)


@pytest.mark.parametrize(
    ("regularizer", "num_parts"),
    [
        (tf.keras.regularizers.OrthogonalRegularizer(0.1), 1),
        (mean_of_squares, 1),
        (MeanOfSquares(), 1),
        ("l1", 3),
        (tf.keras.regularizers.L2(0.1), 3),
        (tf.keras.regularizers.L1L2(0.1, 0.2), 3),
        (SumOfCubes(), 3),
    ],
)
def test_penalty_is_that_of_the_whole_table(regularizer, num_parts, monkeypatch):
    monkeypatch.setattr(embedding, "_MIN_PART_BYTES", 4)
    monkeypatch.setattr(embedding, "num_parts", lambda: 3)
    monkeypatch.setattr(embedding.compat, "IS_KERAS_3", True)  # which makes parts
    whole, parted = (
        make_layer(cls, embeddings_regularizer=regularizer)
        for cls in (tf.keras.layers.Embedding, tfs.keras.Embedding)
    )
    assert len(parted.trainable_variables) == num_parts
    expected = float(tf.add_n(whole.losses))
    assert float(tf.add_n(parted.losses)) == pytest.approx(expected, rel=1e-5)


def test_parts_are_refused_to_a_regularizer_of_the_whole_table():
    layer = tfs.keras.Embedding(
        ROWS, DIMENSIONS, shards=2, embeddings_regularizer=mean_of_squares
    )
    with pytest.raises(ValueError, match="no embeddings_regularizer of all of it: use"):
        layer.build((None,))


@pytest.mark.parametrize("name", ["embeddings", "nothing"])
def test_what_a_layer_lacks_before_it_is_built_is_said_as_keras_says_it(name):
    messages = []
    for cls in (tf.keras.layers.Embedding, tfs.keras.Embedding):
        with pytest.raises(AttributeError) as error:
            getattr(cls(ROWS, DIMENSIONS), name)
        messages.append(str(error.value))
    assert messages[0] == messages[1]


@pytest.mark.parametrize("grows", [False, True])
def test_tables_of_a_layer_that_is_not_built_are_refused_in_a_sentence(grows):
    size = tfs.keras.Dynamic(9) if grows else 9
    table = tfs.keras.TableConfig("items", size, 2)
    layer = tfs.keras.DistributedEmbedding(tfs.keras.FeatureConfig("f", table))
    values = ([1], [[1.0, 2.0]]) if grows else np.ones([9, 2])
    for use in (
        layer.get_embedding_tables,
        lambda: layer.set_embedding_tables({"items": values}),
    ):
        with pytest.raises(ValueError, match="made when their layer is built"):
            use()


@pytest.mark.parametrize(
    ("shards", "make", "said"),
    [
        (2, lambda: tf.keras.optimizers.SGD(1.0, clipnorm=0.1), "clipnorm=0.1 of SGD"),
        (2, lambda: tfs.keras.AdamAsync(clipnorm=2.0), "clipnorm=2.0 of AdamAsync"),
        (
            2,
            lambda: tfs.keras.SyncReplicas(tfs.keras.AdamAsync(clipnorm=2.0), 1),
            "clipnorm=2.0 of AdamAsync",
        ),
        (2, lambda: tf.keras.optimizers.Adafactor(), "Adafactor"),
        (1, lambda: tf.keras.optimizers.SGD(1.0, clipnorm=0.1), None),
        (2, lambda: tf.keras.optimizers.SGD(1.0, global_clipnorm=0.1), None),
    ],
)
def test_clipping_of_parts_by_themselves_is_told_once(shards, make, said, caplog):
    layer = make_layer(tfs.keras.Embedding, shards=shards, name="words")
    optimizer = make()
    for _ in range(2):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(layer(tf.constant(IDS)) ** 2)
        variables = layer.trainable_variables
        natives = [keras_variants.native(x) for x in variables]
        gradients = tape.gradient(loss, natives)
        optimizer.apply_gradients(zip(gradients, variables, strict=True))
    told = [x for x in caplog.messages if "looks at each variable by itself" in x]
    assert [x.split(" looks")[0] for x in told] == ([said] if said else [])


def test_clipping_of_stacked_tables_by_themselves_is_told(caplog):
    tables = [tfs.keras.TableConfig(name, 9, 4) for name in ("users", "films")]
    layer = embedding_models.layer_of(*tables)
    layer.build()
    optimizer = tf.keras.optimizers.SGD(1.0, clipnorm=0.1)
    optimizer.build(layer.trainable_variables)
    assert "tables ['films', 'users'] are not in one variable each" in caplog.text


def test_what_needs_the_table_whole_is_refused_for_parts():
    layer = tfs.keras.Embedding(
        ROWS, DIMENSIONS, shards=2, embeddings_constraint="max_norm"
    )
    with pytest.raises(ValueError, match="in parts has no embeddings_constraint: use"):
        layer.build((None,))
    if keras_variants.IS_KERAS_3:
        layer = make_layer(tfs.keras.Embedding, shards=2)
        with pytest.raises(ValueError, match="enable_lora needs the table of layer"):
            layer.enable_lora(2)
        with pytest.raises(ValueError, match="quantize needs the table of layer"):
            layer.quantize("int8")
