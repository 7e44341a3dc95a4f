"""Tables that grow in files, checkpoints and exported models."""

import dynamic_models as models
import embedding_models
import keras_variants
import numpy as np
import process_threads
import programs
import pytest
import saved_models
import tensorflow as tf
from combinations import mostly_by_night
from same import assert_same
from waiting import in_thread, until

import tf_syncrep as tfs
from tf_syncrep.python.checkpoint.keyed_tables import KeyedTable
from tf_syncrep.python.keras.checkpoint import checkpoint as checkpoint_module
from tf_syncrep.python.keras.tables import setting
from tf_syncrep.python.keras.tables.fixed_tables import Tables
from tf_syncrep.python.keras.tables.growing.dynamic_tables import DynamicTables
from tf_syncrep.python.keras.tables.row_slots import row_slots

Dynamic = tfs.keras.Dynamic
OPTIMIZERS = {
    "adam": lambda: tf.keras.optimizers.Adam(0.05),
    "adagrad": lambda: tf.keras.optimizers.Adagrad(0.05),
    "adam_async": lambda: tfs.keras.AdamAsync(0.05),
    "rowwise_adagrad": lambda: tfs.keras.RowwiseAdagrad(0.05),
}


def functional(optimizer, size=None, width=4, strings=True):
    """A model with a layer of each kind, all parts of which have names in files."""
    size = size or Dynamic(100, unused_for=5)
    tf.keras.utils.set_random_seed(0)
    ids = tf.keras.Input((3,), dtype="int64", name="ids")
    word = tf.keras.Input((), dtype="string" if strings else "int64", name="word")
    table = tfs.keras.TableConfig("items", size, width)
    layer = tfs.keras.DistributedEmbedding(tfs.keras.FeatureConfig("f", table))
    words = tfs.keras.Embedding(size, width, name="words")
    both = tf.keras.layers.Concatenate()([layer(ids), words(word)])
    model = tf.keras.Model([ids, word], tf.keras.layers.Dense(1)(both))
    # A few steps take less than a trace of each model.
    model.compile(optimizer, loss="mse", run_eagerly=True)
    return model


def batches(seed, num=4, strings=True):
    draw = np.random.default_rng(seed)
    ids = draw.integers(-30, 30, (num * 8, 3)) * 10**12
    words = draw.integers(0, 20, num * 8)
    words = tf.constant([f"w{x}" for x in words]) if strings else tf.constant(words)
    targets = draw.normal(size=(num * 8, 1)).astype(np.float32)
    data = tf.data.Dataset.from_tensor_slices(((ids, words), targets))
    return data.batch(8)


def trained(optimizer, **options):
    model = functional(optimizer, **options)
    strings = options.get("strings", True)
    for seed in range(3):  # with upkeep: some keys have gone, and some rest
        tfs.keras.fit(model, batches(seed, strings=strings), verbose=0)
        tfs.keras.maintain_tables(model)
    return model


def test_rows_that_a_restart_restores_do_not_count_as_admitted(tmp_path):
    for epochs in (1, 2):
        model = functional("adam", Dynamic(100))
        history = tfs.keras.fit(
            model,
            batches(0),
            epochs=epochs,
            verbose=0,
            callbacks=[tfs.keras.Checkpoint(str(tmp_path))],
        ).history
    assert history["tables/admitted"] == [0]
    assert history["tables/rows"][0] > 0


def test_tables_of_one_program_are_maintained_and_restored_without_retracing(
    tmp_path, caplog
):
    for _ in range(6):
        model = functional("adam")  # of two tables, which evict
        tfs.keras.fit(
            model,
            batches(0),
            epochs=1,
            verbose=0,
            callbacks=[tfs.keras.Checkpoint(str(tmp_path))],
        )
        tfs.keras.maintain_tables(model)
        tfs.keras.Checkpoint(str(tmp_path), model=model).restore()
    assert "retracing" not in caplog.text


def assert_same_tables(model, other, tolerance=0.0):
    for layer, same in zip(model.layers, other.layers, strict=True):
        if hasattr(layer, "table_stats"):
            tables = [
                x.get_embedding_tables()["items"]
                if isinstance(x, tfs.keras.DistributedEmbedding)
                else x.get_embedding_table()
                for x in (layer, same)
            ]
            np.testing.assert_array_equal(tables[0].keys, tables[1].keys)
            np.testing.assert_allclose(
                tables[0].vectors, tables[1].vectors, tolerance, tolerance
            )


def assert_go_on_alike(model, other, tolerance=0.0):
    for seed in (7, 0, 8):
        for one in (model, other):
            tfs.keras.fit(one, batches(seed), verbose=0)
            tfs.keras.maintain_tables(one)
    assert_same_tables(model, other, tolerance)


@pytest.mark.parametrize(
    ("kind", "optimizer"),
    [
        ("keras", "adam"),
        ("keras", "rowwise_adagrad"),
        ("weights", "adagrad"),
        ("weights", "adam_async"),
        *(
            pytest.param(*both, marks=pytest.mark.slow)
            for both in (
                ("keras", "adagrad"),
                ("keras", "adam_async"),
                ("weights", "adam"),
                ("weights", "rowwise_adagrad"),
            )
        ),
    ],
)
def test_training_goes_on_from_a_file_of_keras(optimizer, kind, tmp_path):
    model = trained(OPTIMIZERS[optimizer]())
    stats = model.get_layer("words").table_stats()["words"]
    assert stats["evicted"] > 0
    if kind == "keras":
        path = str(tmp_path / "model.keras")
        model.save(path)
        other = tf.keras.models.load_model(path)
    else:
        path = str(tmp_path / "model.weights.h5")
        model.save_weights(path)
        other = functional(OPTIMIZERS[optimizer]())
        other.optimizer.build(other.trainable_variables)
        other.load_weights(path)
    assert_same_tables(model, other)
    assert_go_on_alike(model, other)


def test_file_of_another_width_or_room_is_refused(tmp_path):
    path = str(tmp_path / "model.weights.h5")
    model = trained(tfs.keras.AdamAsync())
    model.save_weights(path)
    for options, message in (
        ({"width": 8}, "must have shapes"),
        ({"size": Dynamic(5)}, "must be given at most 5 keys"),
    ):
        other = functional(tfs.keras.AdamAsync(), **options)
        with pytest.raises(ValueError, match=message):
            other.load_weights(path)
        assert other.get_layer("words").table_stats()["words"]["rows"] == 0


def test_numbered_slots_of_another_layout_are_refused(tmp_path):
    path = str(tmp_path / "model.weights.h5")
    trained(tf.keras.optimizers.Adam(0.05)).save_weights(path)
    other = functional(tf.keras.optimizers.Adam(0.05), Dynamic(99, unused_for=5))
    with pytest.raises(ValueError, match="that grow lie in other parts than in the"):
        other.load_weights(path)


def unnamed():
    """A model of layers that have their names from Keras."""
    ids = [tf.keras.Input((2,), dtype="int64") for _ in range(2)]
    vectors = [tfs.keras.Embedding(Dynamic(20), 2)(x) for x in ids]
    flat = tf.keras.layers.Flatten()(tf.keras.layers.Concatenate()(vectors))
    model = tf.keras.Model(ids, tf.keras.layers.Dense(1)(flat))
    model.compile(tf.keras.optimizers.Adam(0.1), loss="mse", run_eagerly=True)
    model.optimizer.build(model.trainable_variables)
    return model


@pytest.mark.parametrize("kind", saved_models.KINDS)
def test_files_fit_layers_to_which_keras_gives_other_names(kind, tmp_path):
    save, load = saved_models.save_and_load(kind, tmp_path)
    saved, other = unnamed(), np.array([[8, 9]])
    examples = [np.array([[3, 4]]), np.array([[4, 5]])], np.ones((1, 1))
    saved.train_on_batch(*examples)
    save(saved)
    loaded = unnamed()
    loaded.train_on_batch([other, other], examples[1])  # with rows that go
    load(loaded)
    if kind != "TensorFlow":  # which has the rows alone
        for model in saved, loaded:
            model.train_on_batch(*examples)
    for a, b in zip(saved.layers, loaded.layers, strict=True):
        if hasattr(a, "get_embedding_table"):
            assert a.name != b.name
            keys, vectors = b.get_embedding_table()
            np.testing.assert_array_equal(keys, a.get_embedding_table().keys)
            np.testing.assert_allclose(vectors, a.get_embedding_table().vectors)


def test_tensorflows_checkpoint_restores_rows_where_they_lay(tmp_path):
    model = trained(tf.keras.optimizers.Adam(0.05))
    path = tf.train.Checkpoint(model=model, optimizer=model.optimizer).save(
        str(tmp_path / "ckpt")
    )
    other = functional(tf.keras.optimizers.Adam(0.05))
    other.optimizer.build(other.trainable_variables)
    status = tf.train.Checkpoint(model=other, optimizer=other.optimizer).restore(path)
    status.assert_existing_objects_matched()
    assert_same_tables(model, other)
    assert_go_on_alike(model, other)
    smaller = functional(tf.keras.optimizers.Adam(0.05), Dynamic(99))
    with pytest.raises(ValueError, match="that grow must lie as they lie"):
        tf.train.Checkpoint(model=smaller).restore(path)


@pytest.mark.ci
@pytest.mark.parametrize(
    "optimizer", mostly_by_night(OPTIMIZERS, "adam", "rowwise_adagrad")
)
def test_checkpoints_of_changes_have_rows_that_went(optimizer, tmp_path):
    make = OPTIMIZERS[optimizer]
    model = functional(make())
    checkpoint = tfs.keras.Checkpoint(
        str(tmp_path / "run"), model=model, full_every=9, keep=9
    )
    evicted = 0
    for seed in range(5):
        tfs.keras.fit(model, batches(seed, num=2), verbose=0)
        tfs.keras.maintain_tables(model)
        stats = model.get_layer("words").table_stats()["words"]
        checkpoint.save(wait=True)
        assert checkpoint.saving.rows_written > 0
        other = functional(make())
        restored = tfs.keras.Checkpoint(str(tmp_path / "run"), model=other).restore()
        assert restored.path.endswith(f"ckpt-{seed + 1}")
        assert_same_tables(model, other)
        evicted = stats["evicted"]
    assert evicted > 0
    ids = np.arange(-30, 30).repeat(3).reshape([-1, 3]) * 10**12
    words = tf.constant([f"w{x % 20}" for x in range(60)])
    given = [tf.constant(ids), words]
    np.testing.assert_array_equal(model(given), other(given))
    assert_go_on_alike(model, other, models.tolerance(optimizer))


def test_checkpoint_of_another_width_is_refused_and_nothing_is_changed(tmp_path):
    model = trained(tfs.keras.AdamAsync())
    tfs.keras.Checkpoint(str(tmp_path / "run"), model=model).save(wait=True)
    for options, message in (
        ({"width": 8}, r"has rows of float32\[4\] in checkpoint"),
        ({"size": Dynamic(5)}, "where the model has room for 5: make the table"),
    ):
        other = functional(tfs.keras.AdamAsync(), **options)
        before = other.get_weights()
        with pytest.raises(ValueError, match=message):
            tfs.keras.Checkpoint(str(tmp_path / "run"), model=other).restore()
        assert_same(other.get_weights(), before)


SERVES = """
import sys
import numpy as np
import tensorflow as tf
assert "tf_syncrep" not in sys.modules
model = tf.saved_model.load(sys.argv[1])
serve = model.signatures[sys.argv[2]]
data = np.load(sys.argv[3])
arguments = {name: tf.constant(x) for name, x in data.items() if name != "expected"}
(served,) = serve(**arguments).values()
print(float(np.abs(served.numpy() - data["expected"]).max()))
"""


@pytest.mark.ci
@pytest.mark.parametrize(
    ("way", "strings"),
    [
        ("export", True),
        ("saved_model", False),
        pytest.param("export", False, marks=pytest.mark.slow),
        pytest.param("saved_model", True, marks=pytest.mark.slow),
    ],
)
def test_exported_model_serves_where_the_package_is_not(way, strings, tmp_path):
    model = trained(tfs.keras.AdamAsync(0.05), strings=strings)
    folder, signature = str(tmp_path / "served"), "serving_default"
    if way == "export":
        if not hasattr(model, "export"):
            pytest.skip("this Keras exports no models")
        model.export(folder)
    else:
        dtype = tf.string if strings else tf.int64
        served = tf.Module()
        with tfs.keras.for_serving(model):
            served.model = model
            served.serve = tf.function(
                lambda ids, word: {"score": model([ids, word])},
                input_signature=[
                    tf.TensorSpec([None, 3], tf.int64, name="ids"),
                    tf.TensorSpec([None], dtype, name="word"),
                ],
            )
            tf.saved_model.save(
                served, folder, {signature: served.serve.get_concrete_function()}
            )
    ids = np.array([[1, 2, -3], [4, 10**15, 5], [7, 7, 7]]) * 10**12
    word = np.array(["w1", "w2", "nobody"]) if strings else np.array([1, 2, 10**15])
    given = [tf.constant(ids), tf.constant(word)]
    np.savez(tmp_path / "data.npz", expected=model(given), ids=ids, word=word)
    arguments = folder, signature, str(tmp_path / "data.npz")
    assert float(programs.run_without_package(SERVES, *arguments)[-1]) < 1e-5
    if way == "export":
        shapes = dict(tf.train.list_variables(f"{folder}/variables/variables"))
        assert max(shape[0] for shape in shapes.values() if shape) < 100
    # The exported model is unchanged, while the model trains on.
    assert len(model.get_layer("words").variables) == 3
    tfs.keras.fit(model, batches(9, strings=strings), verbose=0)


class Subclassed(tf.keras.Model):
    """A model whose inputs have no dtype that Keras could know."""

    def __init__(self, layer):
        super().__init__()
        self.layer = layer

    def call(self, inputs, training=None):
        return self.layer(inputs, training=training)


def subclassed(kind):
    """A model with rows, and ids that float32 cannot name."""
    size = Dynamic(100)
    if kind == "embedding":
        layer = tfs.keras.Embedding(size, 4)
    else:
        table = tfs.keras.TableConfig("items", size, 4)
        layer = tfs.keras.DistributedEmbedding(tfs.keras.FeatureConfig("f", table))
    model = Subclassed(layer)
    ids = tf.constant([[2**40 + 1, 2**40 + 2], [5, 2**40 + 1]])
    model(ids, training=True)
    return model, ids


@pytest.mark.parametrize("kind", ["embedding", "distributed"])
@pytest.mark.parametrize("way", ["export", "archive", "saved_model", "wrapped"])
def test_subclassed_model_is_exported(kind, way, tmp_path):
    model, ids = subclassed(kind)
    signature = [tf.TensorSpec([None, 2], tf.int64)]
    if way in ("export", "archive") and not hasattr(model, "export"):
        pytest.skip("this Keras exports no models")
    if way == "export" and keras_variants.IS_KERAS_3:
        model.export(str(tmp_path), verbose=False, input_signature=signature)
    elif way == "export":
        model.export(str(tmp_path))
    elif way == "archive":
        with tfs.keras.for_serving(model):
            archive = tf.keras.export.ExportArchive()
            archive.track(model)
            archive.add_endpoint("serve", model.call, input_signature=signature)
            archive.write_out(str(tmp_path))
    else:
        if way == "wrapped":
            inputs = tf.keras.Input([2], dtype="int64")
            model = tf.keras.Model(inputs, model(inputs))
        serve = tf.function(lambda ids: {"y": model(ids)}, input_signature=signature)
        with tfs.keras.for_serving(model):
            tf.saved_model.save(model, str(tmp_path), signatures=serve)
    serve = tf.saved_model.load(str(tmp_path)).signatures["serving_default"]
    (name,) = serve.structured_input_signature[1]
    (served,) = serve(**{name: ids}).values()
    np.testing.assert_allclose(served, model(ids), rtol=1e-6)


needs_keras_3 = pytest.mark.skipif(
    not keras_variants.IS_KERAS_3, reason="this Keras knows the dtype of ids"
)


@needs_keras_3
def test_export_with_ids_that_keras_takes_for_floats_says_so(caplog, tmp_path):
    model, _ = subclassed("embedding")
    model.export(str(tmp_path), verbose=False)
    assert "traced as float32, which rounds large ids" in caplog.text
    serve = tf.saved_model.load(str(tmp_path)).signatures["serving_default"]
    (served,) = serve(tf.constant([[5.0, 6.0]])).values()
    np.testing.assert_allclose(served, model(tf.constant([[5, 6]])), rtol=1e-6)


@needs_keras_3
def test_saving_for_serving_without_copies_is_refused_in_a_sentence(tmp_path):
    model, _ = subclassed("embedding")
    with pytest.raises(ValueError, match=r"within `with tfs\.keras\.for_serving"):
        tf.saved_model.save(model, str(tmp_path))


@pytest.mark.parametrize("was_compiled", [False, True])
def test_what_a_model_predicts_for_serving_goes_with_the_copies(was_compiled):
    ids, targets = tf.constant([1, 2, 3]), tf.ones([3, 1])
    inner = tf.keras.Sequential(
        [tf.keras.Input((), dtype="int64"), tfs.keras.Embedding(Dynamic(9), 1)]
    )
    model = tf.keras.Sequential([tf.keras.Input((), dtype="int64"), inner])
    model.compile(tf.keras.optimizers.SGD(0.1), "mse")
    model.fit(ids, targets, verbose=0)
    train_function = model.train_function
    with tfs.keras.for_serving(model):
        for of in (model, inner):
            np.testing.assert_allclose(of.predict(ids, verbose=0), of(ids))
        if was_compiled:
            model.compile(tf.keras.optimizers.SGD(1.0), "mse")
        model.evaluate(ids, targets, verbose=0)
    assert model.train_function is (None if was_compiled else train_function)
    before = float(tf.reduce_mean((model(ids) - targets) ** 2))
    model.fit(ids, targets, epochs=9, verbose=0)
    loss = float(tf.reduce_mean((model(ids) - targets) ** 2))
    assert loss < before / 2
    np.testing.assert_allclose(model.evaluate(ids, targets, verbose=0), loss, rtol=1e-5)
    for of in (model, inner):
        np.testing.assert_allclose(of.predict(ids, verbose=0), of(ids))


def test_empty_table_is_exported(tmp_path):
    layer = tfs.keras.Embedding(Dynamic(9), 4)
    model = tf.keras.Sequential([tf.keras.layers.Input((), dtype="int64"), layer])
    with tfs.keras.for_serving(model):
        np.testing.assert_array_equal(model(tf.constant([0, 5])), np.zeros([2, 4]))
    layer(tf.constant([5]), training=True)
    assert np.any(model(tf.constant([5])) != 0)


def one_table(optimizer, max_rows=20):
    """A model of one table, and its layer."""
    layer = tfs.keras.Embedding(Dynamic(max_rows), 4, name="words")
    model = tf.keras.Sequential([tf.keras.Input((), dtype="int64"), layer])
    model.compile(optimizer, jit_compile=False)
    optimizer.build(model.trainable_variables)
    return model, layer


def step(model, keys, factor):
    with tf.GradientTape() as tape:
        loss = factor * tf.reduce_sum(model(tf.constant(keys), training=True))
    (gradient,) = tape.gradient(loss, model.trainable_variables)
    model.optimizer.apply_gradients([(gradient, model.trainable_variables[0])])


def load_weights(model, other, path):
    other.save_weights(path)
    model.load_weights(path)


def load_tables(model, other, path):
    del path
    model.layers[0].set_embedding_table(other.layers[0].get_embedding_table())


def load_layer(model, other, path):
    inference = tf.keras.Sequential(
        [tf.keras.Input((), dtype="int64"), other.layers[0]]
    )
    load_weights(model, inference, path)


@pytest.mark.parametrize("load", [load_weights, load_tables, load_layer])
@pytest.mark.parametrize("name", ["adam_async", "rowwise_adagrad", "accumulation"])
def test_keys_after_those_of_a_file_begin_with_initial_slots(name, load, tmp_path):
    make = {
        **OPTIMIZERS,
        "accumulation": lambda: tfs.keras.GradientAccumulation(
            tfs.keras.AdamAsync(0.1), 1
        ),
    }[name]
    other, _ = one_table(make())
    step(other, [7], 1.0)
    model, layer = one_table(make())
    step(model, [1, 2, 3], 100.0)
    load(model, other, str(tmp_path / "x.weights.h5"))
    new = [50, 51, 52, 53]
    model(tf.constant(new), training=True)
    keys, _, _, rows = layer._growing.rows_of("words")
    assert keys.tolist() == [7, *new]
    (slots,) = row_slots([model.optimizer], layer._growing).values()
    assert slots
    for slot in slots:
        begins = np.full_like(slot.variable, slot.initial)
        np.testing.assert_array_equal(
            slot.variable.numpy()[rows[1:]], begins[1:5], slot.kind
        )
        # The key of the file has its slots if these are in the file, too.
        has_begun = np.array_equal(slot.variable.numpy()[rows[:1]], begins[:1])
        assert has_begun == (load is not load_weights), slot.kind


@pytest.mark.skipif(not keras_variants.IS_KERAS_3, reason="Keras 2 has no such sums")
def test_sums_of_gradients_are_in_files_by_key(tmp_path):
    def make():
        return one_table(tfs.keras.AdamAsync(0.1, gradient_accumulation_steps=2))

    model, layer = make()
    step(model, [1, 2, 2], 10.0)
    model.save_weights(str(tmp_path / "x.weights.h5"))
    other, same = make()
    other(tf.constant([2]), training=True)  # so its rows have another order
    other.load_weights(str(tmp_path / "x.weights.h5"))
    for x in (model, other):
        step(x, [2], 1.0)
    assert_same(
        layer.get_embedding_table(),
        same.get_embedding_table(),
    )
    assert other.optimizer.iterations.numpy() == 1


def test_model_that_has_trained_restores_a_checkpoint_in_the_memory_of_its_rows(
    tmp_path,
):
    model, layer = one_table(tfs.keras.AdamAsync(0.05), 10_000_000)
    checkpoint = tfs.keras.Checkpoint(str(tmp_path / "run"), model=model)
    step(model, [1, 2], 1.0)
    checkpoint.save(wait=True)
    step(model, [2, 3], 1.0)
    before = process_threads.resident()
    checkpoint.restore()
    step(model, [3, 4], 1.0)
    assert layer.get_embedding_table().keys.tolist() == [1, 2, 3, 4]
    # All rows of the table and its two slots would take 480 MB.
    assert process_threads.resident() - before < 120e6


def test_weights_of_a_table_that_was_set_are_saved_in_the_memory_of_its_rows(tmp_path):
    model, layer = one_table(tfs.keras.AdamAsync(0.05), 30_000_000)
    step(model, [1, 2], 1.0)
    layer.set_embedding_table(([2, 3], np.ones([2, 4])))
    path = tmp_path / "m.weights.h5"
    # The uses of all rows would take 240 MB.
    assert process_threads.most_resident(lambda: model.save_weights(path)) < 120e6


class Sharing(tf.keras.Model):
    """A model whose table Keras loads before or after the optimizer, by its name."""

    def __init__(self, layer, attribute, optimizer):
        super().__init__()
        setattr(self, attribute, layer)
        self.attribute = attribute
        self(tf.constant([0]))
        self.compile(optimizer, jit_compile=False)
        optimizer.build(self.trainable_variables)

    @property
    def shared(self):
        return getattr(self, self.attribute)

    def call(self, ids, training=False):
        return self.shared(ids, training=training)


@pytest.mark.parametrize("attribute", ["a_table", "z_table"])
@pytest.mark.parametrize("name", ["adam", "adagrad", "adam_async"])
def test_loaded_rows_have_new_slots_in_another_model_that_shares_them(
    name, attribute, tmp_path
):
    def sharing(*optimizers):
        layer = tfs.keras.Embedding(Dynamic(20), 4, name="words")
        return [Sharing(layer, attribute, optimizer) for optimizer in optimizers]

    def slots_of(model):
        """The slots of the rows in use, by key, and their initial values."""
        tables = model.shared._growing
        rows = tables.rows_of("words").rows
        (slots,) = row_slots([model.optimizer], tables).values()
        return {x.kind: (x.variable.numpy()[rows], x.initial) for x in slots}

    make = OPTIMIZERS[name]
    path = str(tmp_path / "x.weights.h5")
    (saved,) = sharing(make())
    step(saved, [7, 8], 1.0)
    saved.save_weights(path)
    model, other = sharing(make(), tf.keras.optimizers.Adagrad(0.05))
    for one in (model, other):
        step(one, [1, 2, 3], 100.0)
    model.load_weights(path)
    for kind, (values, initial) in slots_of(other).items():
        np.testing.assert_array_equal(values, np.full_like(values, initial), kind)
    for one in (saved, model):
        step(one, [8], 1.0)
    assert_same(
        saved.shared.get_embedding_table(),
        model.shared.get_embedding_table(),
    )
    for kind, (values, initial) in slots_of(saved).items():
        assert np.any(values != initial), kind
        np.testing.assert_array_equal(values, slots_of(model)[kind][0], kind)


def test_weights_are_those_of_rows_in_use_and_are_set_by_key():
    first = trained(tfs.keras.AdamAsync(0.05))
    second = trained(tfs.keras.AdamAsync(0.05), size=Dynamic(300))
    weights = first.get_weights()
    assert sum(x.nbytes for x in weights) < 5000
    words = second.get_layer("words")
    with pytest.raises(ValueError, match=r"weights must have shapes .* Received: "):
        second.set_weights([x[:-1] if x.ndim == 2 else x for x in weights])
    with pytest.raises(ValueError, match="must differ"):
        second.set_weights([np.full_like(x, 7) if x.ndim == 1 else x for x in weights])
    words.set_embedding_table(([1, 2], np.ones([2, 4])))
    second.set_weights(weights)
    assert_same(second.get_weights(), weights)
    assert_same(
        words.get_embedding_table(),
        first.get_layer("words").get_embedding_table(),
    )


@pytest.mark.parametrize("call", ["save", "save_weights", "load_weights"])
@pytest.mark.parametrize("end", [".h5", ".hdf5"])
def test_older_files_of_keras_are_refused_in_a_sentence(call, end, tmp_path):
    model = trained(tfs.keras.AdamAsync(0.05))
    path = tmp_path / f"model{end}"
    message = rf"`{call}` .* `\.weights\.h5` .* `\.keras` .*Checkpoint.*model\{end}'"
    with pytest.raises(ValueError, match=message):
        getattr(model, call)(path)
    with pytest.raises(ValueError, match="another file than Keras' older HDF5 ones"):
        tf.keras.models.save_model(model, path)
    assert not path.exists()


def test_older_files_of_keras_have_models_without_tables_that_grow(tmp_path):
    model = keras_variants.small_model()
    for load, path in ((model.load_weights, "m.h5"), (model.load_weights, "m.hdf5")):
        model.save(tmp_path / path)
        load(tmp_path / path)


@pytest.mark.parametrize(
    ("uses", "message"),
    [
        ([[1.5, 1.0], [2.0, 1.0]], r"integers of shape \[2, 2\]. Received: .* float64"),
        ([[1, 1], [-1, 1]], r"a last use of at least 0 .* Received: \[-1, 1\]"),
        ([[1, 1], [1, 0]], r"a count of at least 1, .* Received: \[1, 0\]"),
        ([[1 << 31, 1], [1, 1]], r"below 2\^31. Received: \[2147483648, 1\]"),
    ],
)
def test_bad_uses_are_refused_and_nothing_is_changed(uses, message):
    tables = [tfs.keras.TableConfig(name, Dynamic(9), 4) for name in "ab"]
    layer = embedding_models.layer_of(*tables)
    layer({name: tf.constant([1, 2]) for name in "ab"}, training=True)
    before = layer.get_weights()
    after = [x + 1 if x.dtype == np.float32 else x for x in before]
    (last,) = [i for i, x in enumerate(after) if x.dtype == np.int32][1:]
    after[last] = np.array(uses)
    with pytest.raises(ValueError, match=message):
        layer.set_weights(after)
    assert_same(layer.get_weights(), before)
    # Nor is a file that has them.
    store = {}
    layer.save_own_variables(store)
    (key,) = (x for x in store if x.endswith("b%uses"))
    store[key] = np.array(uses)
    with pytest.raises(ValueError, match=message):
        layer.load_own_variables(store)
    assert_same(layer.get_weights(), before)


ROWS = 10_000


def of_both_kinds(make=tfs.keras.AdamAsync):
    """A model with a table that grows and one of fixed size, both of many rows."""
    sizes = {"grows": Dynamic(2 * ROWS), "fixed": ROWS}
    tables = [tfs.keras.TableConfig(name, size, 4) for name, size in sizes.items()]
    layer = embedding_models.layer_of(*tables)
    inputs = {name: tf.keras.Input((), dtype="int64", name=name) for name in sizes}
    outputs = tf.keras.layers.Add()(list(layer(inputs).values()))
    model = tf.keras.Model(inputs, outputs)
    model.compile(make(), jit_compile=False)
    model.optimizer.build(model.trainable_variables)
    return model, layer


def all_set(layer, first_key, value):
    """Sets tables to a value for each key, and returns what they are then."""
    keys = np.arange(first_key, first_key + ROWS)
    vectors = np.full([ROWS, 4], value, np.float32)
    layer.set_embedding_tables({"fixed": vectors, "grows": (keys, vectors)})
    return [layer.get_embedding_tables()[name] for name in ("fixed", "grows")]


# The second one has no slots, and some keys lose their rows.
@pytest.mark.ci
@pytest.mark.parametrize(
    ("make", "first_key"), [(tfs.keras.AdamAsync, 0), (tfs.keras.SGD, ROWS // 2)]
)
def test_tables_set_while_a_checkpoint_is_written_are_in_the_next_one(
    make, first_key, tmp_path
):
    model, layer = of_both_kinds(make)
    before = all_set(layer, 0, 1.0)
    # From its first rows on, the one without slots takes another second.
    checkpoint = tfs.keras.Checkpoint(
        str(tmp_path), model=model, max_bytes_per_sec=3e5, max_kept_bytes=1 << 28
    )
    saved = in_thread(checkpoint.save)
    until(lambda: checkpoint.saving and checkpoint.saving.rows_written, poll_secs=0.001)
    assert not checkpoint.saving.is_over
    after = all_set(layer, first_key, 2.0)
    saved.result(60)
    assert checkpoint.saving.error is None
    for tables in (before, after):
        other, same = of_both_kinds(make)
        tfs.keras.Checkpoint(str(tmp_path), model=other).restore()
        restored = [same.get_embedding_tables()[name] for name in ("fixed", "grows")]
        assert_same(tables, restored)
        tfs.keras.Checkpoint(str(tmp_path), model=model).save()


class NotedLock:
    """A lock that notes whether those who ask for it get it at once."""

    def __init__(self, lock):
        self.lock, self.gets = lock, []

    def __enter__(self):
        self.gets.append(self.lock.acquire(blocking=False))
        if not self.gets[-1]:
            self.lock.acquire()

    def __exit__(self, *exc_info):
        self.lock.release()


@pytest.mark.parametrize("way", ["set", "weights file", "checkpoint"])
def test_checkpoint_begins_when_tables_are_set_that_are_being_set(
    way, tmp_path, monkeypatch
):
    model, layer = of_both_kinds()
    checkpoint = tfs.keras.Checkpoint(str(tmp_path / "run"), model=model)
    source, from_layer = of_both_kinds()
    tables = all_set(from_layer, 0, 1.0)
    source.save_weights(str(tmp_path / "x.weights.h5"))
    of_source = tfs.keras.Checkpoint(str(tmp_path / "source"), model=source)
    of_source.save(wait=True)
    # What of the second kind of tables is called, after those of the first.
    kind, name, load = {
        "set": (DynamicTables, "restore", lambda: all_set(layer, 0, 1.0)),
        "weights file": (
            *(Tables, "write"),
            lambda: model.load_weights(str(tmp_path / "x.weights.h5")),
        ),
        "checkpoint": (
            *(KeyedTable, "restore"),
            tfs.keras.Checkpoint(str(tmp_path / "source"), model=model).restore,
        ),
    }[way]
    write, threads, lock = getattr(kind, name), [], NotedLock(setting.being_set)
    # Those that set tables have the lock itself; checkpoints ask for this one.
    monkeypatch.setattr(checkpoint_module, "being_set", lock)

    def write_beside_a_checkpoint(*args):
        if not threads:
            threads.append(in_thread(checkpoint.save))
            until(lambda: False in lock.gets)
        write(*args)

    monkeypatch.setattr(kind, name, write_beside_a_checkpoint)
    load()
    threads[0].result(60)
    other, same = of_both_kinds()
    tfs.keras.Checkpoint(str(tmp_path / "run"), model=other).restore()
    restored = [same.get_embedding_tables()[name] for name in ("fixed", "grows")]
    assert_same(tables, restored)
