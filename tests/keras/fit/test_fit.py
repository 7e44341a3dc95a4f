"""tfs.keras.fit on a cluster of real processes, beside Model.fit in one process.

With one worker the steps are the same, in the same order, so that everything visible of
a training must be equal.
"""

import contextlib
import dataclasses
import importlib.util
import itertools
import json
import logging
import traceback
from collections.abc import Callable
from typing import Any

import clusters
import fit_data
import fit_scenarios
import keras_sync_replicas
import keras_variants
import numpy as np
import programs
import pytest
import tensorflow as tf

import tf_syncrep as tfs

# What is read in another way for Keras 2 runs there by day, and all of it by night:
# what follows a batch is the same.
DATA_OF_KERAS_2 = {
    f"data: {kind}"
    for kind in (
        "arrays",
        "arrays, class weights",
        "arrays, batches by steps",
        "ragged, split",
        "PyDataset",
        "generator with weights of classes",
        "generator with an end",
        "dataset, validated by a list",
    )
}
# These ask little of Keras, and take long.
WITH_KERAS_2_BY_NIGHT = {
    "executions_of_several_steps_have_the_bits_of_single_ones",
    "executions_of_a_size_found_and_of_a_large_one_have_these_bits_too",
    "layers_with_state_and_losses",
    "metrics_of_all_kinds_of_a_dataset_of_unknown_length",
    "numbers_of_numpy",
    "optimizer_with_all_options_and_steps_per_epoch",
}
# Some of each topic, which take seconds.
IN_MAKE_TEST = {
    "every_batch_once",
    "several_steps_per_execution",
    "calls_of_callbacks_that_change_rates_and_stop",
    "sample_weights_and_a_metric_that_is_no_sum",
    "two_networks_with_a_train_step_but_no_call_or_optimizer",
    "data: arrays",
    "data: generator",
    "data: sizes that differ",
}


@dataclasses.dataclass
class Side:
    """One of the two sides: without a strategy, or in the scope of one."""

    scope: Callable[[], Any]
    is_stock: bool

    # The methods of the class are those at the time of the call.

    def fit(self, model, *args, **options):
        return tf.keras.Model.fit(model, *args, **options)

    def evaluate(self, model, *args, **options):
        return tf.keras.Model.evaluate(model, *args, **options)

    def predict(self, model, *args, **options):
        return tf.keras.Model.predict(model, *args, **options)

    def compiled(self, make=keras_variants.small_model, **options):
        with self.scope():
            tf.keras.utils.set_random_seed(1)
            model = make()
            make_optimizer = options.pop("make_optimizer", tf.keras.optimizers.Adam)
            options.setdefault("optimizer", make_optimizer(0.05))
            options.setdefault("loss", "mse")
            options.setdefault("metrics", ["mae"])
            # What is expected is computed without functions, whose traces take longer.
            options.setdefault("run_eagerly", self.is_stock)
            model.compile(**options)
        return model

    def trained(self, model, data=None, **options):
        data = fit_scenarios.dataset() if data is None else data
        history = self.fit(model, data, **{"epochs": 2, "verbose": 0, **options})
        return {
            "history": history.history,
            "epochs": history.epoch,
            "params": history.params,
            "iterations": int(model.optimizer.iterations.numpy()),
            "weights": [float(np.sum(x)) for x in model.get_weights()],
        }


def outcome(scenario, side):
    """The result of a scenario, converted by JSON; or its error."""
    try:
        return json.loads(json.dumps(scenario(side), default=float))
    except Exception:
        return {"failed": traceback.format_exc()}


def run(names):
    """The outcomes of scenarios on both sides; and of one without `install_fit`."""
    stock = Side(contextlib.nullcontext, is_stock=True)
    ours = Side(keras_sync_replicas.make_strategy().scope, is_stock=False)
    said = outcome(fit_scenarios.every_batch_once, ours)
    scenarios = fit_scenarios.SCENARIOS
    # Once it is installed, models outside the scope are refused.
    expected = {name: outcome(scenarios[name], stock) for name in names}
    tfs.keras.install_fit()
    results = {
        name: {"expected": x, "actual": outcome(scenarios[name], ours)}
        for name, x in expected.items()
    }
    return {**results, "before install_fit": said}


def when(scenario):
    """The marks of a scenario's test."""
    kind = scenario.removeprefix("data: ")
    if package := fit_data.package_for(kind):
        # By night all of them but torch are installed, which is large.
        is_missing = importlib.util.find_spec(package) is None
        reason = f"{package} is not installed"
        return [pytest.mark.slow, pytest.mark.skipif(is_missing, reason=reason)]
    if keras_variants.IS_KERAS_3:
        by_day = True
    elif kind in fit_data.KINDS:
        by_day = scenario in DATA_OF_KERAS_2 or kind in fit_data.REFUSED
    else:
        by_day = scenario not in WITH_KERAS_2_BY_NIGHT
    if not by_day:
        return pytest.mark.slow
    return () if scenario in IN_MAKE_TEST else pytest.mark.ci


@pytest.fixture(scope="module")
def outcomes(request):
    names = programs.wanted(request, "scenario")
    with clusters.Cluster(num_workers=1, num_ps=2) as cluster:
        env = cluster.environment()
        # No program may run for minutes.
        parts = [programs.call(run, names[i::2], env=env) for i in range(2)]
    return dict(itertools.chain.from_iterable(part.items() for part in parts))


def assert_same(actual, expected, where):
    """Compares values that JSON can hold; numbers up to rounding."""
    if isinstance(expected, dict):
        assert list(actual) == list(expected), where
        for key, value in expected.items():
            assert_same(actual[key], value, f"{where}.{key}")
    elif isinstance(expected, list):
        assert len(actual) == len(expected), f"{where}: {actual} not {expected}"
        for i, value in enumerate(expected):
            assert_same(actual[i], value, f"{where}[{i}]")
    elif isinstance(expected, float):
        np.testing.assert_allclose(
            actual, expected, rtol=1e-4, atol=1e-6, err_msg=where
        )
    else:
        assert actual == expected, where


def assert_as_model_fit_does(outcomes, scenario):
    expected, actual = outcomes[scenario]["expected"], outcomes[scenario]["actual"]
    assert "failed" not in expected, expected["failed"]
    assert "failed" not in actual, actual["failed"]
    assert_same(actual, expected, scenario)


@pytest.mark.parametrize(
    "scenario",
    [pytest.param(name, marks=when(name)) for name in fit_scenarios.SCENARIOS],
)
def test_one_worker_does_what_model_fit_does(outcomes, scenario):
    assert_as_model_fit_does(outcomes, scenario)


@pytest.mark.skipif(
    not keras_variants.IS_KERAS_3, reason="fit of Keras 2 itself runs there"
)
def test_fit_of_keras_3_names_what_makes_it_run(outcomes):
    said = outcomes["before install_fit"]["failed"]
    assert "Call tfs.keras.install_fit() before" in said


class _Keeps(logging.Handler):
    """Keeps what is logged."""

    def __init__(self):
        super().__init__()
        self.said = []

    def emit(self, record):
        self.said.append(record.getMessage())


def what_tensorflow_says_of_first_steps():
    """The messages of TensorFlow's logger."""
    heard = _Keeps()
    logging.getLogger("tensorflow").addHandler(heard)
    with keras_sync_replicas.make_strategy().scope():
        model = tf.keras.Sequential([tf.keras.layers.Dense(1)])
        model.compile(tfs.keras.AdamAsync(0.05), loss="mse")
    x, y = np.ones([20, 2], np.float32), np.ones([20, 1], np.float32)
    tfs.keras.fit(model, x, y, batch_size=4, verbose=0)
    tfs.keras.evaluate(model, x, y, batch_size=4, verbose=0)
    tfs.keras.predict(model, x, batch_size=4, verbose=0)
    return heard.said


@pytest.mark.ci
def test_first_steps_make_tensorflow_say_nothing():
    assert not clusters.call(
        what_tensorflow_says_of_first_steps, num_workers=1, num_ps=1
    )


def what_is_logged_of_a_missing_file(path):
    """The lines of TensorFlow's logger before the error, and the error's type."""
    heard = _Keeps()
    logging.getLogger("tensorflow").addHandler(heard)
    with keras_sync_replicas.make_strategy().scope():
        model = keras_variants.small_model()
        model.compile(tfs.keras.AdamAsync(0.05), loss="mse")

    def read(context):
        # It is not read to build the model.
        there = fit_scenarios.dataset()
        missing = tf.data.TextLineDataset(path).flat_map(lambda _: there)
        return there.concatenate(missing)

    try:
        tfs.keras.fit(model, read, steps_per_epoch=100, verbose=0)
    except tf.errors.NotFoundError:
        return "\n".join(heard.said).splitlines()


@pytest.mark.ci
def test_a_missing_file_is_few_lines_of_the_log(tmp_path):
    path = str(tmp_path / "missing")
    lines = clusters.call(
        what_is_logged_of_a_missing_file, path, num_workers=1, num_ps=1
    )
    assert any(f"{path}; No such file" in line for line in lines)
    # Twice the error, which TensorFlow may put together from those of several ops.
    assert len(lines) < 40, "\n".join(lines)
