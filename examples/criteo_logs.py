"""Click logs in the format of Criteo's: reading them, and writing planted ones.

A line is a label (0 or 1), 13 integers and 26 categories (hexadecimal strings), with
tabs between them; any but the label may be missing, which is an empty field. See
https://ailab.criteo.com/ressources/ for the real ones.
"""

from __future__ import annotations

import contextlib
import pathlib
from collections.abc import Sequence

import metrics
import numpy as np
import tensorflow as tf

import tf_syncrep as tfs

NUMBERS, CATEGORIES = 13, 26
# One line in so many is held out from training. Its contents decide which one.
HELD_OUT = 10
# How many lines are written at a time: a multiple of any number of files in use, so
# that all files come to the same length.
LINES_AT_ONCE = 64_000


def batches(
    paths: Sequence[str], batch_size: int, buckets: int, *, held_out: bool = False
) -> tf.data.Dataset:
    """Reads logs, in order: the lines that are held out, or those to train on.

    Returns a dataset of `((numbers, categories), labels)`: float32 `[batch, 13]`, int32
    `[batch, 26]` in `[0, buckets)`, which all columns share, and float32 `[batch, 1]`.
    """
    return _parsed(
        tf.data.TextLineDataset(list(paths)), batch_size, buckets, held_out=held_out
    )


def batches_of_queue(
    queue: tfs.data.WorkQueue, batch_size: int, buckets: int
) -> tf.data.Dataset:
    """Reads the logs that a worker gets from a queue, shuffled, to train on.

    Returns a dataset as of `batches`.
    """
    lines = queue.dataset(tf.data.TextLineDataset, num_readers=2)
    lines = lines.shuffle(64 * batch_size)
    return _parsed(lines, batch_size, buckets, held_out=False).prefetch(4)


def estimate_lines(paths: Sequence[str]) -> int:
    """About how many lines to train on the files have, by their sizes."""
    with open(paths[0], "rb") as file:
        first = file.readlines(1 << 20)
    size = sum(pathlib.Path(path).stat().st_size for path in paths)
    lines = size * len(first) / max(1, sum(map(len, first)))
    return int(lines * (1 - 1 / HELD_OUT))


def is_held_out(lines: tf.Tensor) -> tf.Tensor:
    """Returns which of these `[lines]` are held out from training: bool `[lines]`."""
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


class Planted:
    """A model of clicks.

    The logarithm of a click's odds is a sum over some numbers and the categories of
    some columns, and over the products of vectors of pairs of categories: what a
    DLRM can express. Whoever knows it cannot be surpassed but by luck.
    """

    def __init__(self, random: np.random.Generator):
        """Draws one."""
        self._names, self._weights, self._vectors, self._popularity = [], [], [], []
        for column in range(CATEGORIES):
            count = (8, 30, 100, 300)[column % 4]
            popularity = 1 / np.arange(1, count + 1)
            self._popularity.append(popularity / popularity.sum())
            names = np.array([f"{x:08x}" for x in random.integers(0, 2**32, count)])
            names[count // 2] = ""
            self._names.append(names)
            self._weights.append(random.normal(0, 0.6 if column < 8 else 0.0, count))
            self._vectors.append(random.normal(0, 0.6, (count, 3)))

    def draw(
        self, lines: int, random: np.random.Generator
    ) -> tuple[list[str], np.ndarray, np.ndarray]:
        """Draws lines; returns them, their labels, bool, and the logarithms of odds."""
        odds = np.full(lines, -1.2)
        columns = []
        for column in range(NUMBERS):
            values = random.lognormal(1.0, 1.5, lines).astype(np.int64)
            missing = random.random(lines) < 0.1
            values[missing] = 0
            if column < 5:
                odds += 0.4 * (-1) ** column * (np.log1p(values) - 1.4)
            columns.append(np.where(missing, "", values.astype(str)))
        categories = []
        for names, weights, popularity in zip(
            self._names, self._weights, self._popularity, strict=True
        ):
            values = random.choice(len(names), lines, p=popularity)
            odds += weights[values]
            columns.append(names[values])
            categories.append(values)
        for left, right in ((0, 1), (2, 3)):
            vectors = [self._vectors[i][categories[i]] for i in (left, right)]
            odds += np.sum(vectors[0] * vectors[1], axis=1)
        labels = random.random(lines) < probability(odds)
        columns.insert(0, labels.astype(int).astype(str))
        return ["\t".join(x) for x in zip(*columns, strict=True)], labels, odds


def probability(odds: np.ndarray) -> np.ndarray:
    """Returns the probability of a click whose odds have this logarithm."""
    return 1 / (1 + np.exp(-odds))


def write_planted(
    folder: pathlib.Path, lines: int, files: int = 16, seed: int = 1
) -> tuple[list[str], float]:
    """Writes logs whose clicks follow a `Planted` model, `lines` in all files together.

    Any number of lines take the memory of a few: a million are written in some
    twenty seconds, by one core.

    Returns the files, and the planted model's own AUC on the lines that are held out.
    """
    random = np.random.default_rng(seed)
    planted = Planted(random)
    folder.mkdir(parents=True, exist_ok=True)
    paths = [str(folder / f"clicks-{number}.tsv") for number in range(files)]
    held_out_labels, held_out_odds = [], []
    with contextlib.ExitStack() as stack:
        opened = [stack.enter_context(open(x, "w", encoding="ascii")) for x in paths]
        for begin in range(0, lines, LINES_AT_ONCE):
            number = min(LINES_AT_ONCE, lines - begin)
            texts, labels, odds = planted.draw(number, random)
            for i, file in enumerate(opened):
                file.writelines(f"{text}\n" for text in texts[i::files])
            held_out = is_held_out(tf.constant(texts)).numpy()
            held_out_labels.append(labels[held_out])
            held_out_odds.append(odds[held_out])
    return paths, metrics.auc(
        np.concatenate(held_out_labels), np.concatenate(held_out_odds)
    )
