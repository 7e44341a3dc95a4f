"""A click model on Criteo's logs, trained by parameter servers: DLRM.

The Deep Learning Recommendation Model (Naumov et al., 2019) has a vector for each
category, one for all numbers together, the dot products of all pairs of them, and
layers above. The table of vectors is spread over all parameter servers by
`DistributedEmbedding`; `tfs.keras.AdamAsync` updates the rows that a batch touches. A
`WorkQueue` gives each file of the logs to whichever worker is free, once an epoch, and
`tfs.keras.Checkpoint` writes what is needed to go on after a crash.

    tf-syncrep launch --workers 3 --ps 2 examples/criteo_dlrm.py
    tf-syncrep launch --workers 3 --ps 2 examples/criteo_dlrm.py --sync
    tf-syncrep launch --workers 3 --ps 2 examples/criteo_dlrm.py --data day_0 day_1

Without `--data` it writes logs in that format itself, whose clicks follow a planted
model. It also prints the AUC of that model, which no model can surpass. On many
machines, every worker must find the files under the same names, and every task the
folder `--output`. The more files there are, the better they can be shared.
"""

from __future__ import annotations

import argparse
import pathlib
import shutil
import time

import criteo_logs
import metrics
import numpy as np
import ps_cluster
import tensorflow as tf

import tf_syncrep as tfs


class DotInteractions(tf.keras.layers.Layer):
    """The dot products `[batch, n (n-1) / 2]` of vectors `[batch, n, dimensions]`."""

    def call(self, vectors: tf.Tensor) -> tf.Tensor:
        """Multiplies each vector by each one before it."""
        count = int(vectors.shape[1] or 0)
        products = tf.linalg.matmul(vectors, vectors, transpose_b=True)
        rows, columns = np.tril_indices(count, -1)
        flat = tf.reshape(products, [-1, count * count])
        return tf.gather(flat, rows * count + columns, axis=1)


def build_model(buckets: int, dimensions: int) -> tf.keras.Model:
    """Makes a DLRM that gives the logarithm of the odds of a click.

    Its table of categories has `buckets` rows.
    """
    layers = tf.keras.layers
    numbers = layers.Input([criteo_logs.NUMBERS])
    categories = layers.Input([criteo_logs.CATEGORIES], dtype="int32")
    of_numbers = layers.Dense(32, activation="relu")(numbers)
    of_numbers = layers.Dense(dimensions, activation="relu")(of_numbers)
    table = tfs.keras.TableConfig(
        "categories", buckets, dimensions, initializer="uniform", combiner=None
    )
    embedding = tfs.keras.DistributedEmbedding(
        tfs.keras.FeatureConfig("categories", table)
    )
    vectors = layers.Concatenate(axis=1)(
        [layers.Reshape([1, dimensions])(of_numbers), embedding(categories)]
    )
    features = layers.Concatenate()(
        [of_numbers, layers.Flatten()(vectors), DotInteractions()(vectors)]
    )
    hidden = layers.Dense(64, activation="relu")(features)
    hidden = layers.Dense(32, activation="relu")(hidden)
    return tf.keras.Model([numbers, categories], layers.Dense(1)(hidden))


class Speed(tf.keras.callbacks.Callback):
    """Notes how many examples per second each epoch had, and prints a line."""

    # Under ParameterServerStrategy, Keras 2 asks this of callbacks.
    _supports_tf_logs = True

    def __init__(self, batch_size: int):
        super().__init__()
        self.rates: list[float] = []
        self._batch_size = batch_size
        self._begin, self._steps = 0.0, 0

    def on_epoch_begin(self, epoch: int, logs: dict | None = None):
        """Starts the clock."""
        self._begin, self._steps = time.monotonic(), 0

    def on_train_batch_end(self, batch: int, logs: dict | None = None):
        """Counts the steps of the epoch."""
        self._steps = batch + 1

    def on_epoch_end(self, epoch: int, logs: dict | None = None):
        """Prints the loss and the speed."""
        rate = self._steps * self._batch_size / (time.monotonic() - self._begin)
        self.rates.append(rate)
        # There is none if nothing was left of an epoch that goes on.
        loss = float((logs or {}).get("loss", np.nan))
        print(f"epoch {epoch + 1}: loss {loss:.4f}, {rate:,.0f} examples/s", flush=True)

    def examples_per_second(self) -> float:
        """Returns the speed, without the first epoch if there are others."""
        return float(np.mean(self.rates[1:] or self.rates))


def make_optimizer(options: argparse.Namespace, workers: int, lines: int):
    """Makes an AdamAsync, by itself or in SyncReplicas.

    An epoch has about so many lines: the learning rate goes down to nothing, along half
    a cosine, in the updates that they make.
    """
    quorum = 1
    if options.sync:
        quorum = options.replicas_to_aggregate or workers - options.backup_workers
    if quorum < 1:
        raise SystemExit(
            "--backup-workers must be below the number of workers, "
            f"{workers}. Received: {options.backup_workers}"
        )
    updates = max(1, options.epochs * lines // (options.batch_size * quorum))
    optimizer = tfs.keras.AdamAsync(
        tf.keras.optimizers.schedules.CosineDecay(options.learning_rate, updates)
    )
    if not options.sync:
        print("Training asynchronously.", flush=True)
        return optimizer
    print(f"Training synchronously: quorum {quorum} of {workers} workers.", flush=True)
    return tfs.keras.SyncReplicas(optimizer, quorum, workers)


def train(paths: list[str], options: argparse.Namespace):
    """Trains on logs; returns the model, the optimizer and the `Speed`."""
    strategy, workers = ps_cluster.connect(
        "tf-syncrep launch --workers 3 --ps 2 examples/criteo_dlrm.py"
    )
    with strategy.scope():
        tf.keras.utils.set_random_seed(options.seed)
        model = build_model(options.buckets, options.dimensions)
        lines = criteo_logs.estimate_lines(paths)
        optimizer = make_optimizer(options, workers, lines)
        model.compile(
            optimizer, loss=tf.keras.losses.BinaryCrossentropy(from_logits=True)
        )
        queue = tfs.data.WorkQueue(
            paths, num_epochs=options.epochs, shuffle=True, seed=options.seed
        )

    def dataset_fn(_: tf.distribute.InputContext) -> tf.data.Dataset:
        """Makes the dataset of one worker, from the files that it gets."""
        return criteo_logs.batches_of_queue(queue, options.batch_size, options.buckets)

    speed = Speed(options.batch_size)
    # A task that is started again goes on where the last checkpoint was written.
    checkpoints = options.output / "checkpoints"
    checkpoint = tfs.keras.Checkpoint(
        checkpoints, every_secs=60, work_queues={"logs": queue}
    )
    callbacks: list = [speed, checkpoint]
    if options.sync:
        log_dir = str(options.output / "logs" / time.strftime("%Y%m%d-%H%M%S"))
        callbacks.append(tfs.keras.SyncReport(log_dir=log_dir, every_n_updates=20))
    tfs.keras.fit(
        model,
        dataset_fn,
        epochs=options.epochs,
        callbacks=callbacks,
        verbose=0,
    )
    # After a training has ended, the next one begins anew.
    shutil.rmtree(checkpoints, ignore_errors=True)
    return model, optimizer, speed


def evaluate(
    model: tf.keras.Model, paths: list[str], options: argparse.Namespace
) -> tuple[float, int]:
    """Returns the AUC on the lines that were held out, and how many these are."""
    held_out = criteo_logs.batches(
        paths, options.batch_size, options.buckets, held_out=True
    )
    predict = tf.function(lambda x: model(list(x), training=False))
    scores, labels = [], []
    for x, y in held_out.take(-(-options.held_out_lines // options.batch_size)):
        scores.append(predict(x).numpy()[:, 0])
        labels.append(y.numpy()[:, 0])
    labels = np.concatenate(labels)
    return metrics.auc(labels, np.concatenate(scores)), len(labels)


def parse_options() -> argparse.Namespace:
    """Reads the command line."""
    parser = argparse.ArgumentParser(description="Trains a DLRM on Criteo's logs.")
    add, positive = parser.add_argument, ps_cluster.positive
    add("--data", nargs="+", metavar="FILE", help="logs (default: planted ones)")
    add("--lines", type=positive, default=200_000, help="of planted logs")
    add("--sync", action="store_true", help="train synchronously")
    add("--replicas-to-aggregate", type=positive, help="gradients in an update")
    add("--backup-workers", type=int, default=0, help="whose gradients may be late")
    add("--epochs", type=positive, default=4, help="how often to read all")
    add("--batch-size", type=positive, default=256)
    add("--buckets", type=positive, default=100_000, help="rows of the table")
    add("--dimensions", type=positive, default=16)
    add("--learning-rate", type=float, default=1e-2, help="at the beginning")
    add("--held-out-lines", type=positive, default=100_000, help="to evaluate on")
    add("--seed", type=int, default=1)
    add("--output", type=pathlib.Path, default="build/criteo")
    return parser.parse_args()


def main() -> None:
    """Trains, and prints AUC, speed and the gate's figures."""
    options = parse_options()
    planted = None
    paths = options.data
    if not paths:
        begin = time.monotonic()
        paths, planted = criteo_logs.write_planted(
            (options.output / "data").resolve(), options.lines, seed=options.seed
        )
        rate = options.lines / (time.monotonic() - begin)
        print(
            f"Wrote {options.lines:,} lines of planted logs, {rate:,.0f} a second.",
            flush=True,
        )
    model, optimizer, speed = train(paths, options)
    reached, lines = evaluate(model, paths, options)
    best = "" if planted is None else f" (the planted model's own: {planted:.4f})"
    print(f"AUC {reached:.4f}{best} on {lines:,} lines held out.")
    print(f"Speed: {speed.examples_per_second():,.0f} examples per second.")
    if options.sync:
        ps_cluster.print_gate(optimizer.stats())
        print(f"For a picture: tf-syncrep report {options.output / 'logs'}")


if __name__ == "__main__":
    main()
