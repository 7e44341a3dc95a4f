"""Lookups in tables, and their gradients, by NumPy in float64."""

import dataclasses

import numpy as np


@dataclasses.dataclass
class Feature:
    """The ids of each example in a table: lists of ids, and of weights, or None."""

    table: str
    ids: list
    combiner: str | None
    weights: list | None = None

    def factors(self, example):
        """The factor of each row of an example."""
        ids = self.ids[example]
        weights = np.ones(len(ids)) if self.weights is None else self.weights[example]
        weights = np.asarray(weights, np.float32).astype(np.float64)
        divisor = 1.0
        if self.combiner == "mean":
            divisor = weights.sum()
        elif self.combiner == "sqrtn":
            divisor = np.sqrt((weights**2).sum())
        return weights / divisor if divisor else 0 * weights


def look_up(tables, feature):
    """The vector of each example or, without a combiner, one vector for each id."""
    table = tables[feature.table]
    if feature.combiner is None:
        return table[np.asarray(feature.ids, np.int64)]
    vectors = np.zeros([len(feature.ids), table.shape[1]])
    for example, ids in enumerate(feature.ids):
        for id_, factor in zip(ids, feature.factors(example), strict=True):
            vectors[example] += factor * table[id_]
    return vectors


def gradients(tables, features, of_vectors):
    """The gradient of each table, dense, for gradients of the results of `look_up`."""
    sums = {name: np.zeros(table.shape) for name, table in tables.items()}
    for feature, gradient in zip(features, of_vectors, strict=True):
        if feature.combiner is None:
            ids = np.asarray(feature.ids, np.int64)
            np.add.at(sums[feature.table], ids, gradient)
            continue
        for example, ids in enumerate(feature.ids):
            for id_, factor in zip(ids, feature.factors(example), strict=True):
                sums[feature.table][id_] += factor * gradient[example]
    return sums
