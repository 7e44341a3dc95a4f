"""Click logs in the format of Criteo's: reading them, and writing planted ones.

A line is a label (0 or 1), 13 integers and 26 categories (hexadecimal strings), with
tabs between them; any but the label may be missing, which is an empty field. See
https://ailab.criteo.com/ressources/ for the real ones.
"""

from __future__ import annotations

import pathlib
from collections.abc import Sequence

import metrics
import numpy as np
import tensorflow as tf

import tf_syncrep as tfs

NUMBERS, CATEGORIES = 13, 26
# One line in so many is held out from training. Its contents decide which one.
HELD_OUT = 10


def batches(
    paths: Sequence[str], batch_size: int, buckets: int, *, held_out: bool = False
) -> tf.data.Dataset:
    """Reads logs, in order.

    Args:
        paths: the files.
        batch_size: examples in a batch.
        buckets: how many ids the categories of all columns share.
        held_out: whether to read the lines that are held out, or those to train on.

    Returns:
        A dataset of `((numbers, categories), labels)`: float32 `[batch, 13]`, int32
        `[batch, 26]` in `[0, buckets)` and float32 `[batch, 1]`.
    """
    return _parsed(
        tf.data.TextLineDataset(list(paths)), batch_size, buckets, held_out=held_out
    )


def batches_of_queue(
    queue: tfs.data.WorkQueue, batch_size: int, buckets: int
) -> tf.data.Dataset:
    """Reads the logs that a worker gets from a queue, shuffled, to train on.

    Args:
        queue: the queue of files.
        batch_size: examples in a batch.
        buckets: as in `batches`.

    Returns:
        A dataset as of `batches`.
    """
    lines = queue.dataset(tf.data.TextLineDataset, num_readers=2)
    lines = lines.shuffle(64 * batch_size)
    return _parsed(lines, batch_size, buckets, held_out=False).prefetch(4)


def is_held_out(lines: tf.Tensor) -> tf.Tensor:
    """Which of these lines `[lines]` are held out from training: bool `[lines]`."""
    return tf.strings.to_hash_bucket_fast(lines, HELD_OUT) == 0


def parse(lines: tf.Tensor, buckets: int):
    """Turns lines `[batch]` into the examples that `batches` describes."""
    defaults = [[0], *[[0.0]] * NUMBERS, *[[""]] * CATEGORIES]
    label, *fields = tf.io.decode_csv(
        lines, defaults, field_delim="\t", use_quote_delim=False
    )
    numbers = tf.math.log1p(tf.maximum(tf.stack(fields[:NUMBERS], axis=1), 0.0))
    names = tf.stack(fields[NUMBERS:], axis=1)
    hashes = tf.strings.to_hash_bucket_fast(names, 2**31 - 1)
    # The same string means something else in each column.
    columns = tf.range(CATEGORIES, dtype=tf.int64) * 1_000_003
    categories = tf.cast((hashes + columns) % buckets, tf.int32)
    return (numbers, categories), tf.cast(label, tf.float32)[:, tf.newaxis]


def _parsed(lines, batch_size, buckets, held_out):
    def choose(some: tf.Tensor) -> tf.Tensor:
        return tf.boolean_mask(some, is_held_out(some) == held_out)

    # Thousands of lines are read at once, since an op for each would cost more than its
    # work.
    chosen = lines.batch(batch_size).map(choose).rebatch(batch_size)
    return chosen.map(
        lambda some: parse(some, buckets), num_parallel_calls=tf.data.AUTOTUNE
    )


def write_planted(
    folder: pathlib.Path, lines: int, files: int = 16, seed: int = 1
) -> tuple[list[str], float]:
    """Writes logs whose clicks follow a planted model.

    The logarithm of a click's odds is a sum over some numbers and the categories of
    some columns, and over the products of vectors of pairs of categories, which a DLRM
    can express. No model can do better than the planted one.

    Args:
        folder: the folder for the files.
        lines: how many lines all files have together.
        files: how many files.
        seed: for the model and for the lines.

    Returns:
        The files, and the planted model's own AUC on the lines that are held out.
    """
    random = np.random.default_rng(seed)
    odds = np.full(lines, -1.2)
    columns = []
    for column in range(NUMBERS):
        values = random.lognormal(1.0, 1.5, lines).astype(np.int64)
        missing = random.random(lines) < 0.1
        values[missing] = 0
        if column < 5:
            odds += 0.4 * (-1) ** column * (np.log1p(values) - 1.4)
        columns.append(np.where(missing, "", values.astype(str)))
    vectors = []
    for column in range(CATEGORIES):
        count = (8, 30, 100, 300)[column % 4]
        popularity = 1 / np.arange(1, count + 1)
        values = random.choice(count, lines, p=popularity / popularity.sum())
        names = np.array([f"{x:08x}" for x in random.integers(0, 2**32, count)])
        names[count // 2] = ""
        if column < 8:
            odds += random.normal(0, 0.6, count)[values]
        if column < 4:
            vectors.append(random.normal(0, 0.6, (count, 3))[values])
        columns.append(names[values])
    for left, right in ((0, 1), (2, 3)):
        odds += np.sum(vectors[left] * vectors[right], axis=1)
    labels = random.random(lines) < 1 / (1 + np.exp(-odds))
    columns.insert(0, labels.astype(int).astype(str))
    texts = ["\t".join(fields) for fields in zip(*columns, strict=True)]

    folder.mkdir(parents=True, exist_ok=True)
    paths = [str(folder / f"clicks-{number}.tsv") for number in range(files)]
    for number, path in enumerate(paths):
        pathlib.Path(path).write_text("\n".join(texts[number::files]) + "\n")
    held_out = is_held_out(tf.constant(texts)).numpy()
    return paths, metrics.auc(labels[held_out], odds[held_out])
