"""A worker's dataset in chunks of batches, epoch after epoch."""

from __future__ import annotations

from typing import Any

import tensorflow as tf


def in_chunks(
    dataset: tf.data.Dataset, size: int, num_skipped: int | tf.Tensor = 0
) -> tf.data.Dataset:
    """Returns a dataset that reads another one again and again, in chunks.

    It iterates over the dataset anew for each epoch, as Keras does: the next epoch is
    shuffled in another order, and a cache stays. It reads no batch before its chunk is
    asked for.

    `size`: how many batches a chunk has; the last one of an epoch may have fewer.
    """
    end = tf.data.Dataset.from_tensors(0).map(
        lambda _: tf.raw_ops.OptionalNone()[tf.newaxis]
    )
    # A map would be made parallel, and read ahead.
    chunks = dataset.scan(0, lambda state, *batch: (state, _held(*batch))).batch(size)
    # To make an iterator is to draw the seeds of a shuffle. `zip` would read a chunk.
    first = tf.data.Dataset.range(1)
    skipped = tf.data.Dataset.range(num_skipped).flat_map(
        lambda _: tf.data.Dataset.choose_from_datasets([end.take(0), chunks], first)
    )
    # Nor is the next epoch to be read in advance.
    options = tf.data.Options()
    options.experimental_optimization.inject_prefetch = False
    epochs = skipped.concatenate(chunks.concatenate(end).repeat())
    return epochs.with_options(options)


# The spec of the iterators of such datasets.
ITERATOR_SPEC = tf.data.IteratorSpec(tf.TensorSpec([None], tf.variant))


def _held(*batch: Any) -> tf.Tensor:
    """Holds a batch in a variant, as optionals can be batched only so."""
    tensors = tf.nest.flatten(batch, expand_composites=True)
    return tf.raw_ops.OptionalFromValue(components=tensors)


def take_chunk(iterator: Any) -> tuple[tf.Tensor, tf.Tensor]:
    """Reads a chunk, and returns it with the number of its batches; 0 at an end."""
    chunk = next(iterator)
    is_chunk = tf.raw_ops.OptionalHasValue(optional=chunk[0])
    return chunk, tf.where(is_chunk, tf.shape(chunk)[0], 0)


def batch_of(chunk: tf.Tensor, i: tf.Tensor, spec: Any) -> Any:
    """Returns a batch of a chunk, of the given specs."""
    leaves = tf.nest.flatten(spec, expand_composites=True)
    tensors = tf.raw_ops.OptionalGetValue(
        optional=chunk[i],
        output_types=[leaf.dtype for leaf in leaves],
        output_shapes=[leaf.shape for leaf in leaves],
    )
    return tf.nest.pack_sequence_as(spec, tensors, expand_composites=True)
