"""Trains a DistributedEmbedding on one device, and in two mirrored replicas.

It is a process of its own, since logical devices have to be set up before TensorFlow
starts.
"""

import embedding_models as models
import programs
import tensorflow as tf

import tf_syncrep as tfs

DEVICES = ["CPU:0", "CPU:1"]


def train(strategy):
    with strategy.scope():
        model = models.make(
            models.Distributed, tfs.keras.AdamAsync(0.1), models.initial_tables()
        )
    data = tf.data.Dataset.from_tensor_slices(models.batch(16)).batch(8)
    tfs.keras.fit(model, data, epochs=2, verbose=0)
    return {name: table.tolist() for name, table in model.tables().items()}


def refused(strategy):
    """Returns the refusal of optimizers of single tables, and the tables after it."""
    with strategy.scope():
        model = models.make(
            models.Distributed,
            tfs.keras.TableOptimizers(tfs.keras.AdamAsync(0.1)),
            models.initial_tables(),
            optimizers={"movies": tfs.keras.Adagrad(0.1), "days": "sgd"},
        )
    data = tf.data.Dataset.from_tensor_slices(models.batch(16)).batch(8)
    try:
        tfs.keras.fit(model, data, verbose=0)
    except ValueError as error:
        tables = {name: table.tolist() for name, table in model.tables().items()}
        return str(error), tables
    return None


def main():
    (cpu,) = tf.config.list_physical_devices("CPU")
    tf.config.set_logical_device_configuration(
        cpu, len(DEVICES) * [tf.config.LogicalDeviceConfiguration()]
    )
    programs.report(
        {
            "one": train(tf.distribute.get_strategy()),
            "two": train(tf.distribute.MirroredStrategy(DEVICES)),
            "refused": refused(tf.distribute.MirroredStrategy(DEVICES)),
        }
    )


if __name__ == "__main__":
    main()
