"""Memory of a table that grows, in one process or on a server.

Argument `built`: reports for each optimizer how much memory it takes to build it for a
table with room for 50 million rows, and to train the first of them.

Argument: a control group that bounds the memory of this process, or `cluster`, whose
server is in such a group. The model is trained with ever new ids until there is no
memory for their rows. Reports the error, and what the model does after it.
"""

import json
import pathlib
import sys

import memory_groups
import numpy as np
import programs
import tensorflow as tf
from keras_sync_replicas import make_strategy

import tf_syncrep as tfs

MAX_ROWS, WIDTH, BATCH = 50_000_000, 16, 100_000
TARGETS = np.ones([BATCH, 1], np.float32)
OPTIMIZERS = {
    "AdamAsync": tfs.keras.AdamAsync,
    "Adagrad": lambda: tfs.keras.Adagrad(initial_accumulator_value=0),
    "FTRL": lambda: tfs.keras.FTRL(initial_accumulator_value=0),
    "RowwiseAdagrad": tfs.keras.RowwiseAdagrad,
    "SGD": lambda: tfs.keras.SGD(momentum=0.9),
}


def make_model(optimizer, max_rows=MAX_ROWS):
    table = tfs.keras.TableConfig("items", tfs.keras.Dynamic(max_rows), WIDTH)
    model = tf.keras.Sequential(
        [
            tf.keras.Input([1], dtype="int64"),
            tfs.keras.DistributedEmbedding(tfs.keras.FeatureConfig("ids", table)),
            tf.keras.layers.Dense(1),
        ]
    )
    model.compile(optimizer, loss="mse")
    return model


def batch(number):
    return np.arange(number * BATCH, (number + 1) * BATCH).reshape([-1, 1])


def resident():
    """Bytes of this process that are in memory."""
    status = pathlib.Path("/proc/self/status").read_text()
    (line,) = (x for x in status.splitlines() if x.startswith("VmRSS:"))
    return int(line.split()[1]) * 1024


def bytes_of_each_optimizer():
    # The first training in a process takes memory that has nothing to do with tables.
    first = make_model(tfs.keras.AdamAsync(), 2 * BATCH)
    first.train_on_batch(batch(0), TARGETS)
    taken = {}
    for name, make in OPTIMIZERS.items():
        before = resident()
        model = make_model(make())
        model.train_on_batch(batch(0), TARGETS)
        taken[name] = resident() - before
        del model
    return taken


def dataset(first, number=1):
    """Batches of ids."""

    def make(i):
        return tf.range(i * BATCH, (i + 1) * BATCH)[:, tf.newaxis], TARGETS

    return tf.data.Dataset.range(first, first + number).map(make)


def train_to_the_end(strategy):
    with strategy.scope():
        model = make_model(tfs.keras.AdamAsync())

    def error_of(data):
        try:
            tfs.keras.fit(model, data, verbose=0)
        except tf.errors.ResourceExhaustedError as error:
            return error.message
        return ""

    def rows():
        return int(model.layers[0].table_stats()["items"]["rows"])

    def predict():
        return tfs.keras.predict(model, dataset(0).map(lambda ids, _: ids), verbose=0)

    message = error_of(dataset(0, MAX_ROWS // BATCH))
    trained, before = rows(), predict()
    of_known_ids = error_of(dataset(0))
    after = predict()
    return {
        "message": message,
        "rows": trained,
        "of_known_ids": of_known_ids,
        "changed": int(np.count_nonzero(after != before)),
        "of_new_ids": error_of(dataset(trained // BATCH)),
        "rows_after": rows(),
    }


def main():
    argument = json.loads(sys.argv[1])
    if argument == "built":
        result = bytes_of_each_optimizer()
    elif argument == "cluster":
        result = train_to_the_end(make_strategy())
    else:
        memory_groups.join(argument)
        result = train_to_the_end(tf.distribute.get_strategy())
    programs.report(result)


if __name__ == "__main__":
    main()
