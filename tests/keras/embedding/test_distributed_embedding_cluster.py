"""DistributedEmbedding on clusters of real processes, beside one process."""

import clusters
import embedding_models as models
import keras_variants
import numpy as np
import programs
import pytest
import tensorflow as tf
from keras_sync_replicas import make_strategy
from keras_variants import for_ever
from same import assert_same

import tf_syncrep as tfs

pytestmark = pytest.mark.ci

STEPS, EXAMPLES = 40, 12
SERVERS = 3
SHARDS = None if keras_variants.IS_KERAS_3 else SERVERS


def batch():
    """That of all trainings on the cluster."""
    return models.batch(EXAMPLES)


def as_lists(tables):
    return {name: table.tolist() for name, table in tables.items()}


def make(strategy, optimizer, **options):
    with strategy.scope():
        return models.make(
            models.Distributed, optimizer(), models.initial_tables(), **options
        )


def devices_of(variables):
    return [keras_variants.native(x).device for x in variables]


def asynchronous(strategy, folder):
    """Each worker's steps advance the powers of each part."""
    model = make(strategy, lambda: tfs.keras.AdamAsync(0.01, beta_1=0.5))
    tfs.keras.fit(model, for_ever(*batch()), steps_per_epoch=STEPS, verbose=0)
    parts = model.embedding.trainable_variables
    powers = [model.optimizer.slots(part)["beta_1_power"].numpy() for part in parts]
    data = tf.data.Dataset.from_tensors(batch())
    model.save_weights(f"{folder}/saved.weights.h5")
    checkpoint = tf.train.Checkpoint(model=model, optimizer=model.optimizer)
    path = checkpoint.save(f"{folder}/tensorflow")
    tables = model.tables()
    model.set_tables(models.initial_tables(3))
    checkpoint.restore(path).assert_consumed()
    return {
        "checkpoint": path,
        "restored": [
            np.array_equal(table, tables[name])
            for name, table in model.tables().items()
        ],
        "steps": [float(np.log2(1 / power[0])) - 1 for power in powers],
        "bytes": [int(np.prod(part.shape)) for part in parts],
        "devices": devices_of(parts),
        "rows": sum(
            int(np.count_nonzero(np.any(model.optimizer.slots(x)["m"].numpy(), axis=1)))
            for x in parts[:SERVERS]
        ),
        "slot_devices": devices_of(model.optimizer.slots(x)["m"] for x in parts),
        "tables": as_lists(model.tables()),
        "evaluated": tfs.keras.evaluate(model, data, verbose=0),
        "predicted": np.asarray(
            tfs.keras.predict(model, data.map(lambda x, _: x), verbose=0)
        ).tolist(),
    }


def from_one_process(strategy, folder):
    """Tables that are read into parts on the servers, as TensorFlow's checkpoint."""
    layers = []
    for scope in (tf.distribute.get_strategy().scope(), strategy.scope()):
        with scope:
            layer = tfs.keras.DistributedEmbedding(models.feature_configs())
            layer.build()
            layers.append(layer)
    layers[0].set_embedding_tables(models.initial_tables(5))
    path = tf.train.Checkpoint(layer=layers[0]).save(f"{folder}/one_process")
    tf.train.Checkpoint(layer=layers[1]).restore(path)
    return as_lists(layers[1].get_embedding_tables())


def synchronous(strategy):
    """Updates with two equal gradients are like updates with one."""
    results = {}
    for name, optimizer, options in (
        ("adam", lambda: tf.keras.optimizers.Adam(0.01), {}),
        ("adam_async", lambda: tfs.keras.AdamAsync(0.01), {}),
        ("apart", lambda: tfs.keras.AdamAsync(0.01), {"table_stacking": None}),
        ("bfloat16", lambda: tfs.keras.AdamAsync(0.01), {"transfer_dtype": "bfloat16"}),
    ):
        model = make(
            strategy,
            lambda make=optimizer: tfs.keras.SyncReplicas(make(), 2, 2, spares=False),
            **options,
        )
        tfs.keras.fit(model, for_ever(*batch()), steps_per_epoch=STEPS, verbose=0)
        results[name] = {
            "updates": int(model.optimizer.stats()["updates"]),
            "applied": int(model.optimizer.stats()["applied"]),
            "tables": as_lists(model.tables()),
        }
    return results


def scoring(embedding):
    layers = tf.keras.layers
    words = layers.Input((4,), dtype="int64")
    return tf.keras.Sequential([words, embedding, layers.Flatten(), layers.Dense(1)])


def one_table(strategy, folder):
    """A layer of one large table, in a stock model."""
    with strategy.scope():
        model = scoring(tfs.keras.Embedding(40_000, 8, shards=SHARDS))
        model.compile(tfs.keras.AdamAsync(0.01), loss="mse")
    words = np.random.default_rng(0).integers(0, 40_000, (EXAMPLES, 4))
    data = for_ever(words, np.ones([EXAMPLES, 1]))
    history = tfs.keras.fit(model, data, epochs=2, steps_per_epoch=STEPS, verbose=0)
    model.save_weights(f"{folder}/one.weights.h5")
    return {
        "devices": devices_of(model.layers[0].trainable_variables),
        "losses": history.history["loss"],
        "words": words.tolist(),
        "predicted": model(words).numpy().tolist(),
    }


class Tied(tf.keras.Model):
    """Guesses a word by the vectors of others, with the same table for the guesses."""

    def __init__(self):
        super().__init__()
        self.words = tfs.keras.Embedding(40_000, 8, shards=SHARDS)

    def call(self, words):
        hidden = tf.reduce_mean(self.words(words), axis=1)
        return tf.matmul(hidden, self.words.embeddings, transpose_b=True)


def tied(strategy):
    """A table of which a step looks up rows and reads all, beside one process."""
    words = np.arange(12).reshape([3, 4])
    data = for_ever(words, [7, 100, 39_999])

    def make(optimizer):
        model = Tied()
        loss = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(optimizer, loss=loss)
        model(words)
        return model

    single = make(tf.keras.optimizers.SGD(10.0))
    with strategy.scope():
        sgd = tf.keras.optimizers.SGD(10.0)
        model = make(tfs.keras.SyncReplicas(sgd, 2, 2, spares=False))
    (before,) = single.get_weights()
    model.set_weights([before])
    single.fit(data(), steps_per_epoch=STEPS // 2, verbose=0)
    tfs.keras.fit(model, data, steps_per_epoch=STEPS, verbose=0)
    (table,), (expected,) = model.get_weights(), single.get_weights()
    return {
        "parts": len(model.weights),
        "moved": float(np.max(np.abs(expected - before))),
        "error": float(np.max(np.abs(table - expected))),
    }


def clipped_step(strategy):
    """A step of a loop of one's own, which clips gradients by their global norm."""
    with strategy.scope():
        layer = tfs.keras.DistributedEmbedding(models.feature_configs())
        layer.build()
    layer.set_embedding_tables(models.initial_tables())
    ids, _ = batch()
    variables = [keras_variants.native(x) for x in layer.trainable_variables]

    @tf.function
    def step():
        with tf.GradientTape() as tape:
            vectors = layer(ids, training=True)
            loss = tf.add_n([tf.reduce_sum(x) for x in tf.nest.flatten(vectors)])
        return tf.clip_by_global_norm(tape.gradient(loss, variables), 1.0)[1]

    return step


def global_norms(strategy):
    """The norms that steps compute in a replica, and outside of one."""
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
    step = clipped_step(strategy)
    in_replica = tf.function(lambda: strategy.run(step))
    scheduled = [coordinator.schedule(x) for x in (step, in_replica)]
    return [float(x.fetch()) for x in scheduled]


def trainings(folder):
    strategy = make_strategy()
    return {
        "asynchronous": asynchronous(strategy, folder),
        "from_one_process": from_one_process(strategy, folder),
        "synchronous": synchronous(strategy),
        "one_table": one_table(strategy, folder),
        "tied": tied(strategy),
        "messages": models.messages_of_a_step(
            strategy,
            lambda: tfs.keras.DistributedEmbedding(models.feature_configs()),
            tfs.keras.AdamAsync,
            batch()[0],
        ),
        "norms": global_norms(strategy),
    }


def mirrored():
    """Trainings in one replica and in two; and what optimizers of tables say to two."""
    keras_variants.make_two_cpus()
    data = tf.data.Dataset.from_tensor_slices(models.batch(16)).batch(8)
    own = {"movies": "adagrad", "days": "sgd"}
    two = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    results = {}
    for name, strategy in (("one", tf.distribute.get_strategy()), ("two", two)):
        model = make(strategy, lambda: tfs.keras.AdamAsync(0.1))
        tfs.keras.fit(model, data, epochs=2, verbose=0)
        results[name] = as_lists(model.tables())
    model = make(
        two, lambda: tfs.keras.TableOptimizers(tfs.keras.AdamAsync(0.1)), optimizers=own
    )
    said = programs.error_of(tfs.keras.fit, model, data, verbose=0)
    return {**results, "refused": (said, as_lists(model.tables()))}


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    return tmp_path_factory.mktemp("saved")


@pytest.fixture(scope="module")
def training(saved):
    return clusters.call(trainings, str(saved), num_ps=SERVERS)


def trained(optimizer, steps):
    """The tables after the same number of updates in one process."""
    model = models.make(models.Distributed, optimizer, models.initial_tables())
    for _ in range(steps):
        keras_variants.train_on_batch(model, *batch())
    return model.tables()


def assert_close(tables, expected, tolerance):
    for name, table in expected.items():
        assert not np.allclose(table, models.initial_tables()[name], atol=0.02)
        np.testing.assert_allclose(tables[name], table, atol=tolerance)


def test_parts_are_alike_on_all_servers_with_their_slots(training):
    result = training["asynchronous"]
    on_servers = {}
    for size, device in zip(result["bytes"], result["devices"], strict=True):
        on_servers.setdefault(device, []).append(size)
    assert len(on_servers) == SERVERS
    sizes = [sum(x) for x in on_servers.values()]
    # The parts of a stack differ by one row at most.
    assert max(sizes) - min(sizes) <= models.WIDTH + 3
    assert result["slot_devices"] == result["devices"]


def test_asynchronous_steps_are_all_counted_by_every_part(training):
    np.testing.assert_allclose(training["asynchronous"]["steps"], STEPS, atol=1e-6)


def test_parts_are_sent_row_numbers_and_gradients_and_send_rows(training):
    messages, parts = training["messages"]
    # Besides, the step is sent to its counter, and the learning rate to other servers.
    # Keras 2 reads it for each part.
    rates = SERVERS - 1 if keras_variants.IS_KERAS_3 else parts
    assert 3 * parts < messages <= 3 * parts + 1 + rates


def test_global_norm_of_a_loop_of_ones_own_is_that_of_one_process(training):
    expected = float(clipped_step(tf.distribute.get_strategy())())
    np.testing.assert_allclose(training["norms"], expected, rtol=1e-5)


@pytest.mark.parametrize("name", ["adam", "adam_async", "apart", "bfloat16"])
def test_synchronous_updates_are_those_of_one_process(training, name):
    result = training["synchronous"][name]
    assert (result["applied"], result["updates"]) == (STEPS, STEPS // 2)
    adam = tf.keras.optimizers.Adam(0.01)
    optimizer = adam if name == "adam" else tfs.keras.AdamAsync(0.01)
    tolerance = 0.01 if name == "bfloat16" else 1e-5
    assert_close(result["tables"], trained(optimizer, STEPS // 2), tolerance)


def test_evaluates_and_predicts_with_what_it_has_learned(training):
    result = training["asynchronous"]
    _, targets = batch()
    errors = np.asarray(result["predicted"]) - targets
    np.testing.assert_allclose(result["evaluated"], np.mean(errors**2), rtol=1e-4)


def test_file_of_several_servers_is_loaded_in_one_process(training, saved):
    model = models.make(
        models.Distributed, tfs.keras.AdamAsync(0.01), models.initial_tables(1)
    )
    model.optimizer.build(model.trainable_variables)
    model.load_weights(str(saved / "saved.weights.h5"))
    (slab, _) = model.embedding.trainable_variables
    slots = model.optimizer.slots(slab)
    np.testing.assert_allclose(slots["beta_1_power"], 0.5 ** (STEPS + 1), rtol=1e-5)
    moments = np.asarray(slots["m"])
    assert np.count_nonzero(np.any(moments, axis=1)) == training["asynchronous"]["rows"]
    assert_same(model.tables(), training["asynchronous"]["tables"])
    predicted = model.predict(batch()[0], verbose=0)
    np.testing.assert_allclose(
        predicted, training["asynchronous"]["predicted"], rtol=1e-4, atol=1e-5
    )


def test_tensorflows_checkpoint_is_restored_in_one_process_and_onto_servers(training):
    result = training["asynchronous"]
    assert result["restored"] == 3 * [True]
    model = models.Distributed()
    model(models.batch(2)[0])
    tf.train.Checkpoint(model=model).restore(result["checkpoint"]).expect_partial()
    assert_same(model.tables(), result["tables"])
    assert_same(training["from_one_process"], models.initial_tables(5))


def test_layer_of_one_large_table_is_on_all_servers_and_a_stock_one_in_files(
    training, saved
):
    result = training["one_table"]
    assert len(set(result["devices"])) == SERVERS
    assert result["losses"][1] < result["losses"][0]
    model = scoring(tf.keras.layers.Embedding(40_000, 8))
    model.load_weights(str(saved / "one.weights.h5"))
    predicted = model(np.asarray(result["words"])).numpy()
    np.testing.assert_allclose(predicted, result["predicted"], rtol=1e-5, atol=1e-6)


def test_table_that_scores_with_its_own_vectors_trains_as_in_one_process(training):
    result = training["tied"]
    assert result["parts"] == SERVERS
    assert result["error"] < 1e-5 < 0.1 < result["moved"]


def test_replicas_of_one_process_train_one_set_of_tables():
    result = programs.call(mirrored)
    assert_same(result["two"], result["one"], 1e-5)
    # Nothing is written where it cannot be.
    message, tables = result["refused"]
    assert "TableOptimizers trains where a step has one replica" in message
    assert "MirroredStrategy with 2 replicas" in message
    assert_same(tables, models.initial_tables())
