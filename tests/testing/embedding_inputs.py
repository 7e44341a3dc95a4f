"""Ids of all kinds and their weights: as tensors, and as lists for the twin."""

import itertools
from collections.abc import Callable
from typing import Any

import embedding_twin as twin
import numpy as np
import tensorflow as tf

import tf_syncrep as tfs

COMBINERS = {"s": "sum", "m": "mean", "q": "sqrtn", "n": None}
IDS = {
    "dense": [[1, 2, 3], [4, 4, 0]],
    "ragged": [[1, 2, 3, 4], []],
    "sparse": [[3, 7], [7]],
    "one": [[5], [6]],
}
WEIGHTS = {
    "dense": [[0.5, 1.0, 0.0], [2.0, 1.0, 1.0]],
    "ragged": [[0.5, 1.0, 0.0, 3.0], []],
    "sparse": [[0.25, 4.0], [2.0]],
    "one": [[3.0], [0.0]],
}
WIDTHS = {"dense": 3, "ragged": 4, "sparse": 2, "one": 1}


def tensor(kind: str, lists: list[list[Any]], width: int, convert: Callable) -> Any:
    """The lists of some examples as a tensor of a kind.

    A list has at most `width` numbers, and so many in a dense tensor; `convert` makes a
    tensor of the numbers of all lists.
    """
    flat = convert([x for row in lists for x in row])
    if kind == "one":
        return flat
    if kind == "dense":
        return tf.reshape(flat, [len(lists), width])
    if kind == "ragged":
        lengths = np.asarray([len(row) for row in lists], np.int64)
        return tf.RaggedTensor.from_row_lengths(flat, lengths)
    # There are columns without an id.
    places = [[i, 2 * j + 1] for i, row in enumerate(lists) for j in range(len(row))]
    return tf.SparseTensor(np.reshape(places, [-1, 2]), flat, [len(lists), 2 * width])


def assert_looks_up_as_the_twin(
    size: Any,
    convert: Callable[[Any], tf.Tensor],
    vectors_of: Callable[[Any], np.ndarray],
    training: bool,
) -> None:
    """Looks up ids of each kind with each combiner, without weights and with them.

    `convert` makes a tensor of ids from 0 to 7, and `vectors_of` returns their vectors
    in a table that the layer returns, in this order.
    """
    tables = {
        name: tfs.keras.TableConfig(name, size, 4, combiner=combiner)
        for name, combiner in COMBINERS.items()
    }
    features = {f"{x}_{kind}": (x, kind) for x in tables for kind in IDS}
    layer = tfs.keras.DistributedEmbedding(
        {f: tfs.keras.FeatureConfig(f, tables[x]) for f, (x, _) in features.items()}
    )
    ids, weights = (
        {kind: tensor(kind, lists[kind], WIDTHS[kind], make) for kind in IDS}
        for lists, make in ((IDS, convert), (WEIGHTS, tf.constant))
    )
    inputs = {f: ids[kind] for f, (_, kind) in features.items()}
    some = {
        f: None if tables[x].combiner is None else weights[kind]
        for f, (x, kind) in features.items()
    }
    for arguments, lists in (({}, {}), ({"weights": some}, WEIGHTS)):
        vectors = layer(inputs, training=training, **arguments)
        values = {k: vectors_of(x) for k, x in layer.get_embedding_tables().items()}
        for f, (x, kind) in features.items():
            feature = twin.Feature(x, IDS[kind], tables[x].combiner, lists.get(kind))
            actual = vectors[f]
            if feature.combiner is None and kind != "dense":
                feature.ids = [*itertools.chain(*IDS[kind])]
                actual = actual if kind == "one" else actual.values
            expected = twin.look_up(values, feature)
            np.testing.assert_allclose(actual, expected, atol=1e-6)
