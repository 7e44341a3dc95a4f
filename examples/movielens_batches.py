"""Batches of ratings, in epochs that any number of workers may share."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import numpy as np
import tensorflow as tf


@dataclasses.dataclass(frozen=True)
class Examples:
    """Examples to train on, in epochs, each of which has an order of its own.

    An epoch is cut into shares, the items of a `WorkQueue`, which are numbered through
    all epochs. The contents of a share follow from its number and the seed alone,
    whoever reads it.

    With each rating come so many negatives: films that the user has not rated, with the
    label 0, which are drawn anew in each epoch. Then there are no other columns than
    "user" and "item".
    """

    columns: Mapping[str, np.ndarray]  # of `[ratings]` each, by name
    labels: np.ndarray  # float32 `[ratings]`
    num_items: int
    negatives: int = 0
    seed: int = 0  # of orders and negatives
    share: int = 2048  # ratings in a share; the last one of an epoch may have fewer

    def __post_init__(self) -> None:
        if self.negatives and np.bincount(self.columns["user"]).max() >= self.num_items:
            raise ValueError("A user has rated all films: there are no negatives.")

    def shares_per_epoch(self) -> int:
        """Returns how many shares make an epoch."""
        return -(-len(self.labels) // self.share)

    def batches_per_epoch(self, batch_size: int) -> int:
        """Returns how many full batches an epoch has, at least one."""
        return max(1, len(self.labels) * (1 + self.negatives) // batch_size)

    def batches(self, shares: tf.data.Dataset, batch_size: int) -> tf.data.Dataset:
        """Batches of shares, given a dataset of their numbers.

        Returns a dataset of columns, `[batch]` each, and labels `[batch, 1]`. A batch
        may have examples of two shares.
        """
        examples = shares.flat_map(
            lambda share: tf.data.Dataset.from_tensors(self.draw(share)).unbatch()
        )
        return examples.batch(batch_size).map(
            lambda columns, labels: (columns, labels[:, tf.newaxis])
        )

    def draw(self, share: tf.Tensor) -> tuple[dict[str, tf.Tensor], tf.Tensor]:
        """Returns columns and labels of a share, `[examples]`, in random order."""
        share = tf.cast(share, tf.int32)
        count = len(self.labels)
        epoch = tf.math.floordiv(share, self.shares_per_epoch())
        begin = self.share * (share - epoch * self.shares_per_epoch())
        chosen = tf.random.experimental.index_shuffle(
            tf.range(begin, tf.minimum(begin + self.share, count)),
            tf.stack([self.seed, epoch]),
            count - 1,
        )
        columns = {k: tf.gather(column, chosen) for k, column in self.columns.items()}
        labels = tf.gather(self.labels, chosen)
        if self.negatives:
            users = tf.repeat(columns["user"], self.negatives)
            negatives = {"user": users, "item": self._not_rated(users, share)}
            columns = {k: tf.concat([columns[k], negatives[k]], 0) for k in negatives}
            labels = tf.concat([labels, tf.zeros(tf.shape(users))], 0)
        order = tf.random.experimental.stateless_shuffle(
            tf.range(tf.size(labels)), tf.stack([self.seed, share])
        )
        columns = {k: tf.gather(column, order) for k, column in columns.items()}
        return columns, tf.gather(labels, order)

    def _not_rated(self, users: tf.Tensor, share: tf.Tensor) -> tf.Tensor:
        """Draws a film for each user, and draws again if the user has rated it."""
        keys = self.columns["user"].astype(np.int64) * self.num_items
        keys = np.sort(keys + self.columns["item"])

        def is_rated(items):
            wanted = tf.cast(users, tf.int64) * self.num_items
            wanted += tf.cast(items, tf.int64)
            places = tf.minimum(tf.searchsorted(keys, wanted), len(keys) - 1)
            return tf.gather(keys, places) == wanted

        def draw(attempt):
            return tf.random.stateless_uniform(
                tf.shape(users),
                tf.stack([self.seed + 1_000_003 * (1 + attempt), share]),
                maxval=self.num_items,
                dtype=tf.int32,
            )

        def draw_again(attempt, items):
            again = draw(attempt + 1)
            return attempt + 1, tf.where(is_rated(items), again, items)

        return tf.while_loop(
            lambda _, items: tf.reduce_any(is_rated(items)),
            draw_again,
            [tf.constant(0), draw(tf.constant(0))],
        )[1]
