"""Tables in files that TensorFlow and Keras write, which may not fit all of them."""

import embedding_models as models
import keras_variants
import numpy as np
import pytest
import tensorflow as tf
from combinations import thinned
from same import assert_same

import tf_syncrep as tfs

NUM_PARTS = "tf_syncrep.python.keras.embedding.distributed_embedding.num_parts"
EXAMPLES, STEPS = 12, 3
LAYOUTS = [(1, "auto"), (1, None), (2, "auto"), (3, ["days"])]
# The parts of these have the same shapes, in the same order.
SAME_SHAPES = [(1, None), (2, "auto")]


def layer_of(layout, monkeypatch, sizes=models.SIZES, build=True):
    num_parts, stacking = layout
    monkeypatch.setattr(NUM_PARTS, lambda: num_parts)
    tables = [
        tfs.keras.TableConfig(name, size, models.WIDTHS.get(name, 4))
        for name, size in sizes.items()
    ]
    layer = models.layer_of(*tables, table_stacking=stacking, name="tables")
    if build:
        layer.build()
    return layer


def model_of(layout, monkeypatch, optimizer, sizes):
    """Compiles the model, and trains it for some steps, so that it has slots."""
    layer = layer_of(layout, monkeypatch, sizes)
    layer.set_embedding_tables(tables_of(sizes))
    inputs = {
        name: tf.keras.Input((), dtype="int64", name=name) for name in sorted(sizes)
    }
    vectors = list(layer(inputs).values())
    outputs = tf.keras.layers.Dense(1, kernel_initializer="ones")(
        tf.keras.layers.Concatenate()(vectors)
    )
    model = tf.keras.Model(inputs, outputs)
    model.compile(optimizer, loss="mse")
    train(model, sizes, range(STEPS))
    return model


def train(model, sizes, steps):
    for step in steps:
        draw = np.random.default_rng(step)
        ids = {name: draw.integers(0, n, EXAMPLES) for name, n in sizes.items()}
        keras_variants.train_on_batch(model, ids, draw.normal(size=(EXAMPLES, 1)))


def tables_of(sizes):
    draw = np.random.default_rng(0)
    return {
        name: draw.normal(size=(n, models.WIDTHS.get(name, 4))).astype(np.float32)
        for name, n in sizes.items()
    }


def values_of(model):
    """Everything that loading a file could change."""
    variables = keras_variants.all_variables(model)
    return [np.asarray(keras_variants.native(v)) for v in variables]


@pytest.mark.parametrize("saved", LAYOUTS[::3])
def test_tensorflows_checkpoint_holds_tables_for_any_layout(
    saved, tmp_path, monkeypatch
):
    layer = layer_of(saved, monkeypatch)
    layer.set_embedding_tables(models.initial_tables())
    path = tf.train.Checkpoint(layer=layer).save(tmp_path / "ckpt")
    for layout in LAYOUTS:
        for is_built in (True, False):
            other = layer_of(layout, monkeypatch, build=is_built)
            checkpoint = tf.train.Checkpoint(layer=other)
            status = checkpoint.restore(path)
            other.build()
            assert_same(other.get_embedding_tables(), models.initial_tables())
            if layout == saved:
                status.assert_consumed()
            # Its own checkpoints are as if it had never been restored.
            again = tf.train.list_variables(checkpoint.save(tmp_path / "again"))
            fresh = layer_of(layout, monkeypatch)
            expected = tf.train.Checkpoint(layer=fresh).save(tmp_path / "fresh")
            assert again == tf.train.list_variables(expected)


def test_tensorflows_checkpoint_of_other_tables_is_an_error(tmp_path, monkeypatch):
    saved = layer_of((2, "auto"), monkeypatch)
    path = tf.train.Checkpoint(layer=saved).save(tmp_path / "ckpt")
    other = layer_of((1, "auto"), monkeypatch, {**models.SIZES, "users": 51})
    before = other.get_embedding_tables()
    message = r"'users' of layer 'tables' has shape \(51, 6\).*users \[50, 6\]"
    with pytest.raises(ValueError, match=message):
        tf.train.Checkpoint(layer=other).restore(path)
    assert_same(other.get_embedding_tables(), before)


def test_tensorflows_checkpoint_goes_on_in_the_same_layout(tmp_path, monkeypatch):
    sizes, layout = models.SIZES, (2, "auto")

    def make():
        return model_of(layout, monkeypatch, tf.keras.optimizers.Adam(0.1), sizes)

    model = make()
    checkpoint = tf.train.Checkpoint(model=model, optimizer=model.optimizer)
    path = checkpoint.save(tmp_path / "ckpt")
    other = make()
    train(other, sizes, range(STEPS))  # so that it has another state
    checkpoint = tf.train.Checkpoint(model=other, optimizer=other.optimizer)
    checkpoint.restore(path).assert_consumed()
    for some in (model, other):
        train(some, sizes, range(STEPS, 2 * STEPS))
    assert_same(values_of(other), values_of(model))


@thinned(
    "optimizer, sizes, whole",
    [tfs.keras.AdamAsync, tf.keras.optimizers.Adam],
    ["models", "one_width"],
    ["model and optimizer", "optimizer"],
)
def test_tensorflows_checkpoint_of_another_layout_with_an_optimizer_is_an_error(
    whole, sizes, optimizer, tmp_path, monkeypatch
):
    sizes = {"models": models.SIZES, "one_width": {"a": 10, "b": 10}}[sizes]

    def objects_of(model):
        if whole == "optimizer":
            return {"optimizer": model.optimizer}
        return {"model": model, "optimizer": model.optimizer}

    if whole == "optimizer" and not keras_variants.IS_KERAS_3:
        pytest.skip("its optimizers do not lead to what they train")
    saved, other = (
        model_of(layout, monkeypatch, optimizer(), sizes) for layout in SAME_SHAPES
    )
    path = tf.train.Checkpoint(**objects_of(saved)).save(tmp_path / "ckpt")
    before = values_of(other)
    message = "'tables' lie in other parts than in the checkpoint: 2 parts of .*; there"
    if sizes is models.SIZES and not keras_variants.IS_KERAS_3:
        message = "incompatible tensor"
    with pytest.raises(ValueError, match=message) as raised:
        tf.train.Checkpoint(**objects_of(other)).restore(path)
    if message == "incompatible tensor":
        return
    assert "tfs.keras.Checkpoint" in str(raised.value)
    assert_same(values_of(other), before)


@pytest.mark.parametrize("shards", [2, 3])
def test_tensorflows_checkpoint_of_one_table_is_read_in_parts(shards, tmp_path):
    def checkpoint_of(layer):
        layer.build((None,))
        return tf.train.Checkpoint(layer=layer)

    plain = tf.keras.layers.Embedding(7, 4)
    path = checkpoint_of(plain).save(tmp_path / "plain")
    (expected,) = plain.get_weights()
    in_parts = tfs.keras.Embedding(7, 4, shards=shards)
    checkpoint_of(in_parts).restore(path)
    np.testing.assert_array_equal(in_parts.get_weights()[0], expected)
    path = checkpoint_of(in_parts).save(tmp_path / "parts")
    for other_shards in (2, 3):
        other = tfs.keras.Embedding(7, 4, shards=other_shards)
        checkpoint_of(other).restore(path)
        np.testing.assert_array_equal(other.get_weights()[0], expected)
    with pytest.raises(tf.errors.NotFoundError, match="embeddings"):
        checkpoint_of(tf.keras.layers.Embedding(7, 4)).restore(path)


def test_slots_of_keras_never_get_in_wrong_places_in_silence(tmp_path, monkeypatch):
    """Keras numbers slots, and the parts of two layouts may have the same shapes."""
    sizes, (other, layout) = {"a": 10, "b": 10}, SAME_SHAPES
    path = str(tmp_path / "model.weights.h5")

    def make(of_layout, optimizer):
        return model_of(of_layout, monkeypatch, optimizer, sizes)

    saved = make(layout, tf.keras.optimizers.Adam(0.1))
    saved.save_weights(path)
    message = "'tables' lie in other parts than in the file.*tfs.keras.Checkpoint"
    with pytest.raises(ValueError, match=message):
        make(other, tf.keras.optimizers.Adam(0.1)).load_weights(path)
    same = make(layout, tf.keras.optimizers.Adam(0.1))
    same.load_weights(path)
    assert_same(values_of(same), values_of(saved))
    # This works if no slot is numbered. The checkpoint of Keras 2 has slots.
    sgd = [tf.keras.optimizers.SGD] if keras_variants.IS_KERAS_3 else []
    for optimizer in (tfs.keras.AdamAsync, *sgd):
        saved = make(layout, optimizer(0.1))
        saved.save_weights(path)
        model = make(other, optimizer(0.1))
        model.load_weights(path)
        for name, table in saved.get_layer("tables").get_embedding_tables().items():
            found = model.get_layer("tables").get_embedding_tables()[name]
            np.testing.assert_array_equal(found, table)


@pytest.mark.parametrize(
    ("saved", "shards"), [("stock", 1), (1, 1), (1, 3), (3, 1), (3, 3)]
)
@pytest.mark.parametrize("others", [0, 1])
def test_slots_of_a_layer_of_one_table_are_loaded_in_any_layout(
    saved, others, shards, tmp_path
):
    """Keras' own layer has the contents of our former files; slots are AdamAsync's."""
    words = np.arange(14).reshape([2, 7])

    def make(shards):
        inputs = tf.keras.Input([7], dtype="int64")
        arguments = {} if shards == "stock" else {"shards": shards}
        plain, ours = tf.keras.layers.Embedding, tfs.keras.Embedding
        layer = (ours if arguments else plain)(14, 4, name="words", **arguments)
        table = tfs.keras.TableConfig("t", 14, 4, combiner=None)
        vectors = layer(inputs)
        for _ in range(others):
            feature = tfs.keras.FeatureConfig("f", table)
            vectors += tfs.keras.DistributedEmbedding(feature, name="other")(inputs)
        model = tf.keras.Model(inputs, tf.keras.layers.Flatten()(vectors))
        model.compile(tfs.keras.AdamAsync(0.1), loss="mse")
        return model

    def train(model, numbers):
        for target in numbers:
            targets = np.full([2, 28], target, np.float32)
            keras_variants.train_on_batch(model, words, targets)
        return model.predict_on_batch(words)

    model, other = make(saved), make(shards)
    train(model, [1, 2])
    model.save_weights(str(tmp_path / "saved.weights.h5"))
    train(other, [-1, 5, 3])  # so that it has another state
    other.load_weights(str(tmp_path / "saved.weights.h5"))
    np.testing.assert_allclose(train(other, [3, 4]), train(model, [3, 4]), rtol=1e-5)


OPTIMIZERS = {
    "adam_async": tfs.keras.AdamAsync,
    "rowwise_adagrad": tfs.keras.RowwiseAdagrad,
}


def two_tables(sizes, optimizer, ids=(1, 2)):
    """A model with tables of a size and width each, after a step."""
    tf.keras.utils.set_random_seed(len(str(sizes)))
    inputs = {name: tf.keras.Input((), dtype="int64", name=name) for name in sizes}
    tables = [tfs.keras.TableConfig(name, *size) for name, size in sizes.items()]
    layer = models.layer_of(*tables, name="tables")
    joined = tf.keras.layers.Concatenate()(list(layer(inputs).values()))
    model = tf.keras.Model(inputs, joined)
    batch = {name: np.array(ids) for name in sizes}
    if optimizer is None:
        model(batch, training=True)
    else:
        model.compile(optimizer, loss="mse")
        width = sum(width for _, width in sizes.values())
        model.train_on_batch(batch, np.ones([2, width]))
    return model, layer


def values_in(table):
    """The vectors of a table that is an array, or keys and vectors."""
    return np.concatenate([np.asarray(x, np.float32).ravel() for x in table])


@pytest.mark.parametrize("grows", [False, True])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_tables_that_a_file_does_not_fit_are_skipped_alone(
    grows, name, caplog, tmp_path
):
    if grows and name == "rowwise_adagrad" and not keras_variants.IS_KERAS_3:
        pytest.skip("this Keras loads slots first, and these have any width")
    size = tfs.keras.Dynamic(9) if grows else 9
    saved, layer = two_tables(
        dict.fromkeys("ab", (size, 4)), OPTIMIZERS[name](0.1), ids=(2, 3)
    )
    saved.save_weights(tmp_path / "model.weights.h5")
    model, other = two_tables({"a": (size, 4), "b": (size, 8)}, OPTIMIZERS[name](0.1))
    before = other.get_embedding_tables()
    caplog.clear()
    model.load_weights(tmp_path / "model.weights.h5", skip_mismatch=True)
    assert [x for x in caplog.messages if "is skipped, and stays" in x] == [
        x for x in caplog.messages if x.startswith("Table 'b' is skipped")
    ]
    assert len(caplog.messages) == 1
    there, after = layer.get_embedding_tables(), other.get_embedding_tables()
    np.testing.assert_array_equal(values_in(after["a"]), values_in(there["a"]))
    np.testing.assert_array_equal(values_in(after["b"]), values_in(before["b"]))
    there, after = {}, {}
    saved.optimizer.save_own_variables(there)
    model.optimizer.save_own_variables(after)
    of_a = [slot for slot in there if slot.endswith(".a")]
    assert of_a
    for slot in of_a:
        np.testing.assert_array_equal(after[slot], there[slot])


@pytest.mark.parametrize("grows", [False, True])
def test_tables_that_a_file_lacks_are_skipped_alone(grows, tmp_path):
    size = tfs.keras.Dynamic(9) if grows else 9
    saved, layer = two_tables({"a": (size, 4)}, None)
    saved.save_weights(tmp_path / "model.weights.h5")
    model, other = two_tables(dict.fromkeys("ab", (size, 4)), None)
    with pytest.raises(ValueError, match="Missing: 'b'"):
        model.load_weights(tmp_path / "model.weights.h5")
    model.load_weights(tmp_path / "model.weights.h5", skip_mismatch=True)
    np.testing.assert_array_equal(
        values_in(other.get_embedding_tables()["a"]),
        values_in(layer.get_embedding_tables()["a"]),
    )


def test_file_that_is_refused_changes_no_table():
    grows = tfs.keras.Dynamic(9)
    _, saved = two_tables({"a": (grows, 4), "b": (9, 4)}, "sgd")
    _, layer = two_tables({"a": (grows, 4), "b": (9, 8)}, "sgd")
    store, before = {}, layer.get_embedding_tables()
    saved.save_own_variables(store)
    with pytest.raises(ValueError, match="must have shape"):
        layer.load_own_variables(store)
    for name, table in layer.get_embedding_tables().items():
        np.testing.assert_array_equal(values_in(table), values_in(before[name]))
