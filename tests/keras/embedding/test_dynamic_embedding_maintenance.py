"""Rows of tables that grow that are taken back, and begin anew."""

import importlib.util
import itertools
import threading

import dynamic_models as models
import embedding_models
import keras_variants
import numpy as np
import pytest
import saved_models
import tensorflow as tf
from all_optimizers import KERAS_OPTIMIZERS, LionOfMine
from combinations import thinned
from same import assert_same
from waiting import in_thread

import tf_syncrep as tfs
from tf_syncrep.python.keras import compat
from tf_syncrep.python.keras.tables.growing import maintenance
from tf_syncrep.python.keras.tables.growing.dynamic_tables import DynamicTables
from tf_syncrep.python.keras.tables.growing.maintenance import Maintenance
from tf_syncrep.python.keras.tables.row_slots import row_slots
from tf_syncrep.python.keras.tables.stacked_tables import tables_with

Dynamic = tfs.keras.Dynamic
UNFIT = [x for x in ("Adafactor", "ScheduleFreeAdamW") if x in KERAS_OPTIMIZERS]
OPTIMIZERS = {
    # All of Keras, as they are found, with slots by default; some of them again below.
    **{
        name: lambda kind=kind: kind(0.1)
        for name, kind in KERAS_OPTIMIZERS.items()
        if name not in [*UNFIT, "SGD"]
    },
    "sgd": lambda: tf.keras.optimizers.SGD(0.1, momentum=0.9),
    "adam": lambda: tf.keras.optimizers.Adam(0.1, amsgrad=True),
    "rmsprop": lambda: tf.keras.optimizers.RMSprop(0.1, momentum=0.9, centered=True),
    "ftrl": lambda: tf.keras.optimizers.Ftrl(0.1, initial_accumulator_value=0.5),
    "scheduled": lambda: tf.keras.optimizers.Adam(
        tf.keras.optimizers.schedules.ExponentialDecay(0.1, 1, 0.5)
    ),
    "adam_async": lambda: tfs.keras.AdamAsync(0.1),
    "lazy_adagrad": lambda: tfs.keras.Adagrad(0.1),
    "rowwise_adagrad": lambda: tfs.keras.RowwiseAdagrad(
        0.1, initial_accumulator_value=0.5
    ),
    "lazy_ftrl": lambda: tfs.keras.FTRL(0.1),
    "lazy_momentum": lambda: tfs.keras.SGD(0.1, momentum=0.5),
    "lazy_nesterov": lambda: tfs.keras.SGD(0.1, momentum=0.5, nesterov=True),
    "lion_of_mine": lambda: LionOfMine(0.1),
    "rmsprop_async": lambda: tfs.keras.AdamAsync(0.1, apply_sparse_rmsprop=True),
    "sync": lambda: tfs.keras.SyncReplicas(tf.keras.optimizers.Adagrad(0.1), 1),
    "tables": lambda: tfs.keras.TableOptimizers(tfs.keras.AdamAsync(0.1)),
}
if hasattr(tf.keras.optimizers, "MultiOptimizer"):
    OPTIMIZERS["multi"] = lambda: tf.keras.optimizers.MultiOptimizer(
        tf.keras.optimizers.OptimizerMap(
            tf.keras.optimizers.Adam(0.1), {".*dense.*": KERAS_OPTIMIZERS[UNFIT[0]]()}
        )
    )


def small(optimizer, size):
    table = tfs.keras.TableConfig("t", size, 4, combiner=None)
    layer = tfs.keras.DistributedEmbedding(tfs.keras.FeatureConfig("f", table))
    model = tf.keras.Sequential(
        [tf.keras.layers.Input((), dtype="int64"), layer, tf.keras.layers.Dense(1)]
    )
    model.compile(optimizer, loss="mse")
    return model, layer


def steps(model, ids, number=1):
    ids = np.asarray(ids)
    for _ in range(number):
        model.train_on_batch(ids, np.ones([len(ids), 1], np.float32))


def keys_of(layer):
    return layer.get_embedding_tables()["t"].keys.tolist()


def test_row_of_a_key_that_went_rests_and_begins_anew():
    model, layer = small(tfs.keras.AdamAsync(0.1), Dynamic(3, unused_for=5))
    steps(model, [1, 2, 3], 3)
    tfs.keras.maintain_tables(model, step=3)
    steps(model, [1])
    tfs.keras.maintain_tables(model, step=8)  # none goes: unused for 5 steps
    assert keys_of(layer) == [1, 2, 3]
    tfs.keras.maintain_tables(model, step=9)  # 2 and 3 go, and rest
    assert keys_of(layer) == [1]
    steps(model, [1, 4])  # no row is free yet
    assert keys_of(layer) == [1]
    tfs.keras.maintain_tables(model, step=10)
    _, other = small("sgd", Dynamic(3))
    for each in (layer, other):
        each(tf.constant([2]), training=True)
    assert keys_of(layer) == [1, 2]
    tables = [x.get_embedding_tables()["t"] for x in (layer, other)]
    assert_same(tables[0].vectors[1:], tables[1].vectors)


def test_slots_of_a_table_with_one_row_are_known_from_others():
    model, layer = small(tfs.keras.AdamAsync(0.1), Dynamic(1, unused_for=1))
    steps(model, [1], 2)
    slots = model.optimizer.slots(layer.trainable_variables[0])
    before = {kind: slot.numpy() for kind, slot in slots.items()}
    assert {kind for kind, slot in before.items() if slot.shape == (1, 4)} == {"m", "v"}
    for step in (1, 3, 4):  # The row goes, and is free.
        tfs.keras.maintain_tables(model, step=step)
    assert not layer.get_embedding_tables()["t"].keys.size
    for kind, slot in slots.items():
        expected = 0 if kind in ("m", "v") else before[kind]
        np.testing.assert_array_equal(slot.numpy(), expected, kind)


def test_table_with_one_row_that_is_rounded_stochastically_is_maintained():
    optimizer = tfs.keras.AdamAsync(0.1, stochastic_rounding=True)
    layer = tfs.keras.Embedding(Dynamic(1, unused_for=1), 2, dtype="bfloat16")
    model = tf.keras.Sequential([tf.keras.layers.Input((), dtype="int64"), layer])
    model.compile(optimizer, loss="mse")
    optimizer.build(model.trainable_variables)
    layer(tf.constant([5]), training=True)
    tfs.keras.maintain_tables(model, step=1)
    tfs.keras.maintain_tables(model, step=3)
    assert layer.table_stats()[layer.name]["evicted"] == 1


def test_gradient_of_a_row_that_went_is_dropped_and_counted():
    model, layer = small(tfs.keras.AdamAsync(0.5), Dynamic(2, unused_for=1))
    steps(model, [1, 2])
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(layer(tf.constant([1, 2]), training=True))
    variable = compat.native(layer.trainable_variables[0])
    tfs.keras.maintain_tables(model, step=2)
    tfs.keras.maintain_tables(model, step=4)  # both go, ...
    tfs.keras.maintain_tables(model, step=6)
    layer(tf.constant([3, 4]), training=True)  # ... and other keys have their rows
    before = layer.get_embedding_tables()["t"]
    assert before.keys.tolist() == [3, 4]
    gradient = tape.gradient(loss, variable)  # it is computed where the rows are
    model.optimizer.apply_gradients([(gradient, layer.trainable_variables[0])])
    np.testing.assert_array_equal(
        layer.get_embedding_tables()["t"].vectors, before.vectors
    )
    assert layer.table_stats()["t"]["dropped"] == 2


@pytest.mark.parametrize("ids", [[1, 2, 3], [1, 2, 3, 4], [1, 3, 4]])
def test_rows_of_a_table_that_is_set_go_when_they_are_unused(ids):
    tables = [tfs.keras.TableConfig(x, Dynamic(9, unused_for=20), 4) for x in "st"]
    layer = embedding_models.layer_of(*tables, table_stacking="auto")
    find = lambda **keys: layer(  # noqa: E731
        {x: tf.constant(keys.get(x, []), tf.int64) for x in "st"}, training=True
    )
    find(s=[9], t=[1, 2, 3])
    tfs.keras.maintain_tables(layer, step=100)
    find(t=[1, 2])
    find(t=[1])
    tfs.keras.maintain_tables(layer, step=110)
    layer.set_embedding_tables({"t": (ids, np.ones([len(ids), 4]))})
    uses = dict(zip(ids, layer._growing.rows_of("t").uses.tolist(), strict=True))
    now = [111, 1]
    known = {1: [110, 3], 2: [110, 2], 3: [100, 1], 4: now}
    assert uses == {key: known[key] for key in ids}
    for step, unused in ((115, []), (121, [3]), (136, [1, 2, 3, 4])):
        tfs.keras.maintain_tables(layer, step=step)
        keys = layer.get_embedding_tables()["t"].keys
        np.testing.assert_array_equal(keys, np.setdiff1d(ids, unused))


def test_table_is_set_while_rows_that_went_rest():
    model, layer = small(tfs.keras.AdamAsync(0.1), Dynamic(4, unused_for=5))
    steps(model, [1, 2, 3, 4])
    steps(model, [1])
    tfs.keras.maintain_tables(model, step=2)
    steps(model, [1])
    tfs.keras.maintain_tables(model, step=8)
    assert layer.get_embedding_tables()["t"].keys.tolist() == [1]
    slots = model.optimizer.slots(layer.trainable_variables[0])
    (own,) = layer._growing.rows_of("t").rows
    before = slots["m"].numpy()[own]
    layer.set_embedding_tables({"t": ([5, 1, 6, 7], np.ones([4, 4]))})
    assert layer.get_embedding_tables()["t"].keys.tolist() == [1, 5, 6, 7]
    assert layer._growing.rows_of("t").rows[0] == own
    assert np.all(before)
    np.testing.assert_array_equal(slots["m"].numpy()[own], before)
    assert not np.any(np.delete(slots["m"].numpy(), own, axis=0))
    tfs.keras.maintain_tables(model, step=8)
    assert layer.table_stats()["t"]["rows"] == 4


@pytest.mark.parametrize(
    ("evict", "stays"),
    [
        (tfs.keras.LeastRecent(), range(190, 200)),
        (tfs.keras.LeastFrequent(), range(10)),
    ],
)
def test_nearly_full_table_evicts_who_is_to_go(evict, stays):
    model, layer = small(tfs.keras.AdamAsync(), Dynamic(200, evict=evict))
    for step, ids in enumerate((range(10), range(10), range(200))):
        steps(model, ids)
        tfs.keras.maintain_tables(model, step=step)
    if isinstance(evict, tfs.keras.LeastRecent):
        steps(model, range(190, 200))
    # The first maintenance of a full table was the last one.
    keys = layer.get_embedding_tables()["t"].keys
    assert len(keys) == 180
    assert set(stays) <= set(keys.tolist())
    assert layer.table_stats()["t"]["evicted"] == 20


def test_fit_maintains_and_says_what_it_counts(caplog):
    model = models.growing(tfs.keras.AdamAsync(0.05), unused_for=20)
    first, second = (models.dataset([seed] * 60, 12, with_keys=True) for seed in (0, 1))
    tfs.keras.fit(model, first, verbose=0)
    history = tfs.keras.fit(model, second, epochs=2, verbose=0)
    assert "is full" not in caplog.text
    keys = models.as_keys(models.batch(12, 1)[0])
    used = np.unique(np.concatenate([keys["watched"].ravel(), keys["candidate"]]))
    np.testing.assert_array_equal(model.tables()["items"].keys, used)
    of_tables = model.embedding.table_stats()
    assert of_tables["items"]["rows"] == len(used)
    names = ("rows", "evicted", "admitted")
    stats = {x: sum(table[x] for table in of_tables.values()) for x in names}
    assert history.history["tables/rows"][-1] == stats["rows"]
    assert history.history["tables/without_row"] == [0, 0]
    assert stats["evicted"] == stats["admitted"] - stats["rows"] > 0
    # They were admitted in both trainings, and evicted in the second one alone.
    assert sum(history.history["tables/evicted"]) == stats["evicted"]
    assert 0 < sum(history.history["tables/admitted"]) < stats["admitted"]


def _fit_two_tables_of_one_name(**options):
    """The history, in which one table has 20 rows, and the other 3."""
    layers = [
        tfs.keras.DistributedEmbedding(
            tfs.keras.FeatureConfig("f", tfs.keras.TableConfig("items", size, 4))
        )
        for size in (tfs.keras.Dynamic(50), tfs.keras.Dynamic(50))
    ]
    many, few = (tf.keras.layers.Input((), dtype="int64") for _ in layers)
    both = tf.keras.layers.concatenate([layers[0](many), layers[1](few)])
    model = tf.keras.Model([many, few], tf.keras.layers.Dense(1)(both))
    model.compile(tfs.keras.AdamAsync(0.1), loss="mse")
    ids = np.arange(20, dtype=np.int64)
    x, y = [ids, ids % 3], np.ones([20, 1], np.float32)
    options |= {"batch_size": 20, "epochs": 2, "verbose": 0}
    return tfs.keras.fit(model, x, y, **options).history


def test_logs_have_sums_over_all_tables():
    history = _fit_two_tables_of_one_name()
    assert {name: x for name, x in history.items() if name != "loss"} == {
        "tables/rows": [23, 23],
        "tables/without_row": [0, 0],
        "tables/admitted": [23, 0],
        "tables/evicted": [0, 0],
    }


@pytest.mark.skipif(
    not importlib.util.find_spec("tensorboard"), reason="needs tensorboard"
)
def test_tensorboards_callback_gets_what_fit_counts_in_each_table(tmp_path):
    board = tf.keras.callbacks.TensorBoard(str(tmp_path))
    _fit_two_tables_of_one_name(callbacks=[board])
    found = {}
    for path in tmp_path.glob("tables/events*"):
        for event in tf.compat.v1.train.summary_iterator(str(path)):
            for value in event.summary.value:
                numbers = found.setdefault(value.tag, [])
                numbers.append(float(tf.make_ndarray(value.tensor)))
    assert len(found) == 8
    # Two layers have a table of this name.
    assert found["tables/rows/items"] == [20, 20]
    assert found["tables/rows/items#2"] == [3, 3]
    assert found["tables/admitted/items#2"] == [3, 0]


def test_rows_of_weights_that_early_stopping_has_restored_stay():
    model, layer = small(tfs.keras.SGD(0.001), Dynamic(60, unused_for=20))
    stop = tf.keras.callbacks.EarlyStopping(
        "worse", patience=5, mode="min", restore_best_weights=True
    )
    worse = tf.keras.callbacks.LambdaCallback(
        on_epoch_end=lambda epoch, logs: logs.update(worse=float(epoch))
    )
    data = tf.data.Dataset.range(50).map(lambda x: (x, 1.0)).batch(5)
    tfs.keras.fit(model, data, epochs=9, verbose=0, callbacks=[worse, stop])
    assert int(model.optimizer.iterations) == 60
    tfs.keras.fit(model, data.take(1), verbose=0)
    assert layer.table_stats()["t"]["rows"] == 50


def test_fit_says_that_a_table_was_full_although_it_evicts(caplog):
    told, at_ends = [], []

    def note(*_):
        told[:] = [x for x in caplog.messages if "full" in x]
        at_ends.append(len(told))

    def fit(model, **options):
        data = tf.data.Dataset.range(500).map(lambda x: (x, 1.0)).batch(2)
        watch = tf.keras.callbacks.LambdaCallback(on_epoch_end=note)
        tfs.keras.fit(model, data, verbose=0, callbacks=[watch], **options)
        note()

    size = Dynamic(20, evict=tfs.keras.LeastRecent())
    # The first maintenance comes after 100 steps, and has evicted two rows.
    fit(small(tfs.keras.SGD(0.1), size)[0], epochs=3, steps_per_epoch=75)
    assert at_ends == [0, 1, 1, 1]
    assert told == [
        "Table 't', or a part of it, was full, and new keys got no row, 180 times "
        "so far; 18 of its 20 rows are in use now. Give it a larger max_rows: "
        "evict= makes room only every 100 steps."
    ]
    # Here it does not come.
    caplog.clear()
    at_ends.clear()
    fit(small(tfs.keras.SGD(0.1), size)[0], epochs=2, steps_per_epoch=15)
    assert at_ends == [0, 0, 1]
    assert "40 times so far; 20 of its 20 rows are in use" in told[0]
    caplog.clear()
    fit(small(tfs.keras.SGD(0.1), size)[0], steps_per_epoch=10)
    assert not told


def test_memory_is_that_of_rows_in_use_and_of_all_their_slots():
    model, layer = small(tfs.keras.AdamAsync(0.5), Dynamic(1000, unused_for=1))
    row = 4 * 4  # of floats
    stats = layer.table_stats()["t"]
    assert (stats["vector_bytes"], stats["slot_bytes"]) == (0, 0)
    steps(model, [1, 2, 3])
    stats = layer.table_stats()["t"]
    # A key and its uses take 8 bytes each; there are two moments.
    assert stats["vector_bytes"] == 3 * (row + 8 + 8)
    assert stats["slot_bytes"] == 3 * 2 * row
    # Another optimizer has slots of the rows, too; the one around it has no more.
    inner = tfs.keras.RowwiseAdagrad(0.1)
    other = tfs.keras.GradientAccumulation(inner, 2)
    other.build(model.trainable_variables)
    stats = layer.table_stats()["t"]
    assert stats["slot_bytes"] == 3 * (2 * row + 4)
    tfs.keras.maintain_tables(model, step=2)
    tfs.keras.maintain_tables(model, step=4)
    stats = layer.table_stats()["t"]
    assert (stats["vector_bytes"], stats["slot_bytes"]) == (0, 0)


def test_fit_maintains_with_callbacks_in_a_list_of_keras():
    model, layer = small(tfs.keras.SGD(0.1), Dynamic(30, unused_for=1))
    batches = []
    watch = tf.keras.callbacks.LambdaCallback(
        on_train_batch_end=lambda batch, logs: batches.append(batch)
    )
    listed = tf.keras.callbacks.CallbackList(
        [watch], add_history=True, model=model, epochs=1, steps=20, verbose=0
    )
    data = tf.data.Dataset.range(20).map(lambda x: (x, 1.0)).batch(1)
    history = tfs.keras.fit(model, data, callbacks=listed)
    assert layer.table_stats()["t"]["evicted"] > 10
    rows = len(layer.get_embedding_tables()["t"].keys)
    assert history.history["tables/rows"] == [rows]
    assert batches == list(range(20))


# Keras 2 always compiles with an optimizer.
@pytest.mark.parametrize(
    "compiled_with", [None, "rmsprop"][0 if keras_variants.IS_KERAS_3 else 1 :]
)
def test_fit_counts_the_steps_of_an_optimizer_that_the_models_step_has(compiled_with):
    class Own(tf.keras.Model):
        def __init__(self):
            super().__init__()
            self.table = tfs.keras.Embedding(Dynamic(9, unused_for=1), 4)
            self.trainer = tfs.keras.SGD(0.1)

        def call(self, ids):
            return self.table(ids, training=True)

        def train_step(self, data):
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(self(data))
            variables = self.trainable_variables
            gradients = tape.gradient(loss, list(map(compat.native, variables)))
            self.trainer.apply_gradients(zip(gradients, variables, strict=True))
            return {"loss": loss}

    model = Own()
    model.compile(compiled_with)
    tfs.keras.fit(model, tf.data.Dataset.range(20).batch(1), verbose=0)
    assert model.table.table_stats()[model.table.name]["evicted"] > 10


def test_custom_loop_without_eviction_needs_no_maintenance():
    model = models.growing(tfs.keras.AdamAsync(0.05))
    model.fit(models.dataset([0], 4, True), verbose=0)
    before = model.tables()
    tfs.keras.maintain_tables(model)
    for name, table in model.tables().items():
        np.testing.assert_array_equal(table.vectors, before[name].vectors)
    assert keras_variants.native(model.optimizer.iterations).numpy() == 1


# How a loop, or `fit`, has its optimizer: what is in the model's attribute.
PLACES = {
    "compiled": lambda optimizer: None,
    "variable": lambda optimizer: None,
    "attribute": lambda optimizer: optimizer,
    "beside one that is not built": lambda optimizer: tf.keras.optimizers.RMSprop(),
}


def _in_a_loop(optimizer, at=None):
    """A model that is not compiled, after a step of a loop's optimizer."""
    table = tfs.keras.Embedding(Dynamic(3, unused_for=1), 4, name="words")
    model = tf.keras.Sequential([tf.keras.layers.Input((), dtype="int64"), table])
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(model(tf.constant([1, 2]), training=True))
    gradients = tape.gradient(loss, model.trainable_variables)
    optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
    model.at = at
    return model, table


@thinned("name, place", OPTIMIZERS, PLACES)
def test_removed_row_has_initial_slots_again(name, place):
    optimizer = OPTIMIZERS[name]()
    model, table = _in_a_loop(optimizer, PLACES[place](optimizer))
    if place == "compiled":
        model.compile(optimizer)
    (slots,) = row_slots([optimizer], table._growing).values()
    assert any(np.any(x.variable.numpy() != x.initial) for x in slots)
    for step in range(1, 5):
        table(tf.constant([1]), training=True)
        tfs.keras.maintain_tables(model, step)
    left = table._growing.rows_of("words")
    assert left.keys.tolist() == [1]
    for slot in slots:
        others = np.delete(slot.variable.numpy(), left.rows, axis=0)
        expected = np.full_like(others, slot.initial)
        np.testing.assert_array_equal(others, expected, slot.kind)


def test_row_that_goes_has_initial_slots_of_its_tables_own_optimizer():
    size = Dynamic(3, unused_for=1)
    layer = embedding_models.layer_of(
        tfs.keras.TableConfig("a", size, 4, optimizer="adagrad"),
        tfs.keras.TableConfig("b", size, 4),
    )
    ids = {name: tf.constant([1, 2]) for name in "ab"}
    optimizer = tfs.keras.TableOptimizers(tfs.keras.SGD(0.1))  # it has no slots
    with tf.GradientTape() as tape:
        loss = sum(map(tf.reduce_sum, layer(ids, training=True).values()))
    gradients = tape.gradient(loss, layer.trainable_variables)
    optimizer.apply_gradients(zip(gradients, layer.trainable_variables, strict=True))
    by_part = row_slots([optimizer], layer._growing).values()
    (sums,) = [slot for slots in by_part for slot in slots]
    assert np.any(sums.variable.numpy() != sums.initial)
    for step in (2, 4, 6):
        tfs.keras.maintain_tables(layer, step)
    assert [len(x.keys) for x in layer.get_embedding_tables().values()] == [0, 0]
    assert np.all(sums.variable.numpy() == sums.initial)


def test_steps_are_counted_by_the_optimizer_of_the_tables():
    other = tf.keras.optimizers.RMSprop()
    other.build([tf.keras.layers.Dense(1).add_weight(shape=[1], name="w")])
    other.iterations.assign(999)
    optimizer = tfs.keras.SGD(0.1)
    model, table = _in_a_loop(optimizer, other)
    for iterations, keys in ((9, [1, 2]), (10, [1, 2]), (12, [])):
        optimizer.iterations.assign(iterations)
        tfs.keras.maintain_tables(model)
        assert table.get_embedding_table().keys.tolist() == keys


@pytest.mark.skipif(keras_variants.IS_KERAS_3, reason="Keras 3 has none")
def test_legacy_optimizer_is_refused():
    model, table = _in_a_loop(tf.keras.optimizers.Adam(0.1))
    legacy = tf.keras.optimizers.legacy.Adam(0.1)
    before = table.get_embedding_table()
    with pytest.raises(ValueError, match=r"must not be one of .*\.legacy"):
        step_of(legacy, model.trainable_variables, table, [1], 1.0)
    np.testing.assert_array_equal(table.get_embedding_table().vectors, before.vectors)


@pytest.mark.skipif(keras_variants.IS_KERAS_3, reason="Keras 3 has none")
def test_checkpoint_refuses_a_legacy_optimizer(tmp_path):
    model = tf.keras.Sequential([tf.keras.layers.Dense(1, input_shape=(1,))])
    model.compile(tf.keras.optimizers.legacy.Adam(0.1), "mse")
    with pytest.raises(ValueError, match=r"must not be trained by .*\.legacy"):
        tfs.keras.Checkpoint(tmp_path, model=model).save()


def test_update_maintains_tables_that_it_trains_in_part():
    widths, size = {"a": 4, "b": 8}, Dynamic(9, unused_for=1)
    tables = [tfs.keras.TableConfig(name, size, x) for name, x in widths.items()]
    layer = embedding_models.layer_of(*tables)
    layer({name: tf.constant([1, 2]) for name in "ab"}, training=True)
    optimizer = tf.keras.optimizers.Adam()
    variables = layer.trainable_variables[-1:]
    optimizer.build(variables)
    natives = list(map(compat.native, variables))
    trained = tables_with(DynamicTables, natives, trained_only=True)
    maintenance = Maintenance(trained, [optimizer])
    for step in (0, 2):
        maintenance.run(step)
    assert [len(x.keys) for x in layer.get_embedding_tables().values()] == [0, 0]


def test_table_that_nothing_trains_needs_no_optimizer():
    table = tfs.keras.Embedding(Dynamic(3, unused_for=1), 4)
    model = tf.keras.Sequential([tf.keras.layers.Input((), dtype="int64"), table])
    model(tf.constant([1, 2]), training=True)
    with pytest.raises(ValueError, match="`step` must be given"):
        tfs.keras.maintain_tables(model)
    for step in (2, 4):
        tfs.keras.maintain_tables(model, step)
    assert not len(table.get_embedding_table().keys)


def test_optimizer_whose_slots_begin_with_several_numbers_is_refused():
    class Odd(tf.keras.optimizers.SGD):
        def build(self, variables):
            super().build(variables)
            for slot in self.momentums:
                slot.assign(
                    tf.reshape(tf.range(tf.size(slot), dtype=tf.float32), slot.shape)
                )

    model, _ = small(Odd(0.1, momentum=0.9), Dynamic(9, unused_for=1))
    steps(model, [1])
    with pytest.raises(ValueError, match="must begin with one number"):
        tfs.keras.maintain_tables(model)


def test_optimizer_whose_slots_of_rows_are_not_found_is_refused():
    class Odd(tf.keras.optimizers.SGD):
        def build(self, variables):
            super().build(variables)
            if not hasattr(self, "sums"):  # Keras 2 builds again in its step.
                self.sums = self.add_variable([variables[0].shape[0]], name="sums")

    model, _ = small(Odd(0.1, momentum=0.9), Dynamic(9, unused_for=1))
    steps(model, [1])
    with pytest.raises(ValueError, match=r"must make its slots .* with shape \(\) for"):
        tfs.keras.maintain_tables(model)


@pytest.mark.parametrize("name", UNFIT)
def test_optimizer_that_looks_beyond_a_row_is_refused_before_it_trains(name):
    inner = KERAS_OPTIMIZERS[name](0.1)
    with pytest.raises(ValueError, match=f"must not be {name}, since it"):
        tfs.keras.TableConfig("t", Dynamic(9), 4, optimizer=inner)
    for optimizer in (inner, tfs.keras.SyncReplicas(inner, 1)):
        model, layer = small(optimizer, Dynamic(9))
        before = layer.trainable_variables[0].numpy()
        with pytest.raises(ValueError, match=f"must not be {name}, since it"):
            steps(model, [1])
        np.testing.assert_array_equal(layer.trainable_variables[0].numpy(), before)


COLLECTING = {
    "accumulation": lambda: tfs.keras.GradientAccumulation(tfs.keras.SGD(1.0), 8),
    "sync": lambda: tfs.keras.SyncReplicas(tf.keras.optimizers.SGD(1.0), 8),
}
if keras_variants.IS_KERAS_3:
    COLLECTING |= {
        "steps of ours": lambda: tfs.keras.SGD(1.0, gradient_accumulation_steps=8),
        "steps of Keras": lambda: tf.keras.optimizers.SGD(
            1.0, gradient_accumulation_steps=8
        ),
    }


def collecting(optimizer, **options):
    """A model whose loss has the targets as gradients, with room for 30 keys."""
    options = {"evict": tfs.keras.LeastFrequent(), **options}
    layer = tfs.keras.Embedding(
        Dynamic(30, **options), 1, embeddings_initializer="zeros", name="words"
    )
    model = tf.keras.Sequential(
        [tf.keras.layers.Input((), dtype="int64"), layer, tf.keras.layers.Flatten()]
    )
    model.compile(optimizer, lambda y, p: tf.reduce_sum(y * p), jit_compile=False)
    return model, layer


def batches(*pairs):
    """Batches of 30 examples, which are keys and the gradient of each example."""
    keys, gradients = zip(*pairs, strict=True)
    keys = np.concatenate([np.broadcast_to(x, [30]) for x in keys])
    return keys, np.repeat(np.float32(gradients), 30)[:, np.newaxis]


@pytest.mark.parametrize("name", COLLECTING)
def test_collected_gradients_of_a_row_that_went_reach_no_other_key(name):
    model, layer = collecting(COLLECTING[name](), unused_for=20)
    keys, gradients = batches(
        *[(range(30), 1000.0), (29, 0.0), (29, 0.0), (29, 0.0)],
        *[(100, 1.0), (29, 0.0), (29, 0.0), (29, 0.0)],  # here the update is made
        *[(100, 1.0), *7 * [(29, 0.0)]],
    )
    data = tf.data.Dataset.from_tensor_slices((keys, gradients)).batch(30)
    tfs.keras.fit(model, data, verbose=0)
    # Only key 100 had a gradient that reached it, in one update or in both.
    all_keys, vectors = layer.get_embedding_table()
    (vector,) = vectors[all_keys == 100, 0]
    assert vector in (-30 / 8, -60 / 8)
    assert layer.table_stats()[layer.name]["evicted"]


@pytest.mark.parametrize("name", ["accumulation", "sync"])
@pytest.mark.parametrize("is_another", [False, True])
def test_loop_may_remove_rows_once_in_each_round(name, is_another):
    model, layer = collecting(COLLECTING[name](), evict=None, unused_for=1)
    maintained = model
    if is_another:  # that shares the layer
        maintained = tf.keras.Sequential(
            [tf.keras.layers.Input((), dtype="int64"), layer]
        )
    steps(model, [1, 2])
    tfs.keras.maintain_tables(maintained, step=5)
    tfs.keras.maintain_tables(maintained, step=9)
    assert layer.get_embedding_table().keys.tolist() == [1, 2]
    steps(model, [1], 8)  # the last but one makes an update
    tfs.keras.maintain_tables(maintained, step=9)
    assert layer.get_embedding_table().keys.tolist() == [1]


def test_refused_maintenance_takes_no_turn_of_a_round(monkeypatch):
    def make():
        return tfs.keras.GradientAccumulation(tfs.keras.SGD(1.0), 2)

    model, layer = collecting(make(), evict=None, unused_for=1)
    ids = tf.keras.layers.Input((), dtype="int64")
    other = tf.keras.Sequential([ids, *model.layers])
    other.compile(make(), model.loss, jit_compile=False)
    # The one that says no is asked last.
    asked = [model.optimizer, other.optimizer]
    monkeypatch.setattr(maintenance, "trainers_of", lambda *tables: asked)
    steps(model, [1])
    steps(other, [2])
    tfs.keras.maintain_tables(model, step=5)
    steps(model, [1], 2)  # of the next round, which has not been maintained
    tfs.keras.maintain_tables(model, step=9)
    assert layer.get_embedding_table().keys.tolist() == [1, 2]
    steps(other, [1])  # the last of the round that was
    tfs.keras.maintain_tables(model, step=9)
    assert layer.get_embedding_table().keys.tolist() == [1]


def load_key_2(model, kind, folder):
    """Sets a table to key 2 alone, or loads it from another model."""
    saved = model
    if kind != "set":
        config = model.optimizer.get_config()
        saved, _ = collecting(type(model.optimizer).from_config(config))
        if kind != "weights":
            saved.optimizer.build(saved.trainable_variables)
    saved.layers[0].set_embedding_table(([2], [[7.0]]))
    if kind != "set":
        # Keras 2 also saves the metric of the loss, once there is one.
        saved.evaluate(np.array([[2]]), np.ones([1, 1]), verbose=0)
        save, load = saved_models.save_and_load(kind, folder)
        save(saved)
        load(model)


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        *((x, "set") for x in COLLECTING),
        *(("accumulation", x) for x in ("weights", "checkpoint", "TensorFlow")),
    ],
)
def test_collected_gradients_reach_no_key_of_a_table_that_is_loaded(
    name, kind, tmp_path
):
    model, layer = collecting(COLLECTING[name](), evict=None)
    model.optimizer.build(model.trainable_variables)
    steps(model, [1], 7)
    load_key_2(model, kind, tmp_path)
    steps(model, [3], 9)  # which makes an update, whether the former ones count or not
    keys, vectors = layer.get_embedding_table()
    assert keys.tolist() == [2, 3]
    assert vectors[0].tolist() == [7.0]


def test_collected_gradients_are_dropped_where_rows_cannot_rest(caplog):
    model, layer = collecting(COLLECTING["accumulation"](), evict=None)
    steps(model, [1], 3)
    keys = np.arange(100, 129)
    layer.set_embedding_table((keys, np.full([29, 1], 7.0)))  # there is room for both
    assert not caplog.records
    layer.set_embedding_table((keys + 100, np.full([29, 1], 7.0)))
    (told,) = caplog.records
    assert told.getMessage() == (
        "GradientAccumulation: dropped 3 gradients of an incomplete round, since rows "
        "of tables have other keys now."
    )
    steps(model, [1], 8)
    keys, vectors = layer.get_embedding_table()
    assert keys.tolist() == [1, *range(200, 229)]
    assert np.all(vectors[1:] == 7)


def test_rows_of_a_table_that_was_set_can_be_used_again():
    model, layer = small(tfs.keras.AdamAsync(0.1), Dynamic(40))
    data = tf.data.Dataset.range(40).map(lambda x: (x, 1.0)).batch(40).repeat(250)
    tfs.keras.fit(model, data.take(1), verbose=0)
    layer.set_embedding_tables({"t": ([], np.zeros([0, 4]))})
    tfs.keras.fit(model, data, verbose=0)
    assert layer.get_embedding_tables()["t"].keys.tolist() == list(range(40))


def test_rows_that_rest_in_tensorflows_checkpoint_can_be_used_again(tmp_path):
    saved, layer = small(tfs.keras.AdamAsync(0.1), Dynamic(40))
    steps(saved, range(40))
    layer.set_embedding_tables({"t": ([], np.zeros([0, 4]))})
    path = tf.train.Checkpoint(model=saved).save(str(tmp_path / "saved"))
    model, layer = small(tfs.keras.AdamAsync(0.1), Dynamic(40))
    tf.train.Checkpoint(model=model).restore(path)
    steps(model, range(40))
    assert keys_of(layer) == []
    tfs.keras.maintain_tables(model, 1)
    steps(model, range(40))
    assert keys_of(layer) == list(range(40))


def test_setting_a_table_leaves_what_others_of_its_slab_get_meanwhile():
    tables = [tfs.keras.TableConfig(x, Dynamic(2000), 4) for x in "st"]
    layer = embedding_models.layer_of(*tables, table_stacking="auto")
    layer.build(None)
    is_over = threading.Event()

    def set_table():
        for first in itertools.count():
            layer.set_embedding_tables({"s": ([first, first + 1], np.ones([2, 4]))})
            if is_over.is_set():
                break

    setting = in_thread(set_table)
    for key in range(500):
        layer({"s": tf.constant([], tf.int64), "t": tf.constant([key])}, training=True)
    is_over.set()
    setting.result(60)
    assert layer.get_embedding_tables()["t"].keys.tolist() == list(range(500))


def step_of(optimizer, variables, layer, keys, factor):
    """A step of one optimizer: the gradient of the keys' vectors is a factor."""
    with tf.GradientTape() as tape:
        loss = factor * tf.reduce_sum(layer(tf.constant(keys), training=True))
    natives = [compat.native(x) for x in variables]
    gradients = tape.gradient(loss, natives, unconnected_gradients="zero")
    optimizer.apply_gradients(zip(gradients, variables, strict=True))


def two_models(layer, make):
    """Two models with one layer, each with an optimizer of its own."""
    models = []
    for _ in range(2):
        model = tf.keras.Sequential(
            [tf.keras.Input((), dtype="int64"), layer, tf.keras.layers.Dense(1)]
        )
        model.compile(make())
        model(tf.constant([1, 2]), training=True)
        model.optimizer.build(model.trainable_variables)
        models.append(model)
    return models


@pytest.mark.parametrize(
    "make", [lambda: tf.keras.optimizers.Adam(0.1), lambda: tfs.keras.AdamAsync(0.1)]
)
def test_rows_of_two_models_begin_anew_in_both_of_their_optimizers(make):
    layer = tfs.keras.Embedding(Dynamic(3, unused_for=1), 4)
    models = two_models(layer, make)
    for model in models:
        step_of(model.optimizer, model.trainable_variables, layer, [1, 2], 10.0)
    for step in (1, 5, 9):
        tfs.keras.maintain_tables(models[0], step)
    assert not len(layer.get_embedding_table().keys)
    for model in models:
        (slots,) = row_slots([model.optimizer], layer._growing).values()
        assert slots
        for slot in slots:
            expected = np.full_like(slot.variable, slot.initial)
            np.testing.assert_array_equal(slot.variable, expected, slot.kind)


def test_restored_rows_begin_anew_in_the_optimizer_of_the_other_model(tmp_path):
    layer = tfs.keras.Embedding(Dynamic(9), 4)
    models = two_models(layer, lambda: tf.keras.optimizers.Adam(0.1))
    checkpoint = tfs.keras.Checkpoint(tmp_path, model=models[0])
    for model in models:
        step_of(model.optimizer, model.trainable_variables, layer, [1, 2], 10.0)
    checkpoint.save()
    checkpoint.restore()
    slots = [row_slots([x.optimizer], layer._growing).values() for x in models]
    (own,), (of_other,) = slots
    for slot, same in zip(of_other, own, strict=True):
        assert np.any(same.variable.numpy() != slot.initial)
        assert np.all(slot.variable.numpy() == slot.initial)


def test_steps_of_two_models_with_a_table_are_counted_together():
    layer = tfs.keras.Embedding(Dynamic(9, unused_for=5), 4)
    models = two_models(layer, lambda: tfs.keras.SGD(0.1))
    models[0].optimizer.iterations.assign(100)
    for _ in range(3):
        for key, model in enumerate(models, 1):
            step_of(model.optimizer, model.trainable_variables, layer, [key], 1.0)
            tfs.keras.maintain_tables(model)
    assert not layer.table_stats()[layer.name]["evicted"]
