"""An error of a step ends fit, evaluate and predict in its own words."""

import itertools
from typing import Any

import clusters
import keras_variants
import numpy as np
import programs
import pytest
import tensorflow as tf
from combinations import mostly_by_night
from keras_sync_replicas import make_strategy

import tf_syncrep as tfs

# Batches of a worker's data, and the one with what makes a step fail. Both are in the
# middle of an execution of eight steps.
BATCHES, BAD = 21, 12

# What goes wrong where x is 1, and a part of what the op says.
KINDS = {
    "id": "ids of feature rows must be in [0, 2), the vocabulary",
    "assert": "assertion failed: [no ones, please]",
    "nan": "these are logarithms : Tensor had NaN values",
    "string": "StringToNumberOp could not correctly convert string: one",
    "memory": "OOM when allocating tensor",
    "data": "Feature: v (data type: float) is required but could not be found",
    "python": "ValueError: no ones, in Python",
    "table": "Signature mismatch, have: resource,",
}
# The coordinator alone has Python.
IN_PYTHON = "python"
READING = ("sent", "same", "function", "steps", "queue")


class Failing(tf.keras.Model):
    """Its weight is the number of updates, negated. It fails where x is 1."""

    def __init__(self, kind):
        super().__init__()
        self.kind = kind
        self.w = self.add_weight(name="w", shape=[], initializer="zeros")
        self.rows: Any = None
        if kind == "id":
            self.rows = tfs.keras.Embedding(2, 1, name="rows")
        elif kind == "table":
            words = tf.lookup.KeyValueTensorInitializer(
                ["a"], tf.constant([1], "int64")
            )
            self.rows = tf.lookup.StaticHashTable(words, -1)

    def call(self, x):
        if self.kind == "id":
            x = self.rows(tf.cast(2 * x[:, 0], tf.int64))
        elif self.kind == "assert":
            with tf.control_dependencies(
                [tf.debugging.Assert(tf.reduce_all(x < 1), ["no ones, please"])]
            ):
                x = tf.identity(x)
        elif self.kind == "nan":
            x = tf.debugging.check_numerics(
                tf.math.log(1 - 2 * x), "these are logarithms"
            )
        elif self.kind == "string":
            x = tf.strings.to_number(tf.where(x < 1, "0", "one"))
        elif self.kind == "memory":
            many = tf.where(tf.reduce_all(x < 1), 1, 1 << 25)
            x += tf.reduce_sum(tf.zeros([many, many]))
        elif self.kind == "table":
            handle = self.rows.resource_handle  # TensorFlow finds none in a branch.

            def find():
                found = tf.raw_ops.LookupTableFindV2(
                    table_handle=handle,
                    keys=tf.cast(x, tf.int64),
                    default_value=tf.constant(0, tf.int64),
                )
                return tf.ensure_shape(found, x.shape)

            x = tf.cond(tf.reduce_all(x < 1), lambda: tf.cast(x, tf.int64), find)
            x = tf.cast(x, tf.float32)
        # So the gradient is 1, and needs all of this.
        return self.w * (1 + 0 * tf.reduce_sum(x, axis=-1))


def refuse_ones(x):
    if x == 1:
        raise ValueError("no ones, in Python")
    return x


def batches(kind):
    def batch(i):
        x = tf.cast(i == BAD, tf.float32)
        if kind == "data":
            # A serialized tf.train.Example, that of the bad batch without features.
            text = tf.where(
                x < 1, b"\n\x0f\n\r\n\x01v\x12\x08\x12\x06\n\x04" + 4 * b"\0", b""
            )
            feature = {"v": tf.io.FixedLenFeature([], tf.float32)}
            x = tf.io.parse_single_example(text, feature)["v"]
        elif kind == "python":
            x = tf.ensure_shape(tf.py_function(refuse_ones, [x], tf.float32), [])
        return tf.fill([2, 1], x), tf.zeros([2, 1])

    return tf.data.Dataset.range(BATCHES).map(batch)


def data_of(strategy, reading, kind):
    """The data, and options of fit."""
    if reading == "function":
        return lambda _: batches(kind), {}
    if reading == "steps":
        return lambda _: batches(kind).repeat(), {"steps_per_epoch": BATCHES}
    if reading == "same":
        return batches(kind).repeat(), {"steps_per_epoch": BATCHES}
    if reading == "queue":
        with strategy.scope():
            queue = tfs.data.WorkQueue(1, None)
        return lambda _: queue.dataset(lambda _: batches(kind)), {}
    return batches(kind), {}


def run(names):
    """For each scenario the error, the updates, and the steps that were counted."""
    strategy = make_strategy()
    results = {}
    for name in names:
        loop, reading, kind, k, synchronous = name.split()
        with strategy.scope():
            model = Failing(kind)
            optimizer: Any = tf.keras.optimizers.SGD(1.0)
            metric = tf.keras.metrics.MeanAbsoluteError()
            if synchronous == "sync":
                optimizer = tfs.keras.SyncReplicas(optimizer, 1)
            model.compile(
                optimizer,
                loss=lambda _, y: tf.reduce_mean(y, axis=-1),
                metrics=[metric],
                steps_per_execution=int(k),
            )
        data, options = data_of(strategy, reading, kind)
        told = []
        count = tf.keras.callbacks.LambdaCallback(
            on_train_batch_end=lambda batch, logs, told=told: told.append(batch)
        )
        if loop == "fit":
            error = programs.error_of(
                tfs.keras.fit,
                model,
                data,
                epochs=3,
                verbose=0,
                callbacks=[count],
                **options,
            )
        else:
            error = programs.error_of(getattr(tfs.keras, loop), model, data, verbose=0)
        results[name] = {
            "error": error,
            "updates": -float(keras_variants.native(model.w).numpy()),
            "iterations": int(np.asarray(model.optimizer.iterations)),
            "told": told,
            "metric": float(keras_variants.native(metric.count)),
        }
    return results


NAMES = [
    *(" ".join(x) for x in itertools.product(
        ["fit"], READING, KINDS, "18", ["async", "sync"])),
    *(" ".join(x) for x in itertools.product(
        ["evaluate", "predict"], ["sent"], KINDS, "18", ["async"])),
]  # fmt: skip
NAMES = [x for x in NAMES if IN_PYTHON not in x or " sent " in x]
BY_DAY = [
    "fit function id 1 async",
    "fit function id 8 async",
    "fit function assert 8 sync",
    "fit queue nan 8 sync",
    "fit steps memory 1 async",
    "fit same assert 1 sync",
    "fit function data 8 async",
    "fit sent python 1 async",
    "fit function table 8 async",
    "evaluate sent id 8 async",
    "predict sent string 1 async",
]


@pytest.fixture(scope="module", params=[1, 3], ids=["1 worker", "3 workers"])
def results(request):
    with clusters.Cluster(num_workers=request.param, num_ps=2) as cluster:
        names = programs.wanted(request, "name")
        secs = 60.0 + 10 * len(names)
        found = programs.call(run, names, env=cluster.environment(), secs=secs)
    return request.param, found


@pytest.mark.ci
@pytest.mark.one_version
@pytest.mark.parametrize("name", mostly_by_night(NAMES, *BY_DAY))
def test_error_of_a_step_is_raised_and_what_was_trained_is_counted(results, name):
    num_workers, found = results
    loop, reading, kind, k, synchronous = name.split()
    result = found[name]
    assert KINDS[kind] in result["error"]
    assert "InvalidArgumentError" in result["error"] or kind == "memory"
    if loop != "fit":
        assert result["iterations"] == 0
    elif synchronous == "sync":
        # Gradients of the failing step's round may have come to an update.
        assert result["iterations"] == result["updates"]
    elif kind in ("data", IN_PYTHON) and reading == "sent":
        # The coordinator reads it while steps before it are under way.
        assert result["iterations"] == result["updates"] <= BAD
    elif num_workers == 1 and k == "1":
        assert result["iterations"] == result["updates"] == BAD
        # Of two examples each. Results of two steps may have been on their way.
        assert result["metric"] == 2 * len(result["told"])
        assert BAD - 2 <= len(result["told"]) <= BAD
    else:
        # On each worker steps of an execution may have been cut off between the two.
        cut_off = 1 if k == "1" else int(k) - 1
        assert abs(result["iterations"] - result["updates"]) <= cut_off * num_workers
        assert result["iterations"] <= BAD + (num_workers - 1) * BATCHES
