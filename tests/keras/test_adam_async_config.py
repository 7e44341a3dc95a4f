"""Arguments of AdamAsync, besides what test_lazy_optimizers.py has of them."""

import keras_variants
import numpy as np
import pytest
import tensorflow as tf

import tf_syncrep as tfs


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
