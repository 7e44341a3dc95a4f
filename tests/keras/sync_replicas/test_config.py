"""Arguments of SyncReplicas: their checks, get_config, serialisation, saving."""

import inspect
import re
from unittest import mock

import keras_sync_replicas as helpers
import keras_variants
import numpy as np
import pytest
import tensorflow as tf

import tf_syncrep as tfs


def make(**options):
    return tfs.keras.SyncReplicas(
        tf.keras.optimizers.SGD(0.5), **{"replicas_to_aggregate": 4, **options}
    )


@pytest.mark.parametrize(
    ("name", "value", "rule"),
    [
        ("replicas_to_aggregate", 0, "a whole number of at least 1"),
        ("replicas_to_aggregate", 1.5, "a whole number of at least 1"),
        ("replicas_to_aggregate", True, "a whole number of at least 1"),
        ("total_num_replicas", -1, "a whole number of at least 1"),
        ("lease_secs", 0, "a finite number above 0"),
        ("start_secs", float("nan"), "a finite number above 0"),
    ],
)
def test_bad_arguments_are_named(name, value, rule):
    message = f"`{name}` must be {rule}. Received: {name}={value}"
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        make(**{name: value})


def test_inner_optimizer_that_is_none_is_refused():
    with pytest.raises(ValueError, match=r"Received: inner_optimizer=3$"):
        tfs.keras.SyncReplicas(3, 2)


def test_optimizer_around_another_is_refused():
    with pytest.raises(ValueError, match="goes around SyncReplicas"):
        tfs.keras.SyncReplicas(make(), 2)


def test_inner_optimizer_that_accumulates_is_refused():
    if not keras_variants.IS_KERAS_3:
        pytest.skip("optimizers of Keras 2 accumulate nothing")
    inner = tf.keras.optimizers.SGD(0.5, gradient_accumulation_steps=2)
    with pytest.raises(ValueError, match=r"gradient_accumulation_steps=2$"):
        tfs.keras.SyncReplicas(inner, 2)


def test_other_strategies_load_and_evaluate_and_are_refused_at_the_first_step(tmp_path):
    words, targets = keras_variants.small_data(8)
    path = str(tmp_path / "model.keras")
    trained = trained_model(make())
    trained.save(path)
    with tf.distribute.MirroredStrategy(["CPU:0"]).scope():
        model = tf.keras.models.load_model(path)
    expected = trained.evaluate(words, targets, verbose=0)
    np.testing.assert_allclose(model.evaluate(words, targets, verbose=0), expected)
    with pytest.raises(ValueError, match=r"Received: MirroredStrategy.*inner opt"):
        model.fit(words, targets, verbose=0)


@pytest.mark.parametrize("model_is_loaded", [False, True])
def test_training_in_one_process_says_once_what_becomes_of_batches(
    model_is_loaded, tmp_path, caplog
):
    model = trained_model(make())
    if model_is_loaded:
        model.save(tmp_path / "model.keras")
        model = tf.keras.models.load_model(tmp_path / "model.keras")
        train(model, 1)
    said = "each 4 batches make up one update. tfs.keras.GradientAccumulation"
    assert caplog.text.count(said) == 1 + model_is_loaded


def test_inner_optimizer_can_be_named():
    optimizer = tfs.keras.SyncReplicas("sgd", 2)
    assert isinstance(optimizer.inner_optimizer, tf.keras.optimizers.SGD)


@pytest.mark.parametrize(
    ("make", "name", "value"),
    [
        (make, "replicas_to_aggregate", 2),
        (make, "total_num_replicas", 2),
        (make, "lease_secs", 5.0),
        (make, "start_secs", 5.0),
        (make, "reject_nonfinite", True),
        (make, "spares", False),
        (lambda: tfs.keras.GradientAccumulation("sgd", 4), "num_batches", 2),
    ],
)
def test_what_rounds_have_taken_cannot_be_set_any_more(make, name, value):
    optimizer = make()
    before = getattr(optimizer, name)
    remedy = "`configure`" if "replicas" in name else "make another optimizer"
    with pytest.raises(
        AttributeError, match=f"`{name}` of .* {remedy}. Received: {name}={value}"
    ):
        setattr(optimizer, name, value)
    assert getattr(optimizer, name) == before


@pytest.mark.parametrize(
    "kind", [tfs.keras.SyncReplicas, tfs.keras.GradientAccumulation]
)
def test_the_class_can_be_looked_at(kind):
    assert not hasattr(kind, "reject_nonfinite")
    assert not hasattr(kind, "spares")
    assert "get_config" in dict(inspect.getmembers(kind))
    assert mock.create_autospec(kind).get_config


def test_numbers_that_are_configured_are_those_of_the_optimizer():
    optimizer = make()
    optimizer.configure(2, 3)
    assert optimizer.replicas_to_aggregate == 2
    assert optimizer.total_num_replicas == 3
    assert make().replicas_to_aggregate == 4


def test_config_holds_every_argument():
    options = {
        "replicas_to_aggregate": 4,
        "total_num_replicas": 5,
        "lease_secs": 7.0,
        "start_secs": 8.0,
        "reject_nonfinite": True,
        "spares": False,
        "flush_last": False,
        "name": "mine",
    }
    config = make(**options).get_config()
    assert {name: config[name] for name in options} == options


def test_number_of_replicas_that_was_left_open_stays_open_in_the_config():
    # The cluster that loads it may have another number of workers.
    optimizer = tfs.keras.SyncReplicas("sgd", 4)
    assert optimizer.total_num_replicas == 4
    assert optimizer.get_config()["total_num_replicas"] is None


@pytest.mark.parametrize("name", ["clipped", "scheduled"])
def test_serialised_optimizer_comes_back(name):
    optimizer = tfs.keras.SyncReplicas(helpers.OPTIMIZERS[name](), 4, 5)
    serialised = tf.keras.optimizers.serialize(optimizer)
    assert serialised["registered_name"] == "tf_syncrep>SyncReplicas"
    restored = tf.keras.optimizers.deserialize(serialised)
    assert type(restored) is tfs.keras.SyncReplicas
    assert type(restored.inner_optimizer) is type(optimizer.inner_optimizer)
    assert restored.get_config() == optimizer.get_config()


def trained_model(optimizer, epochs=2):
    model = keras_variants.small_model()
    model.compile(optimizer=optimizer, loss="mse")
    train(model, epochs)
    return model


def train(model, epochs):
    words, targets = keras_variants.small_data(64)
    model.fit(words, targets, batch_size=8, epochs=epochs, shuffle=False, verbose=0)
