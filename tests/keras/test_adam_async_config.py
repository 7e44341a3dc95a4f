"""Arguments of AdamAsync: their checks, get_config and serialisation."""

import re

import keras_variants
import numpy as np
import pytest
import tensorflow as tf

import tf_syncrep as tfs

OPTIONS = {
    "learning_rate": 0.25,
    "beta_1": 0.5,
    "beta_2": 0.75,
    "epsilon": 1e-3,
    "apply_sparse_rmsprop": True,
    "use_nesterov": True,
    "rmsprop_momentum": 0.25,
    "weight_decay": 0.125,
    "clipnorm": 2.0,
    "clipvalue": None,
    "global_clipnorm": None,
    "use_ema": True,
    "ema_momentum": 0.5,
    "ema_overwrite_frequency": 3,
    "name": "mine",
}
OPTIONS_OF_THIS_KERAS = (
    {"loss_scale_factor": 8.0, "gradient_accumulation_steps": 2}
    if keras_variants.IS_KERAS_3
    else {"jit_compile": False}
)


def test_config_holds_every_argument():
    options = {**OPTIONS, **OPTIONS_OF_THIS_KERAS}
    config = tfs.keras.AdamAsync(**options).get_config()
    assert {name: config[name] for name in options} == options


def test_from_config_makes_an_equal_optimizer():
    config = tfs.keras.AdamAsync(**OPTIONS, **OPTIONS_OF_THIS_KERAS).get_config()
    assert tfs.keras.AdamAsync.from_config(dict(config)).get_config() == config


def test_positional_arguments_are_in_the_documented_order():
    optimizer = tfs.keras.AdamAsync(0.25, 0.5, 0.75, 1e-3, True, False)
    config = optimizer.get_config()
    assert config["learning_rate"] == 0.25
    assert (optimizer.beta_1, optimizer.beta_2, optimizer.epsilon) == (0.5, 0.75, 1e-3)
    assert (optimizer.apply_sparse_rmsprop, optimizer.use_nesterov) == (True, False)


def test_default_arguments():
    config = tfs.keras.AdamAsync().get_config()
    assert config["learning_rate"] == np.float32(0.001)
    assert config["name"] == "AdamAsync"
    assert config["rmsprop_momentum"] is None
    assert (config["beta_1"], config["beta_2"], config["epsilon"]) == (0.9, 0.999, 1e-7)
    assert not config["apply_sparse_rmsprop"]
    assert not config["use_nesterov"]


def test_serialised_optimizer_comes_back():
    optimizer = tfs.keras.AdamAsync(**OPTIONS)
    serialised = tf.keras.optimizers.serialize(optimizer)
    assert serialised["registered_name"] == "tf_syncrep>AdamAsync"
    restored = tf.keras.optimizers.deserialize(serialised)
    assert type(restored) is tfs.keras.AdamAsync
    assert restored.get_config() == optimizer.get_config()


def test_learning_rate_schedule_is_serialised_too():
    schedule = tf.keras.optimizers.schedules.ExponentialDecay(0.5, 10, 0.9)
    serialised = tf.keras.optimizers.serialize(tfs.keras.AdamAsync(schedule))
    restored = tf.keras.optimizers.deserialize(serialised)
    restored_schedule = restored.get_config()["learning_rate"]
    assert restored_schedule["config"] == schedule.get_config()


def test_whole_numbers_are_taken_for_floats():
    optimizer = tfs.keras.AdamAsync(1, beta_1=0, epsilon=0)
    assert float(optimizer.learning_rate) == 1.0
    assert (optimizer.beta_1, optimizer.epsilon) == (0.0, 0.0)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"learning_rate": -0.5},
            "`learning_rate` must be in the range [0, inf). "
            "Received: learning_rate=-0.5",
        ),
        (
            {"learning_rate": float("nan")},
            "`learning_rate` must be in the range [0, inf). "
            "Received: learning_rate=nan",
        ),
        (
            {"beta_1": 1.5},
            "`beta_1` must be in the range [0, 1). Received: beta_1=1.5",
        ),
        (
            {"beta_1": -0.1},
            "`beta_1` must be in the range [0, 1). Received: beta_1=-0.1",
        ),
        ({"beta_2": 1}, "`beta_2` must be in the range [0, 1). Received: beta_2=1"),
        (
            {"beta_2": "0.9"},
            "`beta_2` must be a number. Received: beta_2='0.9'",
        ),
        (
            {"epsilon": -1e-7},
            "`epsilon` must be in the range [0, inf). Received: epsilon=-1e-07",
        ),
        (
            {"epsilon": True},
            "`epsilon` must be a number. Received: epsilon=True",
        ),
        (
            {"rmsprop_momentum": 1.0},
            "`rmsprop_momentum` must be in the range [0, 1). "
            "Received: rmsprop_momentum=1.0",
        ),
        (
            {"use_ema": True, "ema_momentum": 2},
            "`ema_momentum` must be in the range [0, 1]. Received: ema_momentum=2",
        ),
    ],
    ids=str,
)
def test_bad_hyper_parameters_are_named(options, message):
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        tfs.keras.AdamAsync(**options)


def test_unknown_arguments_are_refused():
    expected = ValueError if keras_variants.IS_KERAS_3 else TypeError
    with pytest.raises(expected, match="amsgrad"):
        tfs.keras.AdamAsync(amsgrad=True)


def test_unknown_variable_is_refused():
    optimizer = tfs.keras.AdamAsync()
    optimizer.build([tf.Variable([1.0])])
    expected = ValueError if keras_variants.IS_KERAS_3 else KeyError
    with pytest.raises(expected, match=r"Unknown variable|cannot recognize variable"):
        optimizer.apply_gradients([(tf.ones([1]), tf.Variable([1.0]))])
