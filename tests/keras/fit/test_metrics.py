"""Every metric of Keras under tfs.keras.fit with two workers, beside one process."""

import inspect

import clusters
import keras_variants
import numpy as np
import programs
import pytest
import tensorflow as tf
from keras_sync_replicas import make_strategy
from keras_variants import Counter

import tf_syncrep as tfs

pytestmark = pytest.mark.ci

metrics = tf.keras.metrics
NUM_BATCHES, BATCH = 20, 8
# Values for parameters without a default.
ARGUMENTS = {
    "fn": lambda y_true, y_pred: tf.abs(y_true - y_pred),
    "name": "wrapped",
    "normalizer": [[1.0]],
    "num_classes": 3,
    "precision": 0.5,
    "recall": 0.5,
    "sensitivity": 0.5,
    "specificity": 0.5,
    "target_class_ids": [0],
}
# These are of the last batch alone, or random.
NOT_COMPARED = {"computed", "weight", "drawing", "drawn"}
# Steps of an execution: by day one for Keras 3, and several for Keras 2.
per_execution = pytest.mark.parametrize(
    "steps",
    [
        pytest.param(1, marks=() if keras_variants.IS_KERAS_3 else pytest.mark.slow),
        pytest.param(3, marks=pytest.mark.slow if keras_variants.IS_KERAS_3 else ()),
    ],
)


def batches():
    """Targets and predictions of some kinds, and the weights of examples."""
    rng = np.random.default_rng(3)
    size = NUM_BATCHES * BATCH
    classes = rng.integers(0, 3, size)
    scores = rng.dirichlet(np.ones(3), size).astype(np.float32)
    binary = rng.integers(0, 2, [size, 1]).astype(np.float32)
    chances = rng.uniform(0.01, 0.99, [size, 1]).astype(np.float32)
    ids = rng.integers(0, 3, [size, 1])
    data = {
        "binary": (binary, chances),
        "categorical": (np.eye(3, dtype=np.float32)[classes], scores),
        "ids": (ids, rng.integers(0, 3, [size, 1])),
        "sparse": (classes[:, None].astype(np.float32), scores),
        "values": (chances[:, 0],),
    }
    weights = rng.uniform(0.5, 2.0, size).astype(np.float32)
    return {"data": data, "weights": weights}


def dataset():
    return tf.data.Dataset.from_tensor_slices(batches()).batch(BATCH, True)


def all_metrics():
    """Each class of `tf.keras.metrics`, as an object, with its kind of data."""
    first = next(iter(dataset()))["data"]
    made = {}
    for name, kind in inspect.getmembers(metrics, inspect.isclass):
        if not issubclass(kind, metrics.Metric) or kind is metrics.Metric:
            continue
        if kind.__name__ != name or name in ("MeanMetricWrapper",):
            continue
        required = [
            parameter.name
            for parameter in inspect.signature(kind).parameters.values()
            if parameter.default is parameter.empty
            and parameter.kind is parameter.POSITIONAL_OR_KEYWORD
        ]
        arguments = {parameter: ARGUMENTS[parameter] for parameter in required}
        takes_values = "values" in inspect.signature(kind.update_state).parameters
        kinds = ["binary", "categorical", "sparse", "ids"]
        for data in ["values"] if takes_values else kinds:
            metric = kind(**{**arguments, "name": name})
            try:
                metric.update_state(*first[data])
                if np.all(np.isfinite(metric.result())):
                    break
            except Exception:
                continue
        else:
            raise AssertionError(f"{name} takes none of the data here")
        metric.reset_state()
        made[name] = (metric, data)
    return made


class Drawing(metrics.Sum):
    """Adds a random number for each batch, and shows the last one."""

    def __init__(self):
        super().__init__(name="drawing")
        self.generator = self.drawn = None
        if keras_variants.IS_KERAS_3:
            self.generator = tf.keras.random.SeedGenerator(3)

    def update_state(self, values, sample_weight=None):
        del values, sample_weight
        if self.generator is None:
            self.drawn = tf.random.uniform(())
        else:
            self.drawn = tf.keras.random.uniform((), seed=self.generator)
        return super().update_state(self.drawn)


class InFunctions(metrics.Sum):
    """Is updated and read within functions that are not the model's methods."""

    def __init__(self):
        super().__init__(name="in_functions")
        self.function = tf.function(self.double)

    @tf.function
    def update_state(self, values, sample_weight=None):
        super().update_state(values)

    def result(self):
        is_large = tf.convert_to_tensor(self.total) > 1.0
        return tf.cond(is_large, lambda: self.total + 1.0, lambda: 0.0)

    def double(self, values):
        self.update_state(2.0 * values)

    def update(self, values):
        self.update_state(values)
        self.function(values)


class Measured(tf.keras.Model):
    """Updates metrics, optimizers in a dict and in a list in it, and a counter."""

    def __init__(self):
        super().__init__()
        self.measured = all_metrics()
        self.listed = [metric for metric, _ in self.measured.values()]
        self.one = metrics.Mean(name="one")
        self.drawing = Drawing()
        self.in_functions = InFunctions()
        self.counter = Counter()
        self.counter.build(None)
        self.counter.built = True
        self.networks = {k: tf.keras.layers.Dense(1) for k in ("a", "b")}
        sgd = tf.keras.optimizers.SGD
        self.opts = {"a": [sgd(0.01)], "b": sgd(0.01)}
        for name, network in self.networks.items():
            network.build([None, 3])
            self.optimizer_of(name).build(network.trainable_variables)

    def optimizer_of(self, name):
        (optimizer,) = tf.nest.flatten(self.opts[name])
        return optimizer

    def call(self, x):
        return x

    @tf.function
    def count(self, x):
        # This is in a function of its own, and happens twice.
        self.one.update_state(tf.ones_like(x))
        for _ in tf.range(2):
            self.one.update_state(tf.ones_like(x))

    def measure(self, batch):
        for metric, data in self.measured.values():
            metric.update_state(*batch["data"][data], sample_weight=batch["weights"])
        self.count(batch["weights"])
        self.drawing.update_state(batch["weights"])
        self.in_functions.update(batch["weights"])
        results = {metric.name: metric.result() for metric in self.listed}
        return {
            **results,
            "one": self.one.result(),
            "in_functions": self.in_functions.result(),
            "computed": 2 * self.one.result() + tf.reduce_max(batch["weights"]),
            "weight": tf.reduce_max(batch["weights"]),
            "drawing": self.drawing.result(),
            "drawn": self.drawing.drawn,
        }

    def train_step(self, data):
        x = self.counter(data["data"]["categorical"][1])  # pyright: ignore
        for name, network in self.networks.items():
            keras_variants.update(
                self.optimizer_of(name),
                network.trainable_variables,
                lambda network=network: tf.reduce_mean(network(x) ** 2),
            )
        return self.measure(data)

    def test_step(self, data):
        return self.measure(data)


def numbers(logs):
    return {name: np.asarray(value).tolist() for name, value in logs.items()}


class Seen(tf.keras.callbacks.Callback):
    """Notes results that only torn sums, or sums on servers, could have."""

    _supports_tf_logs = True

    def __init__(self, handle):
        super().__init__()
        self.handle, self.ones, self.differences = handle, set(), set()
        self.written, self.drawn = [], []

    def on_train_batch_end(self, batch, logs=None):
        self.drawn.append(float(logs["drawn"]))
        self.ones.add(float(logs["one"]))
        self.differences.add(round(float(logs["computed"] - logs["weight"]), 5))
        value = tf.raw_ops.ReadVariableOp(resource=self.handle, dtype=tf.float32)
        self.written.append(float(value))


def in_one_process():
    model = Measured()
    for batch in dataset():
        logs = model.measure(batch)
    return numbers(logs)


def on_workers(strategy, steps_per_execution):
    with strategy.scope():
        model = Measured()
        model.compile(optimizer="sgd", steps_per_execution=steps_per_execution)
    seen = Seen(keras_variants.native(model.one.variables[1]).handle)
    history = tfs.keras.fit(model, dataset(), epochs=2, verbose=0, callbacks=[seen])
    fitted = {name: values[-1] for name, values in history.history.items()}
    evaluated = tfs.keras.evaluate(model, dataset(), verbose=0, return_dict=True)
    return {
        "fit": numbers(fitted),
        "evaluate": numbers(evaluated),
        "afterwards": numbers({m.name: m.result() for m in model.listed}),
        "ones": sorted(seen.ones),
        "differences": sorted(seen.differences),
        "written": sorted({*seen.written}),
        "iterations": [
            int(keras_variants.native(model.optimizer_of(name).iterations).numpy())
            for name in model.opts
        ],
        "drawn": seen.drawn,
        "draws": (
            int(keras_variants.native(model.drawing.generator.state).numpy()[1])
            if keras_variants.IS_KERAS_3
            else None
        ),
        "counted": float(keras_variants.native(model.counter.counted).numpy()),
    }


def measured(per_execution):
    """The results with these numbers of steps of an execution, and of one process."""
    strategy = make_strategy()
    return {
        "expected": in_one_process(),
        "actual": {size: on_workers(strategy, size) for size in per_execution},
    }


@pytest.fixture(scope="module")
def outcome(request):
    steps = programs.wanted(request, "steps")
    return clusters.call(measured, steps)


@per_execution
@pytest.mark.parametrize("what", ["fit", "evaluate", "afterwards"])
def test_every_metric_is_what_one_process_computes(outcome, what, steps):
    expected, actual = outcome["expected"], outcome["actual"][str(steps)]
    assert len(expected) > 35
    # Values of the last batch alone do not come from metrics.
    not_listed = {"one", "in_functions", *NOT_COMPARED}
    assert expected.keys() - actual[what].keys() <= not_listed
    for name in actual[what].keys() - NOT_COMPARED:
        np.testing.assert_allclose(
            actual[what][name], expected[name], rtol=2e-5, err_msg=name
        )


@per_execution
def test_what_batches_show_is_never_torn_and_nothing_is_written_on_servers(
    outcome, steps
):
    actual = outcome["actual"][str(steps)]
    assert actual["ones"] == [1.0]
    assert actual["differences"] == [2.0]
    assert actual["written"] == [0.0]


@per_execution
def test_optimizers_in_dicts_and_lists_and_counters_of_layers_count_every_step(
    outcome, steps
):
    actual = outcome["actual"][str(steps)]
    assert actual["iterations"] == [2 * NUM_BATCHES] * 2
    assert actual["counted"] == 2 * NUM_BATCHES


@per_execution
def test_random_metric_adds_up_what_was_drawn_which_is_new_in_each_step(outcome, steps):
    actual = outcome["actual"][str(steps)]
    assert len(actual["drawn"]) == 2 * -(-NUM_BATCHES // steps)
    # Without a generator TensorFlow seeds an op at random, by a state of the process
    # that is inherited where one is forked, as these workers are.
    same = 0 if keras_variants.IS_KERAS_3 else len(actual["drawn"]) // 2
    assert len({*actual["drawn"]}) >= len(actual["drawn"]) - same
    if steps == 1:  # or callbacks see some of them
        in_last_epoch = sum(actual["drawn"][NUM_BATCHES:])
        np.testing.assert_allclose(actual["fit"]["drawing"], in_last_epoch, rtol=1e-5)
    if keras_variants.IS_KERAS_3:
        # In two epochs and the evaluation; the trace that builds the model draws none.
        assert actual["draws"] == 3 * NUM_BATCHES
