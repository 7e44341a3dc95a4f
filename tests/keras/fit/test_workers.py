"""tfs.keras.fit with several workers at once, on a cluster of real processes.

docs/fit.md has what a loop of scheduled steps loses without it.
"""

import gc
import os
import tempfile
import time
import weakref

import clusters
import fit_scenarios
import keras_variants
import numpy as np
import pytest
import sync_accounting
import tensorflow as tf
from compat import traced_functions
from keras_sync_replicas import make_strategy
from programs import error_of

import tf_syncrep as tfs

pytestmark = [
    pytest.mark.ci,
    pytest.mark.skipif(
        not keras_variants.IS_KERAS_3, reason="Keras 2 has a fit of its own there"
    ),
]

STEPS, BATCH = 60, 4
EXAMPLES = 12
REFUSALS = {
    "run_eagerly": "Steps that run on workers cannot run eagerly. Received: "
    "run_eagerly=True",
    "jit_compile": "XLA cannot compile steps whose variables are on parameter "
    "servers. Received: jit_compile=True",
    "steps_per_execution": 'steps_per_execution must be at least 1, or "auto". '
    "Received: steps_per_execution=0",
    "accumulation": "Keras 3 cannot accumulate gradients under "
    "ParameterServerStrategy. Received: gradient_accumulation_steps=2",
    "partitions": "Keras 3 cannot train variables in parts: make the strategy without "
    "variable_partitioner, or use tf_keras (TF_USE_LEGACY_KERAS=1). Received: ",
    "made_outside": "The model must be made in the scope of the strategy. Received: "
    "variable ",
    "made_before": "`x` must be made after the strategy, which connects this process "
    "to the cluster: a dataset from before cannot be read any more. Received: a "
    "dataset on /job:localhost/",
    "made_before_for_steps": "`x` must be made after the strategy, ",
    "evaluate_made_before": "The model must be made in the scope of the strategy. "
    "Received: variable ",
    "predict_made_before": "The model must be made in the scope of the strategy. "
    "Received: variable ",
    "validation_made_before": "`validation_data` must be made after the strategy, ",
    "holds_a_dataset": "A step uses a tf.data.Dataset that the model, a metric or the "
    "loss holds. It is on the coordinator, and workers cannot read it: ",
    "optimizer_made_outside": "The optimizer must be made in the scope of the "
    "strategy. Received: ",
    "endless": "`x` has no end, and so `steps_per_epoch` must be given. Received: "
    "steps_per_epoch=None",
    "empty_validation": "`validation_data` must have a batch. Received: an empty "
    "dataset",
    "function_of_something_else": "A function given for x must return a "
    "tf.data.Dataset. Received: int",
    "dataset_made_outside": "A function given for x must make its dataset from the "
    "beginning, as it is made on each worker. Received: one that uses a dataset made "
    "outside of it",
    "no_steps": "`steps_per_epoch` must be a whole number of at least 1. Received: "
    "steps_per_epoch=0",
    "no_steps_of_evaluate": "`steps` must be a whole number of at least 1. Received: "
    "steps=0",
    "no_steps_of_predict": "`steps` must be a whole number of at least 1. Received: "
    "steps=-1",
    "empty": "`x` must have a batch. Received: an empty dataset",
    "empty_arrays": "`x` must have a batch. Received: an empty dataset",
    "all_made_outside": "The model must be made in the scope of the strategy, or it "
    "trains on the coordinator alone. Received: model ",
    "without_call": "A model without `call` needs a train_step of its own. Received: "
    "model ",
}


class Holding(tf.keras.metrics.Mean):
    """Counts the batches of a dataset that it holds in each step."""

    def __init__(self, dataset):
        super().__init__("holding")
        self.dataset = dataset

    def update_state(self, y_true, y_pred, sample_weight=None):
        del y_true, y_pred, sample_weight
        counted = self.dataset.reduce(0.0, lambda count, _: count + 1.0)
        return super().update_state(counted)


class Draw(tf.keras.layers.Layer):
    """Adds numbers of its seed generator, times zero; shows them as a metric."""

    def __init__(self):
        super().__init__()
        self.generator = tf.keras.random.SeedGenerator(3)
        self.drawn = None

    def call(self, inputs):
        self.drawn = tf.keras.random.uniform((), seed=self.generator, dtype="float32")
        return inputs + 0.0 * self.drawn


class Counting(tf.keras.Model):
    """Puts the drawn numbers into its logs, and counts examples in a metric."""

    def __init__(self):
        super().__init__()
        self.inner = tf.keras.Sequential([Draw(), tf.keras.layers.Dense(1)])
        self.examples = tf.keras.metrics.Sum(name="examples")
        self.one = tf.keras.metrics.Mean(name="one")

    def call(self, x):
        return self.inner(x)

    def train_step(self, data):
        logs = super().train_step(data)
        self.examples.update_state(data[0][:, 0])  # pyright: ignore
        self.one.update_state(1.0)
        logs = {metric.name: metric.result() for metric in self.metrics[:1]}
        return {**logs, "drawn": self.inner.layers[0].drawn}


def dataset(context=None):
    del context
    return tf.data.Dataset.from_tensors((tf.ones([BATCH, 2]), tf.ones([BATCH, 1])))


def small_model(strategy):
    with strategy.scope():
        model = keras_variants.small_model()
        model.compile(loss="mse", optimizer="sgd")
    return model


def counts(strategy):
    """The results of all counters, for several trainings."""
    adam, adam_async = tf.keras.optimizers.Adam, tfs.keras.AdamAsync
    steps = {"steps_per_epoch": STEPS}

    def of_three():
        return tfs.keras.SyncReplicas(adam(), 2, 3)

    trainings = {
        "dataset": (adam, 1, dataset(), steps),
        "function_and_executions": (adam_async, 7, dataset, steps),
        "finite": (adam, 1, dataset().repeat(STEPS), {}),
        "synchronous": (of_three, 1, dataset(), steps),
    }
    result = {}
    for name, (make_optimizer, per_execution, data, options) in trainings.items():
        with strategy.scope():
            model = Counting()
            model.compile(
                make_optimizer(), loss="mse", steps_per_execution=per_execution
            )
        draws = set()
        collect = tf.keras.callbacks.LambdaCallback(
            on_train_batch_end=lambda _, logs, draws=draws: draws.add(logs["drawn"])
        )
        tfs.keras.fit(model, data, verbose=0, callbacks=[collect], **options)
        optimizer = model.optimizer
        result[name] = {
            "iterations": int(optimizer.iterations.numpy()),
            "stats": optimizer.stats() if name == "synchronous" else None,
            "examples": float(model.examples.result()),
            "one": float(model.one.result()),
            "one_count": float(model.one.variables[1].numpy()),
            "draws": int(model.inner.layers[0].generator.state.numpy()[1]),
            "different_draws": len(draws),
        }
    return result


def functions_of_second_evaluations(strategy):
    model = small_model(strategy)
    words, targets = fit_scenarios.WORDS, fit_scenarios.TARGETS
    tfs.keras.evaluate(model, words, targets, batch_size=5, verbose=0)
    tfs.keras.predict(model, words, batch_size=5, verbose=0)
    with traced_functions() as traced:
        tfs.keras.evaluate(model, words[::-1], targets, batch_size=5, verbose=0)
        tfs.keras.predict(model, words[::-1], batch_size=5, verbose=0)
    return len(traced)


def kept_after_fit(strategy):
    """Of which data something is left when `fit` has ended and nobody else holds it."""
    model = small_model(strategy)
    numbers = fit_scenarios.WORDS, fit_scenarios.TARGETS
    makes = {
        "arrays": (lambda: numbers[0].copy(), {"y": numbers[1]}),
        "sent": (fit_scenarios.dataset, {}),
        "same": (lambda: fit_scenarios.dataset().repeat(), {"steps_per_epoch": 5}),
        "function": (lambda: lambda _: fit_scenarios.dataset(), {}),
        "steps": (lambda: lambda _: fit_scenarios.dataset(), {"steps_per_epoch": 5}),
    }
    kept = []
    for name, (make, options) in makes.items():
        data = make()
        tfs.keras.fit(model, data, verbose=0, validation_data=numbers, **options)
        left = weakref.ref(data)
        del data
        gc.collect()
        kept += [name] if left() is not None else []
    return kept


class Watch(tf.keras.callbacks.Callback):
    """Notes what it was told of batches and the end; may fail after five batches."""

    def __init__(self, raises):
        super().__init__()
        self.raises, self.has_ended = raises, False

    def on_train_batch_end(self, batch, logs=None):
        if batch == 5 and self.raises:
            raise RuntimeError("raised in a callback")

    def on_train_end(self, logs=None):
        self.has_ended = True


def failures(strategy):
    """The error that fit raises; the same model trains afterwards."""

    class Broken(tf.keras.layers.Layer):
        def call(self, x, training=False):
            x = tf.cast(x, tf.float32)
            message = "this step divides by zero"
            return tf.debugging.check_numerics(x / 0.0, message) if training else x

    model = small_model(strategy)
    with strategy.scope():
        broken = tf.keras.Sequential([Broken(), tf.keras.layers.Dense(1)])
        broken.compile(loss="mse", optimizer="sgd")
    good = fit_scenarios.dataset()

    def check(words, y):
        tf.debugging.assert_less(words, 0, message="these words are too large")
        return words, y

    bad, steps = good.concatenate(good.map(check)), {"steps_per_epoch": 50}
    attempts = {
        "step": (broken, good, steps),
        "data_of_workers": (model, bad, steps),
        "sent_data": (model, bad, {}),
        "callback": (model, good, steps),
    }
    result = {}
    for name, (tried, data, options) in attempts.items():
        watch = Watch(raises=name == "callback")
        started, options = time.monotonic(), {**options, "callbacks": [watch]}
        raised = error_of(tfs.keras.fit, tried, data, verbose=0, **options)
        seconds = time.monotonic() - started
        before = int(model.optimizer.iterations.numpy())
        tfs.keras.fit(model, good, steps_per_epoch=20, verbose=0)
        result[name] = {
            "raised": raised,
            "seconds": seconds,
            "has_ended": watch.has_ended,
            "steps_of_second_fit": int(model.optimizer.iterations.numpy()) - before,
        }
    return result


def reading_ahead_without_end(strategy):
    """The steps of two fits; a worker reads for the first when the second one ends.

    Nothing can end the read of a pipe that nobody has opened for writing.
    """
    folder = tempfile.TemporaryDirectory()
    pipe = os.path.join(folder.name, "pipe")
    os.mkfifo(pipe)

    def numbers(rest=None):
        lines = tf.data.Dataset.from_tensors("1")
        if rest:
            lines = lines.concatenate(tf.data.TextLineDataset(rest))
        lines = lines.map(lambda line: tf.strings.to_number(line)[None, None])
        return tf.data.Dataset.zip((lines, lines)).prefetch(1)

    with strategy.scope():
        model = tf.keras.Sequential([tf.keras.Input([1]), tf.keras.layers.Dense(1)])
        model.compile(loss="mse", optimizer="sgd")
    tfs.keras.fit(model, lambda _: numbers(pipe), steps_per_epoch=1, verbose=0)
    gc.collect()
    tfs.keras.fit(model, lambda _: numbers().repeat(10), verbose=0)
    # It would raise if nobody read.
    os.close(os.open(pipe, os.O_WRONLY | os.O_NONBLOCK))
    return int(model.optimizer.iterations.numpy())


class Reading(tf.keras.Model):
    """Puts which worker has read what into its logs."""

    def __init__(self):
        super().__init__()
        self.dense = tf.keras.layers.Dense(1)

    def call(self, x):
        return self.dense(tf.cast(x[:, None], tf.float32))

    def train_step(self, data):
        example, worker, pipeline = data  # pyright: ignore
        self(example)
        return {"read": tf.stack([example[0], worker, pipeline])}  # pyright: ignore


def readers(strategy):
    """Which workers have read which examples, for several input pipelines."""

    def is_wanted(example):
        is_small = False
        if example < EXAMPLES:  # A branch on a tensor, for AutoGraph.
            is_small = True
        return is_small

    def by_shard(context):
        worker = tf.distribute.coordinator.experimental_get_current_worker_index()
        pipeline = int(context.input_pipeline_id)
        examples = tf.data.Dataset.range(2 * EXAMPLES).filter(is_wanted)
        examples = examples.shard(context.num_input_pipelines, pipeline)
        return examples.batch(1).map(
            lambda example: (example, worker, tf.constant(pipeline, tf.int64))
        )

    found = set()

    def stop_when_all_are_read(_, logs):
        found.add(tuple(map(int, logs["read"])))
        model.stop_training = len({example for example, *_ in found}) == EXAMPLES

    with strategy.scope():
        model = Reading()
        model.compile(optimizer=None)
    stop = tf.keras.callbacks.LambdaCallback(on_train_batch_end=stop_when_all_are_read)
    tfs.keras.fit(model, by_shard, steps_per_epoch=100_000, verbose=0, callbacks=[stop])
    return sorted(found)


def refusals(strategy, made_before, model_before):
    """The message for each unsupported use."""
    good = fit_scenarios.dataset()

    def compiled(strategy=strategy, make=keras_variants.small_model, **options):
        with strategy.scope():
            model = make()
            optimizer = options.pop("optimizer", tf.keras.optimizers.SGD)()
            model.compile(optimizer, loss="mse", **options)
        return model

    def made_outside():
        model = keras_variants.small_model()
        with strategy.scope():
            outer = tf.keras.Sequential([model])
            outer.compile(tf.keras.optimizers.SGD(), loss="mse")
        return outer

    def nothing(_):
        return fit_scenarios.dataset().filter(lambda *_: False)

    def outside():
        model = keras_variants.small_model()
        model.compile(tf.keras.optimizers.SGD(), loss="mse")
        return model

    def built():
        model = compiled()
        tfs.keras.fit(model, good, verbose=0)
        return model

    def largest(**options):
        with strategy.scope():
            return fit_scenarios.Largest(**options)

    def accumulating():
        return tf.keras.optimizers.SGD(gradient_accumulation_steps=2)

    outer = tf.keras.optimizers.SGD()
    words, one_step = fit_scenarios.WORDS, {"steps_per_epoch": 1}
    cases = {
        "run_eagerly": (lambda: compiled(run_eagerly=True), good),
        "jit_compile": (lambda: compiled(jit_compile=True), good),
        "steps_per_execution": (lambda: compiled(steps_per_execution=0), good),
        "accumulation": (lambda: compiled(optimizer=accumulating), good),
        "partitions": (lambda: compiled(make_strategy(num_parts=2)), good),
        "made_outside": (made_outside, good),
        "made_before": (compiled, made_before),
        "made_before_for_steps": (compiled, made_before, one_step),
        "validation_made_before": (compiled, good, {"validation_data": made_before}),
        "holds_a_dataset": (lambda: compiled(metrics=[Holding(good)]), good),
        "optimizer_made_outside": (lambda: compiled(optimizer=lambda: outer), good),
        "endless": (compiled, good.repeat()),
        "empty_validation": (compiled, good, {"validation_data": good.take(0)}),
        "function_of_something_else": (compiled, lambda _: 3, one_step),
        "dataset_made_outside": (compiled, lambda _: good.map(lambda *x: x)),
        "no_steps": (compiled, good, {"steps_per_epoch": 0}),
        "empty": (compiled, good.take(0)),
        "empty_on_workers": (compiled, nothing, one_step),
        "empty_for_a_built_model": (built, nothing, one_step),
        "empty_arrays": (compiled, words[:0], {"y": np.ones([0])}),
        "all_made_outside": (outside, good),
        "without_call": (lambda: compiled(make=tf.keras.Model), good),
        "no_sum": (lambda: compiled(metrics=[largest(aggregation="sum")]), good),
        "said_to_be_no_sum": (lambda: compiled(metrics=[largest()]), good),
    }

    def fit(make, data, options=None):
        tfs.keras.fit(make(), data, verbose=0, **(options or {}))

    return {
        **{name: error_of(fit, *case) for name, case in cases.items()},
        "evaluate_made_before": error_of(tfs.keras.evaluate, model_before, good),
        "predict_made_before": error_of(tfs.keras.predict, model_before, good),
        "no_steps_of_evaluate": error_of(tfs.keras.evaluate, compiled(), good, steps=0),
        "no_steps_of_predict": error_of(tfs.keras.predict, compiled(), good, steps=-1),
    }


def trainings():
    made_before, model_before = fit_scenarios.dataset(), keras_variants.small_model()
    model_before.compile(tf.keras.optimizers.SGD(), loss="mse")
    strategy = make_strategy()
    return {
        "counts": counts(strategy),
        "second evaluations": functions_of_second_evaluations(strategy),
        "failures": failures(strategy),
        "readers": readers(strategy),
        "refusals": refusals(strategy, made_before, model_before),
        "kept": kept_after_fit(strategy),
        "reading ahead": reading_ahead_without_end(strategy),
    }


@pytest.fixture(scope="module")
def training():
    return clusters.call(trainings, num_workers=3)


@pytest.mark.parametrize(
    "name", ["dataset", "function_and_executions", "finite", "synchronous"]
)
def test_every_step_of_every_worker_counts_once(training, name):
    counts = training["counts"][name]
    assert counts["examples"] == STEPS * BATCH
    assert counts["one"] == 1.0
    assert counts["one_count"] == STEPS
    # None is for the trace that built the model, whose step is separate.
    assert counts["draws"] == STEPS
    if name != "synchronous":
        assert counts["iterations"] == STEPS


def test_synchronous_training_counts_every_update_once(training):
    counts = training["counts"]["synchronous"]
    stats = counts["stats"]
    sync_accounting.assert_identities(stats)
    assert stats["applied"] + stats["late"] + stats["stale"] == STEPS
    # All updates but the last have two gradients.
    assert counts["iterations"] == stats["updates"] == -(-stats["applied"] // 2)


@pytest.mark.parametrize("name", ["dataset", "finite", "synchronous"])
def test_no_two_steps_draw_the_same_random_numbers(training, name):
    assert training["counts"][name]["different_draws"] == STEPS


def test_evaluating_and_predicting_again_sends_no_functions_to_tasks(training):
    """Each task would have to answer, a busy or hung one too, before it goes on."""
    assert training["second evaluations"] == 0


@pytest.mark.parametrize(
    ("place", "message"),
    [
        ("step", "this step divides by zero"),
        ("data_of_workers", "these words are too large"),
        ("sent_data", "these words are too large"),
        ("callback", "RuntimeError: raised in a callback"),
    ],
)
def test_fit_raises_what_failed_and_the_next_fit_works(training, place, message):
    failure = training["failures"][place]
    assert message in failure["raised"]
    assert failure["seconds"] < 60
    assert failure["steps_of_second_fit"] == 20
    assert not failure["has_ended"]


@pytest.mark.parametrize("what", REFUSALS)
def test_what_cannot_be_is_refused_in_one_sentence(training, what):
    assert training["refusals"][what].startswith(f"ValueError: {REFUSALS[what]}")


@pytest.mark.parametrize(
    ("what", "message"),
    [
        # Whichever worker is the first to begin.
        ("empty_on_workers", "There are no batches: the dataset of worker "),
        ("empty_for_a_built_model", "There are no batches: the dataset of worker "),
        ("no_sum", "Received: metric largest, whose update does."),
        ("said_to_be_no_sum", "Received: metric largest, a variable of which has"),
    ],
)
def test_what_a_step_finds_out_is_told_in_one_sentence(training, what, message):
    assert message in training["refusals"][what]


def test_fit_keeps_no_data(training):
    assert training["kept"] == []


def test_data_of_an_earlier_fit_that_cannot_end_holds_up_nothing(training):
    assert training["reading ahead"] == 1 + 3 * 10


def test_every_example_is_read_by_the_one_worker_whose_shard_it_is_in(training):
    read = training["readers"]
    assert sorted(example for example, _, _ in read) == list(range(12))
    assert all(worker == pipeline == example % 3 for example, worker, pipeline in read)
