"""Saves a model of two mirrored replicas, and restores it into another one.

Argument, JSON: the folder. Reports all copies of all variables before and after. It is
a process of its own, since logical devices have to be set up before TensorFlow starts.
"""

import json
import sys
from typing import Any

import embedding_models as models
import keras_variants
import programs
import tensorflow as tf

import tf_syncrep as tfs

DEVICES = ["CPU:0", "CPU:1"]


def make():
    with tf.distribute.MirroredStrategy(DEVICES).scope():
        return models.make(
            models.Distributed, tf.keras.optimizers.Adam(0.1), models.initial_tables()
        )


def train(model):
    data = tf.data.Dataset.from_tensor_slices(models.batch(16)).batch(8)
    tfs.keras.fit(model, data, verbose=0)


def copies(model):
    variables: Any = model.optimizer.variables
    if not keras_variants.IS_KERAS_3 and callable(variables):
        variables = variables()
    natives = map(keras_variants.native, [*model.variables, *variables])
    return [x.numpy().tolist() for native in natives for x in copies_of(native)]


def copies_of(variable: Any) -> Any:
    return getattr(variable, "values", [variable])


def main(folder):
    (cpu,) = tf.config.list_physical_devices("CPU")
    tf.config.set_logical_device_configuration(
        cpu, len(DEVICES) * [tf.config.LogicalDeviceConfiguration()]
    )
    model = make()
    train(model)
    tfs.keras.Checkpoint(folder, model=model).save()
    other = make()
    tfs.keras.Checkpoint(folder, model=other).restore()
    programs.report([copies(model), copies(other)])


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
