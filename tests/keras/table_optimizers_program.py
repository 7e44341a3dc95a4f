"""Trains tables with optimizers of their own on a cluster, beside one process.

Argument: a folder for files. The cluster has one worker, so that every step follows the
one before.
"""

import json
import pathlib
import sys

import embedding_models as models
import numpy as np
import programs
import tensorflow as tf
from keras_sync_replicas import make_strategy
from table_optimizer_models import STEPS, counts, dataset, make, own, state

import tf_syncrep as tfs


def synchronous(optimizer):
    return tfs.keras.SyncReplicas(optimizer, 1, 1, spares=False)


def trained(strategy, wrap=lambda x: x, **options):
    """What one process and the cluster make of the same batches."""
    single = make(**options)
    single.fit(dataset(), steps_per_epoch=STEPS, verbose=0)
    with strategy.scope():
        model = make(wrap, **options)
    tfs.keras.fit(model, dataset, steps_per_epoch=STEPS, verbose=0)
    result = {
        "single": state(single),
        "cluster": state(model),
        "counts": counts(model.optimizer),
        "parts": len(model.embedding.trainable_variables),
    }
    return model, result


def saved(model, folder):
    """Files of what the cluster has trained, and how it goes on."""
    full = tfs.keras.Checkpoint(str(folder / "full"), model=model)
    changes = tfs.keras.Checkpoint(str(folder / "changes"), model=model, full_every=2)
    full.save(wait=True)
    changes.save(wait=True)
    model.save_weights(str(folder / "model.weights.h5"))
    prefix = str(folder / "tensorflow")
    tensorflow = tf.train.Checkpoint(model=model, optimizer=model.optimizer)
    path = tensorflow.save(prefix)
    tfs.keras.fit(model, dataset, steps_per_epoch=STEPS, verbose=0)
    after = state(model)
    tensorflow.restore(path).assert_consumed()
    tfs.keras.fit(model, dataset, steps_per_epoch=STEPS, verbose=0)
    changes.save(wait=True)
    again = state(model)
    tfs.keras.fit(model, dataset, steps_per_epoch=STEPS, verbose=0)
    return {"after": after, "again": again, "later": state(model)}


class Growing(tf.keras.Model):
    """A table that grows, and forgets, and one of fixed size."""

    def __init__(self):
        super().__init__()
        size = tfs.keras.Dynamic(1000, unused_for=10)
        tables = [
            tfs.keras.TableConfig("grows", size, 4, optimizer=tfs.keras.Adagrad(0.5)),
            tfs.keras.TableConfig("fixed", 100, 4),
        ]
        self.embedding = tfs.keras.DistributedEmbedding(
            [tfs.keras.FeatureConfig(table.name, table) for table in tables]
        )
        self.dense = tf.keras.layers.Dense(1)

    def call(self, ids, training=None):
        vectors = self.embedding([ids[:, 0], ids[:, 1]], training=training)
        return self.dense(tf.concat(vectors, axis=-1))


def growing(strategy):
    """Rows go, with what the table's own optimizer keeps of them."""

    def data(context=None):
        del context
        ids = tf.data.Dataset.range(10**6)
        return ids.map(lambda i: (tf.stack([[i, i % 100]]), [[1.0]]))

    with strategy.scope():
        model = Growing()
        optimizer = tfs.keras.TableOptimizers(tfs.keras.AdamAsync(0.05))
        model.compile(synchronous(optimizer), loss="mse")
    tfs.keras.fit(model, data, steps_per_epoch=50, verbose=0)
    (own_optimizer,) = optimizer.table_optimizers.values()
    trained = [x for x in model.embedding.trainable_variables if x.shape[0] > 100]
    sums = [own_optimizer.slots(x)["accumulator"].numpy() for x in trained]
    return {
        **model.embedding.table_stats()["grows"],
        "moved": sum(int(np.sum(np.any(x != np.float32(0.1), axis=1))) for x in sums),
    }


def refused(strategy):
    """What is said, and what is left, of a model's optimizer that knows of nothing."""
    with strategy.scope():
        model = models.make(
            models.Distributed,
            tfs.keras.AdamAsync(0.05),
            models.initial_tables(),
            optimizers=own(),
        )
    try:
        tfs.keras.fit(model, dataset, steps_per_epoch=STEPS, verbose=0)
    except ValueError as error:
        return str(error), {k: x.tolist() for k, x in model.tables().items()}
    return None


def main():
    folder = pathlib.Path(json.loads(sys.argv[1]))
    strategy = make_strategy()
    model, asynchronous = trained(strategy)
    _, sync = trained(strategy, synchronous)
    _, clipped = trained(strategy, synchronous, global_clipnorm=0.5)
    programs.report(
        {
            "asynchronous": asynchronous,
            "synchronous": sync,
            "clipped": clipped,
            "saved": saved(model, folder),
            "growing": growing(strategy),
            "refused": refused(strategy),
        }
    )


if __name__ == "__main__":
    main()
