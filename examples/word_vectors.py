"""Word vectors, trained by parameter servers: the help pages of Python itself.

Skip-gram with sampled softmax (Mikolov et al., 2013) on the text behind
`help("topics")`, by Keras' `Model.fit` under `ParameterServerStrategy`, with Keras 3,
tf_keras or Keras 2. `tfs.keras.DistributedEmbedding` spreads the tables of word vectors
over all parameter servers, which get sparse gradients from all workers at once.
`tfs.keras.AdamAsync` updates just the rows that a gradient touches, on the server that
holds them.

On one machine, with two workers and two parameter servers:

    tf-syncrep launch --workers 2 --ps 2 examples/word_vectors.py

With `--replicas-to-aggregate N`, `tfs.keras.SyncReplicas` around it makes an update of
each N gradients, all computed on the same vectors, and leaves logs for `tf-syncrep
report`.

On many machines, start `tf-syncrep serve` for each worker and parameter server
and this script as the chief, each with its own TF_CONFIG.
"""

from __future__ import annotations

import argparse
import math
import pathlib
import time
from typing import Any

import numpy as np
import ps_cluster
import pydoc_corpus
import tensorflow as tf
from matplotlib.figure import Figure

import tf_syncrep as tfs

# From here on `model.fit` runs under ParameterServerStrategy, with any Keras.
tfs.keras.install_fit()

SHOWN_WORDS = (
    "list",
    "tuple",
    "float",
    "string",
    "dictionary",
    "function",
    "import",
    "exception",
    "try",
    "async",
    "__enter__",
    "local",
)


class SkipGram(tf.keras.Model):
    """Predicts the words around a word from that word's vector.

    Each batch tells its true contexts from random words, the `negatives`.
    """

    def __init__(
        self, corpus: pydoc_corpus.Corpus, dimensions: int, negatives: int, seed: int
    ):
        super().__init__()
        vocabulary = len(corpus.words)
        bound = 0.5 / math.sqrt(dimensions)
        initializer = tf.keras.initializers.RandomUniform(-bound, bound, seed)
        tables = {
            name: tfs.keras.TableConfig(name, vocabulary, width, values, combiner=None)
            for name, width, values in (
                ("vectors", dimensions, initializer),
                ("context_vectors", dimensions, "zeros"),
                ("context_biases", 1, "zeros"),
            )
        }
        features = {
            name: tfs.keras.FeatureConfig(name, config)
            for name, config in tables.items()
        }
        self.words = tfs.keras.DistributedEmbedding(features.pop("vectors"))
        self.contexts = tfs.keras.DistributedEmbedding(features)
        self.vocabulary = vocabulary
        self.negatives = negatives
        self.seed = seed
        self.mean_loss = tf.keras.metrics.Mean(name="loss")

    @property
    def metrics(self) -> list:
        """The metrics that `fit` resets at the start of each epoch."""
        return [self.mean_loss]

    def build(self, input_shape: Any = None) -> None:
        """Makes the tables."""
        self.words.build()
        self.contexts.build()
        super().build(input_shape)

    def vectors_as_array(self) -> np.ndarray:
        """Fetches the word vectors `[words, dimensions]` from their servers."""
        return self.words.get_embedding_tables()["vectors"]

    def call(self, centres, training: bool = False):
        """Looks up the vectors `[batch, dimensions]` of the words `[batch]`."""
        return self.words(centres, training=training)

    def compute_loss(
        self,
        x: Any = None,
        y: Any = None,
        y_pred: Any = None,
        sample_weight: Any = None,
        training: bool = True,
    ):
        """Sampled softmax of the true context words `y` against random ones."""
        labels = tf.cast(y, tf.int64)
        others, expected_labels, expected_others = (
            tf.random.log_uniform_candidate_sampler(
                labels[:, tf.newaxis],
                num_true=1,
                num_sampled=self.negatives,
                unique=True,
                range_max=self.vocabulary,
                seed=self.seed,
            )
        )
        words = tf.concat([labels, others], axis=0)
        found = self.contexts(
            {"context_vectors": words, "context_biases": words}, training=training
        )
        sizes = [tf.size(labels), self.negatives]
        vectors, other_vectors = tf.split(found["context_vectors"], sizes)
        biases, other_biases = tf.split(found["context_biases"], sizes)
        # Otherwise words that are drawn often would seem less likely than they are.
        logits = tf.reduce_sum(y_pred * vectors, axis=1, keepdims=True)
        logits += biases - tf.math.log(expected_labels)
        other_logits = tf.matmul(y_pred, other_vectors, transpose_b=True)
        other_logits += other_biases[:, 0] - tf.math.log(expected_others)
        is_label = labels[:, tf.newaxis] == others
        other_logits = tf.where(is_label, other_logits.dtype.min, other_logits)
        loss = tf.reduce_mean(
            tf.nn.sparse_softmax_cross_entropy_with_logits(
                labels=tf.zeros_like(labels),
                logits=tf.concat([logits, other_logits], axis=1),
            )
        )
        self.mean_loss.update_state(loss)
        return loss


class Progress(tf.keras.callbacks.Callback):
    """Prints a line and notes loss and time at the end of each epoch."""

    def __init__(self, corpus: pydoc_corpus.Corpus):
        super().__init__()
        self.steps: list[int] = []  # batches trained on so far
        self.losses: list[float] = []  # the mean in each epoch
        self.seconds: list[float] = []  # since the training began
        self._corpus = corpus

    def on_train_begin(self, logs: dict | None = None):
        """Starts the clock."""
        self._begin = time.monotonic()

    def on_epoch_end(self, epoch: int, logs: dict):
        """Notes and prints where the training is."""
        before = self.seconds[-1] if self.seconds else 0.0
        now = time.monotonic() - self._begin
        epochs, steps_per_epoch = self.params["epochs"], self.params["steps"]
        self.steps.append((epoch + 1) * steps_per_epoch)
        self.losses.append(float(logs["loss"]))
        self.seconds.append(now)

        share = (epoch + 1) / epochs
        neighbours = nearest(self._corpus, self.model.vectors_as_array(), "tuple", 3)
        left = ""
        if epoch:  # The first one says little of the others: a step is traced in it.
            secs_per_epoch = (now - self.seconds[0]) / epoch
            left = f"{secs_per_epoch * (epochs - epoch - 1):.0f} s left"
        print(
            f"{share:4.0%}  step {self.steps[-1]:,}  loss {self.losses[-1]:.3f}  "
            f"{steps_per_epoch / (now - before):3.0f} steps/s  "
            f"{left:>10}   tuple ~ {', '.join(neighbours)}",
            flush=True,
        )


def device(weight: Any) -> str:
    """Returns the device of a weight."""
    variable = weight.value if hasattr(tf.keras, "ops") else weight  # Keras 3, or 2
    return variable.device


def nearest(
    corpus: pydoc_corpus.Corpus, vectors: np.ndarray, word: str, count: int
) -> list[str]:
    """Returns the words whose vectors have the largest cosine with that of `word`."""
    unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    word_id = corpus.words.index(word)
    order = np.argsort(-(unit @ unit[word_id]))
    return [corpus.words[i] for i in order if i != word_id][:count]


def train(
    corpus: pydoc_corpus.Corpus, options: argparse.Namespace
) -> tuple[np.ndarray, Progress]:
    """Trains on the cluster; returns the vectors `[words, dimensions]`."""
    epochs = max(1, round(options.steps / options.steps_per_epoch))
    strategy, _ = ps_cluster.connect(
        "tf-syncrep launch --workers 2 --ps 2 examples/word_vectors.py"
    )
    progress = Progress(corpus)
    with strategy.scope():
        model = SkipGram(corpus, options.dimensions, options.negatives, options.seed)
        learning_rate = tf.keras.optimizers.schedules.CosineDecay(
            options.learning_rate,
            # It counts updates, and an update may take several steps.
            epochs * options.steps_per_epoch // (options.replicas_to_aggregate or 1),
            alpha=0.02,
        )
        optimizer = tfs.keras.AdamAsync(learning_rate)
        callbacks: list = [progress]
        if options.replicas_to_aggregate:
            optimizer = tfs.keras.SyncReplicas(optimizer, options.replicas_to_aggregate)
            log_dir = str(options.output / "logs" / time.strftime("%Y%m%d-%H%M%S"))
            callbacks.append(
                tfs.keras.SyncReport(log_dir=log_dir, every_n_updates=20, verbose=0)
            )
        model.compile(
            optimizer=optimizer,
            steps_per_execution=10,  # One trip to a worker is good for ten batches.
        )

    def dataset_fn(context: tf.distribute.InputContext) -> tf.data.Dataset:
        """Makes the dataset of one worker, in an order of its own."""
        seed = options.seed + context.input_pipeline_id
        return pydoc_corpus.skip_gram_batches(corpus, options.batch_size, seed=seed)

    model.fit(
        dataset_fn,  # pyright: ignore[reportArgumentType]
        epochs=epochs,
        steps_per_epoch=options.steps_per_epoch,
        callbacks=callbacks,
        verbose=0,
    )
    print("\nThe tables of word vectors lie on:")
    for weight in model.trainable_variables:
        rows, dimensions = weight.shape
        print(f"  {device(weight)}  {rows} x {dimensions}")
    return model.vectors_as_array(), progress


def plot(progress: Progress, path: pathlib.Path) -> None:
    """Draws loss and speed over the steps as a PNG."""
    figure = Figure(figsize=(8, 5), layout="constrained")
    loss_axes, speed_axes = figure.subplots(2, sharex=True, height_ratios=[3, 1])
    loss_axes.plot(progress.steps, progress.losses, color="tab:blue", linewidth=2)
    loss_axes.annotate(
        f"{progress.losses[-1]:.2f}",
        (progress.steps[-1], progress.losses[-1]),
        xytext=(0, 6),
        textcoords="offset points",
        ha="right",
        color="tab:blue",
    )
    loss_axes.set_ylabel("sampled softmax loss")
    loss_axes.set_title("Training word vectors on Python's help pages", loc="left")

    seconds_per_epoch = np.diff(progress.seconds, prepend=0.0)
    steps_per_epoch = np.diff(progress.steps, prepend=0)
    speed = steps_per_epoch / seconds_per_epoch
    speed_axes.fill_between(progress.steps, speed, color="tab:orange", alpha=0.3)
    speed_axes.plot(progress.steps, speed, color="tab:orange")
    speed_axes.set_ylim(bottom=0)
    speed_axes.set_ylabel("steps/s")
    speed_axes.set_xlabel("steps of all workers together")
    speed_axes.set_xlim(0, progress.steps[-1])
    speed_axes.xaxis.set_major_formatter("{x:,.0f}")
    for axes in (loss_axes, speed_axes):
        axes.grid(alpha=0.3)
        axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=150)


def parse_options() -> argparse.Namespace:
    """Reads the command line."""
    parser = argparse.ArgumentParser(
        description="Trains word vectors on Python's own help pages."
    )
    add, positive = parser.add_argument, ps_cluster.positive
    add("--steps", type=positive, default=7000, help="batches in all")
    add("--steps-per-epoch", type=positive, default=200)
    add("--batch-size", type=positive, default=1024, help="pairs")
    add("--dimensions", type=positive, default=64)
    add("--negatives", type=positive, default=64, help="for a batch")
    add("--learning-rate", type=float, default=5e-3)
    add(
        "--replicas-to-aggregate",
        type=positive,
        help="train synchronously, with so many gradients in an update",
    )
    add("--seed", type=int, default=1)
    add("--output", type=pathlib.Path, default="build/demo")
    return parser.parse_args()


def main() -> None:
    """Trains, prints what was learned, writes the vectors and the loss curve."""
    options = parse_options()
    corpus = pydoc_corpus.load()
    print(f"Text: {len(corpus.tokens):,} words, {len(corpus.words):,} different ones.")
    vectors, progress = train(corpus, options)

    print("\nNearest neighbours:")
    for word in SHOWN_WORDS:
        print(f"  {word:>12}  {', '.join(nearest(corpus, vectors, word, 6))}")

    options.output.mkdir(parents=True, exist_ok=True)
    vectors_path = options.output / "vectors.npz"
    np.savez(vectors_path, words=corpus.words, vectors=vectors)
    loss_path = options.output / "loss.png"
    plot(progress, loss_path)

    steps, seconds = progress.steps[-1], progress.seconds[-1]
    print(
        f"\n{steps:,} steps of {options.batch_size:,} pairs in {seconds:.0f} s: "
        f"{steps / seconds:.0f} steps per second.\n"
        f"Wrote {vectors_path} and {loss_path}."
    )


if __name__ == "__main__":
    main()
