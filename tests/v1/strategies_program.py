"""Trains under a strategy over two devices of one process; reports the results.

It trains by AdamAsyncOptimizer, and by its op on variables of which each replica has
its own until they are read. Arguments: "mirrored" or "central_storage", and "CPU" or
"GPU". Two halves of a GPU are two devices.
"""

import json
import sys

import numpy as np
import programs
import tensorflow as tf
import v1_models
import v1_optimizers

import tf_syncrep as tfs

STEPS = 4
NUMBERS = (v1_optimizers.RATE, *v1_optimizers.ADAM_NUMBERS.values())


def make_strategy(name, device):
    limit = 1024 if device == "GPU" else None
    halves = [tf.config.LogicalDeviceConfiguration(memory_limit=limit)] * 2
    tf.config.set_logical_device_configuration(
        tf.config.list_physical_devices(device)[0], halves
    )
    names = [f"{device}:0", f"{device}:1"]
    if name == "mirrored":
        return tf.distribute.MirroredStrategy(names)
    return tf.distribute.experimental.CentralStorageStrategy(names)


def halves(step):
    """Gradients of table and vector; those of replicas are summed."""
    rows, row_grads, vector_grad = v1_models.gradients(step)
    row_grads = tf.constant(row_grads / 2, tf.float32)
    return (
        tf.IndexedSlices(row_grads, tf.constant(rows), tf.constant([9, 4])),
        tf.constant(vector_grad / 2, tf.float32),
    )


def own(step):
    """A gradient of the vector, which differs between replicas."""
    replica = tf.distribute.get_replica_context().replica_id_in_sync_group
    gradients = [v1_models.gradients(step + 10 * i)[2] for i in range(2)]
    return tf.constant(np.stack(gradients), tf.float32)[replica]


def run(strategy, replica):
    """Runs it in all replicas, step by step."""

    def train(step):
        strategy.run(replica, (step,))

    for step in range(STEPS):
        # The step is a number, so that each one is traced separately.
        tf.function(train)(step)


def copies(strategy, variable):
    parts = strategy.experimental_local_results(variable)
    return [part.numpy().tolist() for part in parts]


def by_the_optimizer(strategy):
    """The results of replicas whose gradients are summed: values and all copies."""
    with strategy.scope():
        variables = [
            tf.Variable(tf.constant(value, tf.float32))
            for value in (v1_models.TABLE, v1_models.VECTOR)
        ]
    optimizer = v1_optimizers.CASES["adam_async"].make()

    def replica(step):
        optimizer.apply_gradients(list(zip(halves(step), variables, strict=True)))

    run(strategy, replica)
    names = optimizer.get_slot_names()
    slots = [optimizer.get_slot(x, name) for x in variables for name in names]
    return {
        "values": [variable.numpy().tolist() for variable in variables],
        "copies": [copies(strategy, x) for x in (*variables, *slots)],
    }


def on_read(strategy, aggregation):
    """The results of each replica by the op, and the value that a reader gets."""
    start = tf.constant(v1_models.VECTOR, tf.float32)
    values = [start, tf.zeros_like(start), tf.zeros_like(start), *NUMBERS[1:3]]
    with strategy.scope():
        variables = [
            tf.Variable(
                value,
                trainable=False,
                synchronization=tf.VariableSynchronization.ON_READ,
                aggregation=aggregation,
            )
            for value in values
        ]

    def replica(step):
        handles = [x.handle for x in variables]
        tfs.ops.resource_apply_adam_async(*handles, *NUMBERS, own(step))

    run(strategy, replica)
    vector = variables[0]
    return {"copies": copies(strategy, vector), "read": vector.numpy().tolist()}


def main():
    strategy = make_strategy(*map(json.loads, sys.argv[1:]))
    result = by_the_optimizer(strategy)
    if isinstance(strategy, tf.distribute.MirroredStrategy):
        result["sum"] = on_read(strategy, tf.VariableAggregation.SUM)
        result["mean"] = on_read(strategy, tf.VariableAggregation.MEAN)
    programs.report(result)


if __name__ == "__main__":
    main()
