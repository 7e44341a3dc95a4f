"""Training that is saved, restored into new objects and continued."""

import keras_variants
import numpy as np
import pytest
import tensorflow as tf

import tf_syncrep as tfs


def compiled_model():
    model = keras_variants.small_model()
    schedule = tf.keras.optimizers.schedules.ExponentialDecay(0.01, 4, 0.5)
    model.compile(optimizer=tfs.keras.AdamAsync(schedule), loss="mse")
    return model


def built_model():
    model = compiled_model()
    model.optimizer.build(model.trainable_variables)
    return model


def fit(model):
    words, targets = keras_variants.small_data(32)
    model.fit(words, targets, batch_size=8, epochs=2, shuffle=False, verbose=0)


def state_of(model):
    return [
        *model.get_weights(),
        *[variable.numpy() for variable in model.optimizer.variables],
    ]


def save_checkpoint(model, folder):
    checkpoint = tf.train.Checkpoint(model=model, optimizer=model.optimizer)
    return checkpoint.save(str(folder / "checkpoint"))


def restore_checkpoint(path):
    model = built_model()
    checkpoint = tf.train.Checkpoint(model=model, optimizer=model.optimizer)
    checkpoint.restore(path).assert_consumed()
    return model


def restore_checkpoint_before_slots_exist(path):
    model = compiled_model()
    checkpoint = tf.train.Checkpoint(model=model, optimizer=model.optimizer)
    checkpoint.restore(path)
    return model


def save_keras_file(model, folder):
    path = str(folder / "model.keras")
    model.save(path)
    return path


def save_weights_file(model, folder):
    path = str(folder / "model.weights.h5")
    model.save_weights(path)
    return path


def restore_weights_file(path):
    model = built_model()
    model.load_weights(path)
    return model


def save_tensorflow_weights(model, folder):
    path = str(folder / "weights")
    model.save_weights(path)
    return path


def restore_tensorflow_weights(path):
    model = compiled_model()
    model.load_weights(path)
    return model


def save_h5_file(model, folder):
    path = str(folder / "model.h5")
    model.save(path)
    return path


FORMATS = {
    "checkpoint": (save_checkpoint, restore_checkpoint),
    "deferred_checkpoint": (save_checkpoint, restore_checkpoint_before_slots_exist),
    "keras_file": (save_keras_file, tf.keras.models.load_model),
    "weights_file": (save_weights_file, restore_weights_file),
}
if not keras_variants.IS_KERAS_3:
    # Formats that only Keras 2 writes whole.
    FORMATS |= {
        "tensorflow_weights": (save_tensorflow_weights, restore_tensorflow_weights),
        "h5_file": (save_h5_file, tf.keras.models.load_model),
    }


@pytest.mark.parametrize("saved_as", FORMATS)
def test_restored_training_goes_on_as_if_never_stopped(saved_as, tmp_path):
    save, restore = FORMATS[saved_as]
    model = compiled_model()
    fit(model)
    path = save(model, tmp_path)
    fit(model)
    restored = restore(path)
    fit(restored)
    assert restored.optimizer is not model.optimizer
    assert restored.optimizer.iterations.numpy() == 16
    for got, want in zip(state_of(restored), state_of(model), strict=True):
        np.testing.assert_array_equal(got, want)


def test_a_restored_model_can_be_saved_again(tmp_path):
    model = compiled_model()
    fit(model)
    restored = restore_checkpoint_before_slots_exist(save_checkpoint(model, tmp_path))
    fit(restored)
    again = restore_checkpoint(save_checkpoint(restored, tmp_path / "again"))
    for got, want in zip(state_of(again), state_of(restored), strict=True):
        np.testing.assert_array_equal(got, want)


def test_weights_set_by_hand_are_the_optimizers_state():
    model = built_model()
    fit(model)
    other = built_model()
    weights = [variable.numpy() for variable in model.optimizer.variables]
    other.optimizer.set_weights(weights)
    for variable, weight in zip(other.optimizer.variables, weights, strict=True):
        np.testing.assert_array_equal(variable.numpy(), weight)
