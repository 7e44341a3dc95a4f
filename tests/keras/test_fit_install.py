"""tfs.keras.install_fit, where there are no parameter servers."""

import inspect

import fit_scenarios
import keras_variants
import pytest
import tensorflow as tf

import tf_syncrep as tfs

METHODS = ("fit", "evaluate", "predict")


@pytest.fixture(autouse=True)
def uninstalled():
    tfs.keras.uninstall_fit()
    yield
    tfs.keras.uninstall_fit()


def test_installing_twice_is_as_once_and_can_be_undone():
    before = [getattr(tf.keras.Model, name) for name in METHODS]
    tfs.keras.install_fit()
    installed = [getattr(tf.keras.Model, name) for name in METHODS]
    tfs.keras.install_fit()
    assert [getattr(tf.keras.Model, name) for name in METHODS] == installed
    assert list(map(inspect.signature, installed)) == [
        inspect.signature(method) for method in before
    ]
    tfs.keras.uninstall_fit()
    tfs.keras.uninstall_fit()
    assert [getattr(tf.keras.Model, name) for name in METHODS] == before


def test_installed_methods_leave_models_without_parameter_servers_alone():
    words, targets = fit_scenarios.WORDS, fit_scenarios.TARGETS
    results = []
    for install in (lambda: None, tfs.keras.install_fit):
        install()
        model = keras_variants.small_model()
        model.compile("sgd", "mse")
        history = model.fit(words, targets, shuffle=False, verbose=0).history
        results.append([history["loss"], model.evaluate(words, targets, verbose=0)])
        results[-1] += model.predict(words, verbose=0).tolist()
    assert results[0] == results[1]
