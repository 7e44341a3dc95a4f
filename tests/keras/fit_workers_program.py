"""Trains by `tfs.keras.fit` on several workers; reports what was counted and raised.

Argument: what to find out, the name of one of the functions in `main`.
"""

import json
import pathlib
import shutil
import sys
import tempfile
import time

import fit_scenarios
import keras_variants
import numpy as np
import programs
import tensorflow as tf

import tf_syncrep as tfs

STEPS = 150
EXAMPLES = 12
BATCH = 4


class Draw(tf.keras.layers.Layer):
    """Adds what its generator of seeds draws, times nothing; shows it as a metric."""

    def __init__(self):
        super().__init__()
        self.generator = tf.keras.random.SeedGenerator(3)
        self.drawn = None

    def call(self, inputs):
        self.drawn = tf.keras.random.uniform((), seed=self.generator, dtype="float32")
        return inputs + 0.0 * self.drawn


class Counting(tf.keras.Model):
    """Tells in its logs what was drawn, and counts examples in a metric."""

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


class Collect(tf.keras.callbacks.Callback):
    def __init__(self, name):
        super().__init__()
        self.name, self.values = name, []

    def on_train_batch_end(self, batch, logs=None):
        self.values.append(logs[self.name])


def dataset():
    return tf.data.Dataset.from_tensors((tf.ones([BATCH, 2]), tf.ones([BATCH, 1])))


def counting_model(strategy, optimizer="adam", **options):
    with strategy.scope():
        model = Counting()
        model.compile(tf.keras.optimizers.get(optimizer), loss="mse", **options)
    return model


def counts(strategy, make_optimizer, train):
    """What was counted of so many steps, by all that counts."""
    with strategy.scope():
        model = counting_model(strategy, make_optimizer())
    collect = Collect("drawn")
    train(model, collect)
    generator = model.inner.layers[0].generator
    optimizer = model.optimizer
    is_synchronous = isinstance(optimizer, tfs.keras.SyncReplicas)
    return {
        "iterations": int(optimizer.iterations.numpy()),
        "stats": optimizer.stats() if is_synchronous else None,
        "examples": float(model.examples.result()),
        "one": float(model.one.result()),
        "one_count": float(model.one.variables[1].numpy()),
        "draws": int(generator.state.numpy()[1]),
        "different_draws": len(set(collect.values)),
    }


def by_fit(model, collect):
    tfs.keras.fit(
        model, dataset(), steps_per_epoch=STEPS, verbose=0, callbacks=[collect]
    )


def by_fit_in_executions(model, collect):
    model.steps_per_execution = 7
    tfs.keras.fit(
        model, dataset(), steps_per_epoch=STEPS, verbose=0, callbacks=[collect]
    )


def by_fit_of_a_function(model, collect):
    def dataset_fn(context):
        assert isinstance(context, tf.distribute.InputContext)
        return dataset()

    tfs.keras.fit(
        model, dataset_fn, steps_per_epoch=STEPS, verbose=0, callbacks=[collect]
    )


def by_fit_of_finite_data(model, collect):
    data = dataset().repeat(STEPS)
    tfs.keras.fit(model, data, verbose=0, callbacks=[collect])


def by_fit_synchronously(model, collect):
    by_fit(model, collect)


def evaluation(strategy):
    """Each batch exactly once, whoever evaluates it."""
    with strategy.scope():
        model = keras_variants.small_model()
        model.compile(loss="mse", optimizer="sgd", metrics=["mae"])
    words, targets = fit_scenarios.WORDS, fit_scenarios.TARGETS
    errors = model(words).numpy() - targets
    return {
        "expected": [float(np.mean(errors**2)), float(np.mean(np.abs(errors)))],
        "actual": tfs.keras.evaluate(model, words, targets, batch_size=5, verbose=0),
    }


class Watch(tf.keras.callbacks.Callback):
    """Writes down what it is told; raises where it is told to."""

    def __init__(self, raise_in=None):
        super().__init__()
        self.calls, self.raise_in = [], raise_in

    def _note(self, name):
        self.calls.append(name)
        if name == self.raise_in:
            raise RuntimeError(f"raised in {name}")

    def on_train_begin(self, logs=None):
        self._note("begin")

    def on_train_batch_end(self, batch, logs=None):
        if batch == 5:
            self._note("batch")

    def on_test_begin(self, logs=None):
        self._note("test")

    def on_epoch_end(self, epoch, logs=None):
        self._note("epoch_end")

    def on_train_end(self, logs=None):
        self._note("end")


def failures(strategy):
    """What fit raises, and that the same model trains afterwards."""
    with strategy.scope():
        model = keras_variants.small_model()
        model.compile(loss="mse", optimizer="sgd")
    good = fit_scenarios.dataset()

    def check(words, y):
        tf.debugging.assert_less(words, 0, message="these words are too large")
        return words, y

    def bad(*_):
        good = fit_scenarios.dataset()
        return good.concatenate(good.map(check))

    class Broken(tf.keras.layers.Layer):
        def call(self, x, training=False):
            x = tf.cast(x, tf.float32)
            message = "this step divides by zero"
            return tf.debugging.check_numerics(x / 0.0, message) if training else x

    with strategy.scope():
        broken = tf.keras.Sequential([Broken(), tf.keras.layers.Dense(1)])
        broken.compile(loss="mse", optimizer="sgd")
    attempts = {
        "step": (broken, good, {"steps_per_epoch": 50}),
        "step_of_sent_data": (broken, good, {}),
        "data_of_workers": (model, bad(), {"steps_per_epoch": 50}),
        "data_of_a_function": (model, bad, {"steps_per_epoch": 50}),
        "sent_data": (model, bad(), {}),
        "begin": (model, good, {"steps_per_epoch": 50}),
        "batch": (model, good, {"steps_per_epoch": 50}),
        "epoch_end": (model, good, {"steps_per_epoch": 50}),
        "nothing": (model, good, {"steps_per_epoch": 50}),
    }
    result = {}
    for name, (tried, data, options) in attempts.items():
        watch = Watch(raise_in=name)
        started = time.monotonic()
        raised = None
        try:
            tfs.keras.fit(
                tried,
                data,
                verbose=0,
                callbacks=[watch],
                validation_data=good,
                **options,
            )
        except Exception as error:
            raised = f"{type(error).__name__}: {error}"
        seconds = time.monotonic() - started
        before = int(model.optimizer.iterations.numpy())
        again = tfs.keras.fit(model, good, steps_per_epoch=20, verbose=0)
        result[name] = {
            "raised": raised,
            "seconds": seconds,
            "calls": watch.calls,
            "loss_of_second_fit": again.history["loss"][0],
            "steps_of_second_fit": int(model.optimizer.iterations.numpy()) - before,
        }
    return result


class Unbuilt(tf.keras.Model):
    """Has a train step, and a layer that nobody has called."""

    def __init__(self):
        super().__init__()
        self.layer = tf.keras.layers.Dense(1)

    def train_step(self, data):
        return {}


class Reading(tf.keras.Model):
    """Tells in its logs which worker has read what."""

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
    """For each way to shard, which workers have read which examples."""
    folder = tempfile.mkdtemp()
    for number in range(EXAMPLES):
        pathlib.Path(folder, str(number)).write_text(str(number))

    def with_worker(dataset, context):
        worker = tf.distribute.coordinator.experimental_get_current_worker_index()
        pipeline = int(context.input_pipeline_id)
        assert context.num_input_pipelines == 3
        return dataset.batch(1).map(
            lambda example: (example, worker, tf.constant(pipeline, tf.int64))
        )

    def by_shard(context):
        examples = tf.data.Dataset.range(EXAMPLES)
        shard = context.num_input_pipelines, context.input_pipeline_id
        return with_worker(examples.shard(*shard), context)

    def by_files(context):
        files = tf.data.Dataset.list_files(f"{folder}/*", shuffle=False)
        files = files.shard(context.num_input_pipelines, context.input_pipeline_id)
        texts = files.map(tf.io.read_file)
        return with_worker(
            texts.map(lambda text: tf.strings.to_number(text, tf.int64)), context
        )

    def by_worker_index(context):
        worker = tf.distribute.coordinator.experimental_get_current_worker_index()
        examples = tf.data.Dataset.range(EXAMPLES).shard(3, worker)
        return with_worker(examples, context)

    class Stop(tf.keras.callbacks.Callback):
        def __init__(self):
            super().__init__()
            self.found = set()

        def on_train_batch_end(self, batch, logs=None):
            self.found.add(tuple(map(int, logs["read"])))  # pyright: ignore
            if len({example for example, *_ in self.found}) == EXAMPLES:
                self.model.stop_training = True

    result = {}
    for function in (by_shard, by_files, by_worker_index):
        with strategy.scope():
            model = Reading()
            model.compile(optimizer=None)
        stop = Stop()
        tfs.keras.fit(
            model, function, steps_per_epoch=100_000, verbose=0, callbacks=[stop]
        )
        result[function.__name__] = sorted(stop.found)
    shutil.rmtree(folder)
    return result


def refusals(strategy, partitioned):
    """The sentence for each thing that cannot be."""
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

    def optimizer_made_outside():
        optimizer = tf.keras.optimizers.SGD()
        return compiled(optimizer=lambda: optimizer)

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

    def largest():
        with strategy.scope():
            return fit_scenarios.Largest(aggregation="sum")

    def accumulating():
        return tf.keras.optimizers.SGD(gradient_accumulation_steps=2)

    cases = {
        "run_eagerly": lambda: tfs.keras.fit(compiled(run_eagerly=True), good),
        "jit_compile": lambda: tfs.keras.fit(compiled(jit_compile=True), good),
        "accumulation": lambda: tfs.keras.fit(compiled(optimizer=accumulating), good),
        "partitions": lambda: tfs.keras.fit(compiled(partitioned), good),
        "made_outside": lambda: tfs.keras.fit(made_outside(), good),
        "optimizer_made_outside": lambda: tfs.keras.fit(optimizer_made_outside(), good),
        "endless": lambda: tfs.keras.fit(compiled(), good.repeat()),
        "endless_validation": lambda: tfs.keras.fit(
            compiled(), good, validation_data=good.repeat(), verbose=0
        ),
        "function_without_steps": lambda: tfs.keras.fit(compiled(), lambda _: good),
        "function_of_something_else": lambda: tfs.keras.fit(
            compiled(), lambda _: 3, steps_per_epoch=1
        ),
        "no_data": lambda: tfs.keras.fit(compiled(), iter([1])),
        "targets_beside": lambda: tfs.keras.fit(compiled(), good, [1.0]),
        "no_steps": lambda: tfs.keras.fit(compiled(), good, steps_per_epoch=0),
        "class_weight": lambda: tfs.keras.fit(compiled(), good, class_weight={-1: 1.0}),
        "empty": lambda: tfs.keras.fit(compiled(), good.take(0)),
        "empty_in_the_end": lambda: tfs.keras.fit(
            compiled(), good.filter(lambda *_: False), verbose=0
        ),
        "empty_on_workers": lambda: tfs.keras.fit(
            compiled(), nothing, steps_per_epoch=1, verbose=0
        ),
        "empty_for_a_built_model": lambda: tfs.keras.fit(
            built(), nothing, steps_per_epoch=1, verbose=0
        ),
        "empty_arrays": lambda: tfs.keras.fit(
            compiled(), np.ones([0, 3], int), np.ones([0])
        ),
        "all_made_outside": lambda: tfs.keras.fit(outside(), good),
        "without_call": lambda: tfs.keras.fit(compiled(make=tf.keras.Model), good),
        "without_call_unbuilt": lambda: tfs.keras.fit(compiled(make=Unbuilt), good),
        "no_sum": lambda: tfs.keras.fit(compiled(metrics=[largest()]), good, verbose=0),
        "split": lambda: tfs.keras.fit(
            compiled(), np.ones([2, 3], int), np.ones(2), validation_split=1.0
        ),
    }
    result = {}
    for name, case in cases.items():
        try:
            case()
            result[name] = "no error"
        except Exception as error:
            result[name] = f"{type(error).__name__}: {error}"
    return result


def main():
    resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
    strategy = tf.distribute.ParameterServerStrategy(resolver)
    partitioner = tf.distribute.experimental.partitioners.FixedShardsPartitioner(2)
    partitioned = tf.distribute.ParameterServerStrategy(
        resolver, variable_partitioner=partitioner
    )
    adam, adam_async = tf.keras.optimizers.Adam, tfs.keras.AdamAsync

    def synchronous():
        return tfs.keras.SyncReplicas(adam(), 2, 3)

    def all_counts():
        return {
            train.__name__: counts(strategy, make_optimizer, train)
            for train, make_optimizer in (
                (by_fit, adam),
                (by_fit_in_executions, adam_async),
                (by_fit_of_a_function, adam_async),
                (by_fit_of_finite_data, adam),
                (by_fit_synchronously, synchronous),
            )
        }

    parts = {
        "counts": all_counts,
        "evaluation": lambda: evaluation(strategy),
        "failures": lambda: failures(strategy),
        "readers": lambda: readers(strategy),
        "refusals": lambda: refusals(strategy, partitioned),
    }
    programs.report(parts[json.loads(sys.argv[1])]())


if __name__ == "__main__":
    main()
