"""Trains under strategies with two replicas in one process; reports the results.

Arguments: whether steps are tf.functions, and the optimizer's options, by name.

A process of its own, because logical devices have to be set up before TensorFlow
starts, and because eager and compiled collectives of one process get mixed up.
"""

import json
import sys

import keras_variants
import programs
import tensorflow as tf

import tf_syncrep as tfs

CONTEXTS = ("replica", "cross_replica", "whole")
DEVICES = ["CPU:0", "CPU:1"]


def strategies():
    yield "mirrored", tf.distribute.MirroredStrategy(DEVICES)
    yield (
        "central_storage",
        tf.distribute.experimental.CentralStorageStrategy(DEVICES, "CPU:0"),
    )


def copies(strategy, variable):
    """The values of a variable on all replicas."""
    parts = strategy.experimental_local_results(keras_variants.native(variable))
    return [part.numpy().tolist() for part in parts]


def gradients():
    """A sparse and a dense gradient, different on both replicas."""
    replica = tf.distribute.get_replica_context().replica_id_in_sync_group
    size = tf.cast(replica + 1, tf.float32)
    rows = tf.stack([replica, 3])
    values = tf.stack([size * tf.ones([2]), size * tf.ones([2])])
    return tf.IndexedSlices(values, rows, tf.constant([5, 2])), size * tf.ones([3])


def whole_gradients():
    """The sum of both replicas' gradients."""
    values = tf.constant([[1.0, 1.0], [1.0, 1.0], [2.0, 2.0], [2.0, 2.0]])
    rows = tf.constant([0, 3, 1, 3])
    return tf.IndexedSlices(values, rows, tf.constant([5, 2])), 3.0 * tf.ones([3])


def train(strategy, context, options, wrap):
    """Three steps; returns the variables and the number of steps."""
    with strategy.scope():
        variables = [tf.Variable(tf.ones([5, 2])), tf.Variable(tf.ones([3]))]
        optimizer = tfs.keras.AdamAsync(0.25, **options)
        # In replicas, the first step makes the slots.
        if context != "replica":
            optimizer.build(variables)

    def update(*grads):
        optimizer.apply_gradients(zip(grads, variables, strict=True))

    @wrap
    def step():
        if context == "replica":
            strategy.run(lambda: update(*gradients()))
        elif context == "cross_replica":
            update(*strategy.run(gradients))
        else:
            update(*whole_gradients())

    with strategy.scope():
        for _ in range(3):
            step()
    everything = [*variables, *optimizer.variables]
    return {
        "values": [x.numpy().tolist() for x in variables],
        "iterations": int(optimizer.iterations.numpy()),
        "copies": [copies(strategy, x) for x in everything],
    }


def fit(name, strategy):
    """Model.fit; with batch normalization if this Keras can train it."""
    layers = tf.keras.layers
    normalize = not (keras_variants.IS_KERAS_3 and name == "central_storage")
    with strategy.scope():
        tf.keras.utils.set_random_seed(1)
        model = tf.keras.Sequential(
            [
                layers.Input((3,), dtype="int32"),
                layers.Embedding(20, 4),
                layers.Flatten(),
                *([layers.BatchNormalization()] if normalize else []),
                layers.Dense(1),
            ]
        )
        optimizer = tfs.keras.AdamAsync(keras_variants.slow_decay(0.05))
        model.compile(optimizer=optimizer, loss="mse")
    words, targets = keras_variants.small_data()
    history = model.fit(words, targets, batch_size=16, epochs=10, verbose=0)
    trained = [*model.trainable_variables, *model.optimizer.variables]
    return {
        "losses": history.history["loss"],
        "iterations": int(model.optimizer.iterations.numpy()),
        "copies": [copies(strategy, x) for x in trained],
        "moving_statistics": [
            x.numpy().tolist() for x in model.non_trainable_variables
        ],
    }


def main():
    is_function, all_options = map(json.loads, sys.argv[1:])
    cpus = tf.config.list_physical_devices("CPU")
    logical = [tf.config.LogicalDeviceConfiguration()] * 2
    tf.config.set_logical_device_configuration(cpus[0], logical)
    wrap = tf.function if is_function else lambda step: step
    result = {}
    for name, strategy in strategies():
        result[name] = {
            context: {
                option: train(strategy, context, options, wrap)
                for option, options in all_options.items()
            }
            for context in CONTEXTS
        }
        if is_function:
            result[name]["fit"] = fit(name, strategy)
    programs.report(result)


if __name__ == "__main__":
    main()
