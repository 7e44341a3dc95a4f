"""Trains asynchronously by optimizers with rules; reports variables and their slots.

Argument: how many steps all workers make together. All gradients are ones.
"""

import json
import sys

import keras_variants
import programs
import tensorflow as tf
from keras_sync_replicas import make_strategy

import tf_syncrep as tfs

OPTIMIZERS = {
    "sgd": lambda: tfs.keras.SGD(0.25),
    "adagrad": lambda: tfs.keras.Adagrad(0.25),
    "rowwise_adagrad": lambda: tfs.keras.RowwiseAdagrad(0.25),
    "ftrl": lambda: tfs.keras.FTRL(0.25),
    "momentum": lambda: tfs.keras.SGD(0.25, momentum=0.5),
    "nesterov": lambda: tfs.keras.SGD(0.25, momentum=0.5, nesterov=True),
    "rounded": lambda: tfs.keras.SGD(0.001, stochastic_rounding=True),
}
ROWS, DIM = 10, 4


def values_of(variable):
    return keras_variants.native(variable).numpy().astype(float).tolist()


def train(strategy, coordinator, make, num_steps, dtype="float32"):
    with strategy.scope():
        tf.keras.utils.set_random_seed(1)
        model = tf.keras.Sequential(
            [
                tf.keras.layers.Input((3,), dtype="int32"),
                tfs.keras.Embedding(ROWS, DIM, dtype=dtype),
                tf.keras.layers.GlobalAveragePooling1D(dtype=dtype),
                tf.keras.layers.Dense(2, dtype=dtype),
            ]
        )
        optimizer = make()
        optimizer.build(model.trainable_variables)
    variables = model.trainable_variables
    start = [values_of(x) for x in variables]

    def gradient_of(variable):
        if variable.shape[-1] != DIM:
            return tf.ones(variable.shape)
        # Rows of a part; the first occurs twice.
        return tf.IndexedSlices(tf.ones([3, DIM]), tf.constant([0, 1, 0]))

    @tf.function
    def step():
        def update():
            gradients = [gradient_of(x) for x in variables]
            optimizer.apply_gradients(zip(gradients, variables, strict=True))

        strategy.run(update)

    for _ in range(num_steps):
        coordinator.schedule(step)
    coordinator.join()
    return {
        "iterations": int(keras_variants.native(optimizer.iterations).numpy()),
        "variables": [
            {
                "start": before,
                "value": values_of(variable),
                "slots": {
                    name: values_of(slot)
                    for name, slot in optimizer.slots(variable).items()
                },
                "devices": sorted(
                    {
                        keras_variants.native(x).device
                        for x in (variable, *optimizer.slots(variable).values())
                    }
                ),
            }
            for before, variable in zip(start, variables, strict=True)
        ],
    }


def main():
    num_steps = json.loads(sys.argv[1])
    strategy = make_strategy()
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
    programs.report(
        {
            name: train(
                *(strategy, coordinator, make, num_steps),
                dtype="bfloat16" if name == "rounded" else "float32",
            )
            for name, make in OPTIMIZERS.items()
        }
    )


if __name__ == "__main__":
    main()
