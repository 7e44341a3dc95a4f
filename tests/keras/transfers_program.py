"""Trains models by `tfs.keras.fit`, and counts the messages of a step.

Arguments: names of models, whether to train synchronously, and the steps of an
execution.
"""

import collections
import contextlib
import json
import sys
import traceback
from typing import Any
from unittest import mock

import keras_variants
import messages_sent
import numpy as np
import programs
import tensorflow as tf

import tf_syncrep as tfs
from tf_syncrep.python.keras.transfers import transfers

STEPS = 16
WIDTH = 6
layers = tf.keras.layers
keras = tf.keras


def inputs_and(*hidden):
    """A model whose layers are in sequence."""
    return keras.Sequential([layers.Input((WIDTH,)), *hidden, layers.Dense(1)])


def two_layers():
    return inputs_and(layers.Dense(8, activation="tanh"))


def twenty_layers():
    return inputs_and(*(layers.Dense(8, activation="tanh") for _ in range(19)))


def shared_layers():
    shared = layers.Dense(WIDTH, activation="tanh")
    x = layers.Input((WIDTH,))
    return keras.Model(x, layers.Dense(1)(shared(shared(x) + x)))


def mixed_precision():
    return inputs_and(
        layers.Dense(8, activation="tanh", dtype="mixed_bfloat16"),
        layers.Dense(8, activation="tanh", dtype="mixed_bfloat16"),
        layers.Activation("linear", dtype="float32"),
    )


def constraints():
    kinds = [keras.constraints.MaxNorm(0.7), keras.constraints.NonNeg()]
    return inputs_and(
        *(
            layers.Dense(8, "tanh", kernel_constraint=x, bias_constraint=x)
            for x in kinds
        )
    )


def regularizers():
    l1_l2 = keras.regularizers.L1L2(0.01, 0.02)
    return inputs_and(
        layers.Dense(
            8,
            "tanh",
            kernel_regularizer=l1_l2,
            bias_regularizer=l1_l2,
            activity_regularizer=l1_l2,
        )
    )


def frozen():
    return inputs_and(layers.Dense(8, "tanh", trainable=False), layers.Dense(8, "tanh"))


class Unused(layers.Layer):
    """Has a weight that does not matter."""

    def build(self, shape):
        del shape
        self.unused = self.add_weight(shape=(3,), initializer="ones", name="unused")
        self.used = self.add_weight(shape=(), initializer="ones", name="used")

    def call(self, x):
        return x * self.used


def without_gradient():
    return inputs_and(layers.Dense(8, "tanh"), Unused())


def batch_normalization():
    normalized = layers.BatchNormalization(momentum=0.5)
    x = layers.Input((WIDTH,))
    # It is called twice, so that a step reads its averages, assigns them, and reads
    # them again.
    y = normalized(layers.Dense(WIDTH)(normalized(x)))
    return keras.Model(x, layers.Dense(1)(layers.BatchNormalization()(y)))


def dropout():
    return inputs_and(
        layers.Dropout(0.5, seed=3),
        layers.Dense(8, "tanh"),
        layers.GaussianNoise(0.5),
        layers.Dropout(0.3),
    )


class AssignedBetweenReads(layers.Layer):
    """Reads a variable, assigns it, and reads it again."""

    def build(self, shape):
        del shape
        self.counted = self.add_weight(
            shape=(), initializer="zeros", trainable=False, name="counted"
        )
        self.scale = self.add_weight(shape=(), initializer="ones", name="scale")

    def call(self, x):
        before = tf.identity(keras_variants.native(self.counted))
        self.counted.assign(self.counted + tf.reduce_mean(x * self.scale))
        after = tf.identity(keras_variants.native(self.counted))
        self.counted.assign_add(1.0)
        return x * (after - before) + keras_variants.native(self.counted) * 0.01


def assigned_between_reads():
    return inputs_and(layers.Dense(8, "tanh"), AssignedBetweenReads())


def embeddings():
    x = layers.Input((WIDTH,))
    ids = layers.Lambda(lambda x: tf.cast(x * 10, tf.int32))(x)
    words = tfs.keras.Embedding(20, 4, shards=1)(ids)
    y = layers.Concatenate()([layers.Flatten()(words), x])
    return keras.Model(x, layers.Dense(1)(layers.Dense(8, "tanh")(y)))


def distributed_embedding(vocabulary_size=20):
    names = [f"table_{i}" for i in range(WIDTH)]
    tables = tfs.keras.DistributedEmbedding(
        [
            tfs.keras.FeatureConfig(
                name, tfs.keras.TableConfig(name, vocabulary_size, 4)
            )
            for name in names
        ]
    )
    x = layers.Input((WIDTH,))
    ids = layers.Lambda(
        lambda x: tf.cast(x * 10, tf.int32), output_shape=(WIDTH,), dtype="int32"
    )(x)
    vectors = tables([ids[:, i] for i in range(WIDTH)])
    return keras.Model(x, layers.Dense(1)(layers.Concatenate()([*vectors, x])))


def growing_tables():
    return distributed_embedding(tfs.keras.Dynamic(64))


MODELS = {
    x.__name__: x
    for x in (
        two_layers,
        twenty_layers,
        shared_layers,
        mixed_precision,
        constraints,
        regularizers,
        frozen,
        without_gradient,
        batch_normalization,
        dropout,
        assigned_between_reads,
        embeddings,
        distributed_embedding,
        growing_tables,
    )
}


def averaged(rate):
    return tfs.keras.AdamAsync(
        rate, use_ema=True, ema_momentum=0.5, ema_overwrite_frequency=3
    )


OPTIMIZERS = {
    "AdamAsync": tfs.keras.AdamAsync,
    "Adam": keras.optimizers.Adam,
    "averaged": averaged,
    "clipped": lambda rate: tfs.keras.AdamAsync(
        rate, global_clipnorm=0.1, weight_decay=0.01
    ),
    "scheduled": lambda rate: keras.optimizers.SGD(keras_variants.slow_decay(rate)),
}


def trained(strategy, log, name, optimizer, is_synchronous, per_execution):
    """All variables after a training, and the messages of a step."""
    random = np.random.default_rng(0)
    x = random.uniform(0, 1, (4 * STEPS, WIDTH)).astype(np.float32)
    y = x.sum(axis=1, keepdims=True)

    def data(context):
        del context
        return tf.data.Dataset.from_tensor_slices((x, y)).batch(4).repeat()

    keras.utils.set_random_seed(1)
    with strategy.scope():
        model = MODELS[name]()
        used = OPTIMIZERS[optimizer](0.0625)
        if is_synchronous:
            used = tfs.keras.SyncReplicas(used, 1, 1, spares=False)
        model.compile(used, "mse", steps_per_execution=per_execution)
        used.build(model.trainable_variables)
    begin = log.position()
    tfs.keras.fit(model, data, steps_per_epoch=STEPS, verbose=0)
    sent = collections.Counter(log.names_sent_since(begin))
    # Each execution sends the same; other messages are sent only a few times. The
    # worker takes no part in updates of SyncReplicas, and in reads by the coordinator.
    executions = STEPS // per_execution
    in_steps = {
        name: n for name, n in sent.items() if n >= executions and "worker/" in name
    }
    # An update's function is called again where a round takes long, so that their names
    # are counted.
    between_servers = [
        name
        for name, n in sent.items()
        if n >= executions and not any(x in name for x in ("worker/", "chief/"))
    ]
    of_optimizer: Any = used.variables
    if not keras_variants.IS_KERAS_3:
        of_optimizer = of_optimizer()
    variables = [*model.variables, *of_optimizer]
    return {
        "messages": sum(in_steps.values()) / STEPS,
        "between_servers": between_servers,
        "sent": in_steps,
        "values": [keras_variants.native(v).numpy() for v in variables],
    }


def main():
    names, optimizer, is_synchronous, per_execution = map(json.loads, sys.argv[1:])
    log = messages_sent.Log()
    strategy = messages_sent.strategy_of_servers_here(num_ps=2)
    stock = mock.patch.object(transfers._Transfers, "join")
    results = {}
    for name in names:
        sides = {}
        for side, context in (("joined", contextlib.nullcontext()), ("stock", stock)):
            with context:
                sides[side] = trained(
                    strategy, log, name, optimizer, is_synchronous, per_execution
                )
        values = [sides[side].pop("values") for side in ("joined", "stock")]
        results[name] = {
            **sides,
            "differ": [
                i
                for i, (a, b) in enumerate(zip(*values, strict=True))
                if not np.array_equal(a, b)
            ],
            "is_finite": all(np.all(np.isfinite(x)) for x in values[0]),
        }
    programs.report(results)


if __name__ == "__main__":
    try:
        main()
    except BaseException:
        traceback.print_exc(file=sys.stdout)  # stderr goes into the log
        raise
