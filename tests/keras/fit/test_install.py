"""tfs.keras.install_fit, where there are no parameter servers."""

import inspect

import fit_scenarios
import keras_variants
import pytest
import tensorflow as tf

import tf_syncrep as tfs
from tf_syncrep.python.keras.compat import trainer
from tf_syncrep.python.keras.fit import checks, install

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


def test_the_coordinator_of_a_cluster_does_not_train_a_model_by_itself(monkeypatch):
    model = keras_variants.small_model()
    model.compile("sgd", loss="mse")
    arrays = fit_scenarios.WORDS, fit_scenarios.TARGETS
    monkeypatch.setattr(checks, "num_tasks", lambda job: 2)
    model.fit(*arrays, verbose=0)  # Nothing is installed.
    tfs.keras.install_fit()
    with pytest.raises(ValueError, match="must be made in the scope of the strategy"):
        model.fit(*arrays, verbose=0)
    model.predict(arrays[0], verbose=0)
    tfs.keras.uninstall_fit()
    model.fit(*arrays, verbose=0)


def test_arguments_are_those_of_keras_whatever_their_places(monkeypatch, caplog):
    """Keras 2 has some for its threads, in the places of others of ours."""

    def stock(
        self,
        x=None,
        steps=None,
        max_queue_size=10,
        workers=1,
        use_multiprocessing=False,
    ):
        raise AssertionError

    def ours(model, x=None, steps=None, prefetch_rows=False):
        return x, steps, prefetch_rows

    monkeypatch.setattr(install.api, "is_scheduled", lambda model: True)
    tfs.keras.install_fit()
    method = install._in_front_of(stock, ours)
    assert method("model", 1, 2) == (1, 2, False)
    assert "no effect" not in caplog.text
    assert method("model", 1, 2, 3, prefetch_rows=True) == (1, 2, True)
    assert "Model.stock: max_queue_size=3 has no effect" in caplog.text
    assert method("model", 1, workers=4, steps=2) == (1, 2, False)
    assert "Model.stock: workers=4 has no effect" in caplog.text
    with pytest.raises(TypeError, match="multiple values for argument 'x'"):
        method("model", 1, x=1)
    with pytest.raises(TypeError, match="unexpected keyword argument 'others'"):
        method("model", others=1)


@pytest.mark.ci
def test_models_without_parameter_servers_are_left_to_their_own_methods():
    words, targets = fit_scenarios.WORDS, fit_scenarios.TARGETS

    def results(owner):
        model = keras_variants.small_model()
        model.compile("sgd", loss="mse", metrics=["mae"])
        options = {"epochs": 2, "validation_data": (words, targets), "verbose": 0}
        data = fit_scenarios.dataset()
        history = owner.fit(model, data, steps_per_epoch=3, **options).history
        losses = owner.evaluate(model, words, targets, batch_size=5, verbose=0)
        return history, losses, owner.predict(model, words, verbose=0).tolist()

    expected = results(tf.keras.Model)
    assert results(tfs.keras) == expected
    tfs.keras.install_fit()
    assert results(tf.keras.Model) == expected


@pytest.mark.ci
def test_where_fit_calls_models_own_methods_auto_is_one_step_at_once():
    words, targets = fit_scenarios.WORDS, fit_scenarios.TARGETS
    model = keras_variants.small_model()
    model.compile("sgd", loss="mse", steps_per_execution="auto")
    for _ in range(2):
        tfs.keras.fit(model, words, targets, verbose=0)
        tfs.keras.evaluate(model, words, targets, verbose=0)
        tfs.keras.predict(model, words, verbose=0)
        assert trainer.steps_per_execution(model) == "auto"


def test_functions_are_data_under_parameter_servers_alone():
    model = keras_variants.small_model()
    model.compile("sgd", loss="mse")

    def train(context):
        raise AssertionError

    rule = r"is for ParameterServerStrategy. .*: x=function\(tf.* x=<function .*train"
    for call in (tfs.keras.fit, tfs.keras.evaluate, tfs.keras.predict):
        with pytest.raises(ValueError, match=rule):
            call(model, train)
    with pytest.raises(ValueError, match=rule.replace("x=", "validation_data=")):
        tfs.keras.fit(model, fit_scenarios.dataset(), validation_data=train)
