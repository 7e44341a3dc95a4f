"""Weights of ids: one for each."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from tf_syncrep.python.embedding.ragged import as_ragged, is_ragged


def flat_weights(weights: Any, ids: tf.Tensor, splits: Any, owner: str) -> tf.Tensor:
    """Returns weights in the shape of ids, after checking that they belong together.

    `splits`: the row splits of ragged ids, of int64; None for dense ids. Raises
    ValueError: the kinds or the static shapes differ. Raises
    tf.errors.InvalidArgumentError: when the op runs, the shapes differ.
    """
    if is_ragged(weights) != (splits is not None):
        raise ValueError(
            f"Weights of {owner} must be ragged or sparse if its ids are, and dense "
            f"otherwise. Received: weights={weights!r}, ids={ids!r}"
        )
    if splits is None:
        rule = f"Weights of {owner} must have the shape of its ids"
        weights = tf.convert_to_tensor(weights)
        if not weights.shape.is_compatible_with(ids.shape):
            raise ValueError(
                f"{rule}, {ids.shape}. Received: weights of shape {weights.shape}"
            )
        if not (weights.shape.is_fully_defined() and ids.shape.is_fully_defined()):
            weights = _checked(
                weights, f"{rule}. Shape", tf.shape(ids), tf.shape(weights)
            )
    else:
        weights = as_ragged(weights)
        weights = _checked(
            weights.values,
            f"Weights of {owner} must be as many in each row as its ids. Row splits",
            splits,
            tf.cast(weights.row_splits, tf.int64),
        )
    weights = tf.stop_gradient(tf.cast(weights, tf.float32))
    return tf.reshape(weights, tf.shape(ids))


def _checked(
    weights: tf.Tensor, message: str, of_ids: tf.Tensor, of_weights: tf.Tensor
) -> tf.Tensor:
    """Returns the weights after an op that fails unless two vectors are equal."""
    least = tf.minimum(tf.size(of_ids), tf.size(of_weights))
    check = tf.debugging.Assert(
        tf.logical_and(
            tf.equal(tf.size(of_ids), tf.size(of_weights)),
            tf.reduce_all(tf.equal(of_ids[:least], of_weights[:least])),
        ),
        [f"{message} of ids:", of_ids, "of weights:", of_weights],
    )
    # Eagerly it is None: it has been checked.
    with tf.control_dependencies([] if check is None else [check]):
        return tf.identity(weights)
