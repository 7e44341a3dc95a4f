"""DistributedEmbedding on clusters of real processes, beside one process."""

import pathlib

import clusters
import embedding_models as models
import keras_variants
import numpy as np
import programs
import pytest
import tensorflow as tf

import tf_syncrep as tfs

pytestmark = pytest.mark.ci

PROGRAM = pathlib.Path(__file__).with_name("distributed_embedding_program.py")
MIRRORED = PROGRAM.with_name("mirrored_embedding_program.py")
STEPS, EXAMPLES = 40, 12
SERVERS = 3


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    return tmp_path_factory.mktemp("saved")


@pytest.fixture(scope="module")
def training(saved):
    with clusters.Cluster(num_workers=2, num_ps=SERVERS) as cluster:
        return programs.run(PROGRAM, str(saved), env=cluster.environment())


def trained(optimizer, steps):
    """The tables after the same number of updates in one process."""
    model = models.make(models.Distributed, optimizer, models.initial_tables())
    for _ in range(steps):
        models.train_on_batch(model, *models.batch(EXAMPLES))
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
    _, targets = models.batch(EXAMPLES)
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
    for name, table in training["asynchronous"]["tables"].items():
        np.testing.assert_array_equal(model.tables()[name], np.float32(table))
    predicted = model.predict(models.batch(EXAMPLES)[0], verbose=0)
    np.testing.assert_allclose(
        predicted, training["asynchronous"]["predicted"], rtol=1e-4, atol=1e-5
    )


def test_tensorflows_checkpoint_is_restored_in_one_process_and_onto_servers(training):
    result = training["asynchronous"]
    assert result["restored"] == 3 * [True]
    model = models.Distributed()
    model(models.batch(2)[0])
    tf.train.Checkpoint(model=model).restore(result["checkpoint"]).expect_partial()
    for name, table in result["tables"].items():
        np.testing.assert_array_equal(model.tables()[name], np.float32(table))
    for name, table in models.initial_tables(5).items():
        np.testing.assert_array_equal(
            np.float32(training["from_one_process"][name]), table
        )


def test_layer_of_one_large_table_is_on_all_servers_and_a_stock_one_in_files(
    training, saved
):
    result = training["one_table"]
    assert len(set(result["devices"])) == SERVERS
    assert result["losses"][1] < result["losses"][0]
    model = tf.keras.Sequential(
        [
            tf.keras.layers.Input((4,), dtype="int64"),
            tf.keras.layers.Embedding(40_000, 8),
            tf.keras.layers.Flatten(),
            tf.keras.layers.Dense(1),
        ]
    )
    model.load_weights(str(saved / "one.weights.h5"))
    predicted = model(np.asarray(result["words"])).numpy()
    np.testing.assert_allclose(predicted, result["predicted"], rtol=1e-5, atol=1e-6)


def test_table_that_scores_with_its_own_vectors_trains_as_in_one_process(training):
    result = training["tied"]
    assert result["parts"] == SERVERS
    assert result["error"] < 1e-5 < 0.1 < result["moved"]


def test_id_that_is_in_no_table_is_named_and_nothing_is_changed(training):
    message, tables = training["error"]
    for words in ("feature day", "table days", "[0, 7)", "-7"):
        assert words in message
    for name, table in models.initial_tables().items():
        np.testing.assert_array_equal(np.float32(tables[name]), table)


def test_replicas_of_one_process_train_one_set_of_tables():
    result = programs.run(MIRRORED)
    for name, table in result["one"].items():
        np.testing.assert_allclose(result["two"][name], table, atol=1e-5)
    # Nothing is written where it cannot be.
    message, tables = result["refused"]
    assert "TableOptimizers trains where a step has one replica" in message
    assert "MirroredStrategy with 2 replicas" in message
    for name, table in models.initial_tables().items():
        np.testing.assert_array_equal(np.float32(tables[name]), table)
