"""Arguments of SyncReplicas, and what changes in an optimizer make it trace anew."""

import inspect
import re
import types
from unittest import mock

import keras_sync_replicas as helpers
import keras_variants
import numpy as np
import pytest
import tensorflow as tf
from packaging.version import Version

import tf_syncrep as tfs
from tf_syncrep.python.keras.sync_replicas.cluster.settings import settings_of


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


def trained_model(optimizer):
    model = keras_variants.small_model()
    model.compile(optimizer=optimizer, loss="mse")
    train(model, epochs=2)
    return model


def train(model, epochs):
    words, targets = keras_variants.small_data(64)
    model.fit(words, targets, batch_size=8, epochs=epochs, shuffle=False, verbose=0)


keras = tf.keras.optimizers
REFUSES_EXCLUSION = not keras_variants.IS_KERAS_3 or (
    Version(tf.keras.__version__) >= Version("3.16.dev0")
)


@pytest.fixture
def optimizer():
    """In it is another one, to which it has given no variable."""
    made = tfs.keras.TableOptimizers(keras.Adam(0.1, weight_decay=0.1))
    variable = tf.Variable([1.0, 2.0])
    made.build([variable])
    made.apply_gradients([(tf.ones([2]), variable)])
    return made


def test_what_a_training_changes_is_no_setting(optimizer):
    before = settings_of(optimizer)
    optimizer.learning_rate = 0.01
    optimizer.iterations.assign(7)
    variables = [variable.numpy() for variable in optimizer.variables]
    optimizer.set_weights(variables)
    assert settings_of(optimizer) == before


class Unhashable:
    """A function object of a user."""

    __hash__ = None  # pyright: ignore

    def __call__(self):
        return 1.0


@pytest.mark.parametrize(
    ("before", "change"),
    [
        ((0.9, 0.5), lambda x: (0.5, 0.9)),
        ([0.9, 0.9, 0.5], lambda x: x.pop(0)),
        ({"rate": 0.1}, lambda x: x.update(rate=0.2)),
        (np.array([0.1, 0.2]), lambda x: np.copyto(x, 0.3)),
        (np.bool_(True), lambda x: np.bool_(False)),
        ([Unhashable()], lambda x: x.clear()),
        (keras_variants.slow_decay(0.1), lambda x: setattr(x, "decay_rate", 0.5)),
    ],
    ids=["order", "number", "dict", "array", "bool", "unhashable", "schedule"],
)
def test_change_of_what_a_user_has_set_is_one(before, change):
    optimizer = types.SimpleNamespace(setting=before)
    settings = settings_of(optimizer)
    assert settings_of(optimizer) == settings
    changed = change(before)
    if isinstance(changed, (tuple, np.bool_)):
        optimizer.setting = changed
    assert settings_of(optimizer) != settings


def test_what_has_a_variable_in_it_is_no_setting():
    table = {"rate": 0.1, "slot": [tf.Variable(1.0)]}
    assert settings_of(types.SimpleNamespace(table=table, epsilon=0.5)) == {
        "epsilon": 0.5
    }


@pytest.mark.parametrize(
    "change",
    [
        lambda x: setattr(x, "weight_decay", 0.2),
        lambda x: setattr(x, "clipnorm", 1.0),
        lambda x: setattr(x, "beta_1", 0.8),
        lambda x: setattr(x, "learning_rate", keras_variants.slow_decay(0.1)),
        pytest.param(
            lambda x: x.exclude_from_weight_decay(var_names=["bias"]),
            marks=pytest.mark.skipif(
                REFUSES_EXCLUSION, reason="Keras 2 and 3.16 refuse it by now"
            ),
        ),
    ],
    ids=["weight_decay", "clipnorm", "beta_1", "learning_rate", "exclusion"],
)
def test_change_of_an_inner_optimizer_is_one(change, optimizer):
    before = settings_of(optimizer)
    change(optimizer.optimizer)
    assert settings_of(optimizer) != before
