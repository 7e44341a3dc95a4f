"""Trains by `tfs.keras.fit` on three workers; reports counts and errors."""

import tempfile
import time
import types
from unittest import mock

import fit_scenarios
import keras_variants
import numpy as np
import programs
import tensorflow as tf
from absl import logging
from keras_sync_replicas import make_strategy
from traced_functions import traced_functions

import tf_syncrep as tfs

STEPS = 60
EXAMPLES = 12
BATCH = 4


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


def counts(strategy):
    """The results of all counters, for several trainings."""
    adam, adam_async = tf.keras.optimizers.Adam, tfs.keras.AdamAsync
    steps = {"steps_per_epoch": STEPS}
    trainings = {
        "dataset": (adam, 1, dataset(), steps),
        "function_and_executions": (adam_async, 7, dataset, steps),
        "finite": (adam, 1, dataset().repeat(STEPS), {}),
        "synchronous": (
            lambda: tfs.keras.SyncReplicas(adam(), 2, 3),
            1,
            dataset(),
            steps,
        ),
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


def evaluation(strategy):
    with strategy.scope():
        model = keras_variants.small_model()
        model.compile(loss="mse", optimizer="sgd", metrics=["mae"])
    words, targets = fit_scenarios.WORDS, fit_scenarios.TARGETS
    errors = model(words).numpy() - targets
    results = tfs.keras.evaluate(model, words, targets, batch_size=5, verbose=0)
    tfs.keras.predict(model, words, batch_size=5, verbose=0)
    with traced_functions() as traced:
        tfs.keras.evaluate(model, words[::-1], targets, batch_size=5, verbose=0)
        tfs.keras.predict(model, words[::-1], batch_size=5, verbose=0)
    return {
        "expected": [float(np.mean(errors**2)), float(np.mean(np.abs(errors)))],
        "actual": results,
        "functions of second calls": len(traced),
    }


class Watch(tf.keras.callbacks.Callback):
    """Notes what it was told of batches and the end; may fail after five batches."""

    def __init__(self, raises):
        super().__init__()
        self.raises, self.has_ended = raises, False
        self.num_batches = 0

    def on_train_batch_end(self, batch, logs=None):
        self.num_batches += 1
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

    with strategy.scope():
        model = keras_variants.small_model()
        model.compile(loss="mse", optimizer="sgd")
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
        started, raised = time.monotonic(), None
        try:
            tfs.keras.fit(tried, data, verbose=0, callbacks=[watch], **options)
        except Exception as error:
            raised = f"{type(error).__name__}: {error}"
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

    def by_shard(context):
        worker = tf.distribute.coordinator.experimental_get_current_worker_index()
        pipeline = int(context.input_pipeline_id)
        examples = tf.data.Dataset.range(EXAMPLES)
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


def refusals(strategy):
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

    def synchronous(name="first"):
        return tfs.keras.SyncReplicas(tf.keras.optimizers.SGD(), 2, 3, name=name)

    def with_second():
        model = compiled(optimizer=synchronous)
        with strategy.scope():
            model.more = {"of a part": [synchronous("second")]}
        return model

    outer = tf.keras.optimizers.SGD()
    words, one_step = fit_scenarios.WORDS, {"steps_per_epoch": 1}
    cases = {
        "run_eagerly": (lambda: compiled(run_eagerly=True), good),
        "jit_compile": (lambda: compiled(jit_compile=True), good),
        "steps_per_execution": (lambda: compiled(steps_per_execution=0), good),
        "accumulation": (lambda: compiled(optimizer=accumulating), good),
        "two_synchronous": (with_second, good),
        "partitions": (lambda: compiled(make_strategy(num_parts=2)), good),
        "made_outside": (made_outside, good),
        "optimizer_made_outside": (lambda: compiled(optimizer=lambda: outer), good),
        "endless": (compiled, good.repeat()),
        "endless_validation": (compiled, good, {"validation_data": good.repeat()}),
        "empty_validation": (compiled, good, {"validation_data": good.take(0)}),
        "never_validated": (
            compiled,
            good,
            {"validation_data": good, "validation_freq": 0},
        ),
        "function_of_something_else": (compiled, lambda _: 3, one_step),
        "dataset_made_outside": (compiled, lambda _: good.map(lambda *x: x)),
        "no_steps": (compiled, good, {"steps_per_epoch": 0}),
        "empty": (compiled, good.take(0)),
        "empty_in_the_end": (compiled, good.filter(lambda *_: False)),
        "empty_on_workers": (compiled, nothing, one_step),
        "empty_for_a_built_model": (built, nothing, one_step),
        "empty_arrays": (compiled, words[:0], {"y": np.ones([0])}),
        "all_made_outside": (outside, good),
        "without_call": (lambda: compiled(make=tf.keras.Model), good),
        "no_sum": (lambda: compiled(metrics=[largest(aggregation="sum")]), good),
        "said_to_be_no_sum": (lambda: compiled(metrics=[largest()]), good),
    }
    result = {}
    for name, (make, data, *options) in cases.items():
        try:
            tfs.keras.fit(make(), data, verbose=0, **(options[0] if options else {}))
            result[name] = "no error"
        except Exception as error:
            result[name] = f"{type(error).__name__}: {error}"
    return result


def warnings_of_nan(strategy):
    """The lines of the log about the loss, in two epochs in which it becomes NaN."""
    with strategy.scope():
        model = keras_variants.small_model()
        model.compile(loss=lambda y, outputs: outputs * np.nan, optimizer="sgd")
    with mock.patch.object(logging, "warning") as warning:
        data = fit_scenarios.dataset()
        tfs.keras.fit(model, data, epochs=2, steps_per_epoch=20, verbose=0)
    lines = [call.args[0] % call.args[1:] for call in warning.call_args_list]
    return [line for line in lines if "loss" in line]


def board_without_its_package(strategy):
    """The error of TensorBoard, and how many steps were made before it."""
    with strategy.scope():
        model = keras_variants.small_model()
        model.compile(loss="mse", optimizer="sgd")
    watch, raised = Watch(raises=False), None
    # Without it there are no functions in this module.
    with mock.patch.object(tf, "summary", types.SimpleNamespace()):
        try:
            with tempfile.TemporaryDirectory() as folder:
                callbacks = [watch, tf.keras.callbacks.TensorBoard(folder)]
                data = fit_scenarios.dataset()
                tfs.keras.fit(model, data, verbose=0, callbacks=callbacks)
        except Exception as error:
            raised = f"{type(error).__name__}: {error}"
    return {
        "raised": raised,
        "batches": watch.num_batches,
        "iterations": int(model.optimizer.iterations.numpy()),
    }


def main():
    strategy = make_strategy()
    programs.report(
        {
            "counts": counts(strategy),
            "evaluation": evaluation(strategy),
            "failures": failures(strategy),
            "readers": readers(strategy),
            "refusals": refusals(strategy),
            "warnings of NaN": warnings_of_nan(strategy),
            "board": board_without_its_package(strategy),
        }
    )


if __name__ == "__main__":
    main()
