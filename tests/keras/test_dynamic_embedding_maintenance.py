"""Rows of tables that grow that are taken back, and begin anew."""

import importlib.util
import logging

import dynamic_models as models
import keras_variants
import numpy as np
import pytest
import tensorflow as tf
from all_optimizers import KERAS_OPTIMIZERS, LionOfMine
from combinations import mostly_by_night
from embedding_models import layer_of

import tf_syncrep as tfs
from tf_syncrep.python.keras import compat
from tf_syncrep.python.keras.tables.maintenance import maintenance_of_update

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


def small(optimizer, size, combiner=None):
    table = tfs.keras.TableConfig("t", size, 4, combiner=combiner)
    layer = tfs.keras.DistributedEmbedding(tfs.keras.FeatureConfig("f", table))
    model = models.sequential(layer, tf.keras.layers.Dense(1))
    model.compile(optimizer, loss="mse")
    return model, layer


def keys_of(layer):
    """The keys with a row, of either layer with one table."""
    (table,) = layer._growing.by_name
    return layer._growing.rows_of(table).keys.tolist()


def steps(model, ids, number=1):
    ids = np.asarray(ids)
    for _ in range(number):
        model.train_on_batch(ids, np.ones([len(ids), 1], np.float32))


@pytest.mark.parametrize(
    "name",
    mostly_by_night(
        OPTIMIZERS,
        *KERAS_OPTIMIZERS,
        *("adam", "ftrl", "adam_async", "rowwise_adagrad", "sync", "tables", "multi"),
    ),
)
def test_row_that_is_handed_out_again_has_initial_slots(name):
    model, layer = small(OPTIMIZERS[name](), Dynamic(3, unused_for=5))
    steps(model, [1, 2, 3], 3)
    by_kind = models.slots(model.optimizer, layer)
    fresh = {kind: slot.initial for kind, slot in by_kind.items()}
    for kind, slot in by_kind.items():
        if "max" not in kind and kind != "linear":
            assert np.any(slot.variable.numpy() != fresh[kind]), kind
    tfs.keras.maintain_tables(model, step=3)
    steps(model, [1])
    tfs.keras.maintain_tables(model, step=8)  # none goes: unused for 5 steps
    assert keys_of(layer) == [1, 2, 3]
    tfs.keras.maintain_tables(model, step=9)  # 2 and 3 go, and rest
    assert keys_of(layer) == [1]
    steps(model, [1, 4])  # no row is free yet
    assert keys_of(layer) == [1]
    tfs.keras.maintain_tables(model, step=10)
    table = layer._growing.rows_of("t")
    (own,) = table.rows[table.keys == 1]
    for kind, slot in by_kind.items():
        values = np.delete(slot.variable.numpy(), own, axis=0)
        np.testing.assert_array_equal(values, np.full_like(values, fresh[kind]), kind)
    assert keys_of(layer) == [1]
    _, other = small(OPTIMIZERS[name](), Dynamic(3))
    vectors = [x(tf.constant([2]), training=True) for x in (layer, other)]
    np.testing.assert_array_equal(*vectors)


def test_slots_of_a_table_with_one_row_are_known_from_others():
    model, layer = small(tfs.keras.AdamAsync(0.1), Dynamic(1, unused_for=1))
    steps(model, [1], 2)
    slots = model.optimizer.slots(layer.trainable_variables[0])
    before = {kind: slot.numpy() for kind, slot in slots.items()}
    assert {kind for kind, slot in before.items() if slot.shape == (1, 4)} == {"m", "v"}
    for step in (1, 3, 4):  # The row goes, and is free.
        tfs.keras.maintain_tables(model, step=step)
    assert keys_of(layer) == []
    for kind, slot in slots.items():
        expected = 0 if kind in ("m", "v") else before[kind]
        np.testing.assert_array_equal(slot.numpy(), expected, kind)


def test_table_with_one_row_that_is_rounded_stochastically_is_maintained():
    optimizer = tfs.keras.AdamAsync(0.1, stochastic_rounding=True)
    layer = tfs.keras.Embedding(Dynamic(1, unused_for=1), 2, dtype="bfloat16")
    model = models.sequential(layer)
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
    with caplog.at_level(logging.WARNING, logger="absl"):
        tfs.keras.fit(model, first, verbose=0)
        history = tfs.keras.fit(model, second, epochs=2, verbose=0)
    assert not [x for x in caplog.records if "is full" in x.getMessage()]
    keys = models.as_keys(models.batch(12, 1)[0])
    used = np.unique(np.concatenate([keys["watched"].ravel(), keys["candidate"]]))
    np.testing.assert_array_equal(model.tables()["items"].keys, used)
    assert history.history["rows/items"][-1] == len(used)
    assert history.history["without_row/items"] == [0, 0]
    stats = model.embedding.table_stats()["items"]
    assert stats["evicted"] == stats["admitted"] - len(used) > 0
    # They were admitted in both trainings, and evicted in the second one alone.
    assert sum(history.history["evicted/items"]) == stats["evicted"]
    assert 0 < sum(history.history["admitted/items"]) < stats["admitted"]


@pytest.mark.skipif(
    not importlib.util.find_spec("tensorboard"), reason="needs tensorboard"
)
def test_tensorboards_callback_gets_what_fit_counts(tmp_path):
    model = models.growing(tfs.keras.AdamAsync(0.05), unused_for=20)
    board = tf.keras.callbacks.TensorBoard(str(tmp_path))
    data = models.dataset([0, 1] * 20, 12, with_keys=True)
    history = tfs.keras.fit(model, data, epochs=2, verbose=0, callbacks=[board]).history
    found = {}
    for path in tmp_path.glob("train/events*"):
        for event in tf.compat.v1.train.summary_iterator(str(path)):
            for value in event.summary.value:
                if "/items" in value.tag:
                    numbers = found.setdefault(value.tag, [])
                    numbers.append(float(tf.make_ndarray(value.tensor)))
    counted = ("rows", "without_row", "admitted", "evicted")
    assert found == {f"epoch_{x}/items": history[f"{x}/items"] for x in counted}
    assert found["epoch_admitted/items"][0] > 0


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
    assert history.history["rows/t"] == [len(layer.get_embedding_tables()["t"].keys)]
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
            variables = self.trainable_variables
            return {
                "loss": keras_variants.update(
                    self.trainer, variables, lambda: tf.reduce_sum(self(data))
                )
            }

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


# How a loop has its optimizer: what is in the model's attribute.
PLACES = {
    "variable": lambda optimizer: None,
    "attribute": lambda optimizer: optimizer,
    "beside one that is not built": lambda optimizer: tf.keras.optimizers.RMSprop(),
}


def _in_a_loop(optimizer, at=None):
    """A model that is not compiled, after a step of a loop's optimizer."""
    table = tfs.keras.Embedding(Dynamic(3, unused_for=1), 4, name="words")
    model = models.sequential(table)
    step_of(optimizer, model.trainable_variables, table, [1, 2], 1.0)
    model.at = at
    return model, table


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize(
    "name", mostly_by_night(OPTIMIZERS, "adam", "adam_async", "sync")
)
def test_optimizer_of_a_loop_has_initial_slots_of_a_removed_row(name, place):
    optimizer = OPTIMIZERS[name]()
    model, table = _in_a_loop(optimizer, PLACES[place](optimizer))
    slots = models.slots(optimizer, table).values()
    assert any(np.any(x.variable.numpy() != x.initial) for x in slots)
    for step in (2, 4, 6):
        tfs.keras.maintain_tables(model, step)
    assert keys_of(table) == []
    models.assert_initial(optimizer, table)


def test_loop_with_optimizers_of_tables():
    layer = layer_of(
        *(
            tfs.keras.TableConfig(name, Dynamic(3, unused_for=1), 4, optimizer=own)
            for name, own in (("a", "adagrad"), ("b", None))
        )
    )
    layer.build()
    ids = {name: tf.constant([1, 2]) for name in "ab"}
    keras_variants.update(
        tfs.keras.TableOptimizers(tfs.keras.SGD(0.1)),  # it has no slots
        layer.trainable_variables,
        lambda: sum(map(tf.reduce_sum, layer(ids, training=True).values())),
    )
    for step in (2, 4):
        tfs.keras.maintain_tables(layer, step)
    assert [len(x.keys) for x in layer.get_embedding_tables().values()] == [0, 0]


def test_steps_are_counted_by_the_optimizer_of_the_tables():
    other = tf.keras.optimizers.RMSprop()
    other.build([tf.keras.layers.Dense(1).add_weight(shape=[1], name="w")])
    other.iterations.assign(999)
    optimizer = tfs.keras.SGD(0.1)
    model, table = _in_a_loop(optimizer, other)
    for iterations, keys in ((9, [1, 2]), (10, [1, 2]), (12, [])):
        optimizer.iterations.assign(iterations)
        tfs.keras.maintain_tables(model)
        assert keys_of(table) == keys


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
    size = Dynamic(9, unused_for=1)
    layer = layer_of(
        tfs.keras.TableConfig("a", size, 4), tfs.keras.TableConfig("b", size, 8)
    )
    layer({name: tf.constant([1, 2]) for name in "ab"}, training=True)
    optimizer = tf.keras.optimizers.Adam()
    variables = layer.trainable_variables[-1:]
    optimizer.build(variables)
    maintenance = maintenance_of_update(optimizer, list(map(compat.native, variables)))
    for step in (0, 2):
        maintenance.run(step)
    assert [len(x.keys) for x in layer.get_embedding_tables().values()] == [0, 0]


def test_table_that_is_not_trained_needs_no_optimizer():
    table = tfs.keras.Embedding(Dynamic(3, unused_for=1), 4)
    table.trainable = False
    model = models.sequential(table)
    model(tf.constant([1, 2]), training=True)
    with pytest.raises(ValueError, match="`step` must be given"):
        tfs.keras.maintain_tables(model)
    for step in (2, 4):
        tfs.keras.maintain_tables(model, step)
    assert keys_of(table) == []


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
        Dynamic(30, **options), 1, embeddings_initializer="zeros"
    )
    model = models.sequential(layer, tf.keras.layers.Flatten())
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
    maintained = models.sequential(layer) if is_another else model
    steps(model, [1, 2])
    tfs.keras.maintain_tables(maintained, step=5)
    tfs.keras.maintain_tables(maintained, step=9)
    assert keys_of(layer) == [1, 2]
    steps(model, [1], 8)  # the last but one makes an update
    tfs.keras.maintain_tables(maintained, step=9)
    assert keys_of(layer) == [1]


def step_of(optimizer, variables, layer, keys, factor):
    """A step of one optimizer: the gradient of the keys' vectors is a factor."""

    def loss():
        return factor * tf.reduce_sum(layer(tf.constant(keys), training=True))

    keras_variants.update(optimizer, variables, loss, unconnected_gradients="zero")


def two_models(layer, make):
    """Two models with one layer, each with an optimizer of its own."""
    both = [models.sequential(layer, tf.keras.layers.Dense(1)) for _ in range(2)]
    for model in both:
        model.compile(make())
        model(tf.constant([1, 2]), training=True)
        model.optimizer.build(model.trainable_variables)
    return both


@pytest.mark.parametrize(
    "make", [lambda: tf.keras.optimizers.Adam(0.1), lambda: tfs.keras.AdamAsync(0.1)]
)
def test_rows_of_two_models_begin_anew_in_both_of_their_optimizers(make):
    layer = tfs.keras.Embedding(Dynamic(3, unused_for=1), 4)
    both = two_models(layer, make)
    for model in both:
        step_of(model.optimizer, model.trainable_variables, layer, [1, 2], 10.0)
    for step in (1, 5, 9):
        tfs.keras.maintain_tables(both[0], step)
    assert keys_of(layer) == []
    for model in both:
        models.assert_initial(model.optimizer, layer)


def test_restored_rows_begin_anew_in_the_optimizer_of_the_other_model(tmp_path):
    layer = tfs.keras.Embedding(Dynamic(9), 4)
    both = two_models(layer, lambda: tf.keras.optimizers.Adam(0.1))
    checkpoint = tfs.keras.Checkpoint(tmp_path, model=both[0])
    for model in both:
        step_of(model.optimizer, model.trainable_variables, layer, [1, 2], 10.0)
    checkpoint.save()
    checkpoint.restore()
    own, other = (model.optimizer for model in both)
    for slot in models.slots(own, layer).values():
        assert np.any(slot.variable.numpy() != slot.initial)
    models.assert_initial(other, layer)


def test_steps_of_two_models_with_a_table_are_counted_together():
    layer = tfs.keras.Embedding(Dynamic(9, unused_for=5), 4)
    both = two_models(layer, lambda: tfs.keras.SGD(0.1))
    both[0].optimizer.iterations.assign(100)
    for _ in range(3):
        for key, model in enumerate(both, 1):
            step_of(model.optimizer, model.trainable_variables, layer, [key], 1.0)
            tfs.keras.maintain_tables(model)
    assert not layer.table_stats()[layer.name]["evicted"]
