"""DistributedEmbedding in any number of parts: random tables, features and batches.

A float64 twin, without parts, slabs and layers, computes the same.
"""

import dataclasses

import embedding_twin as twin
import keras_variants
import numpy as np
import pytest
import tensorflow as tf
from combinations import mostly_by_night
from same import assert_same

import tf_syncrep as tfs

RATE, BETAS, EPSILON = 0.1, (0.9, 0.99), 1e-3
NUM_PARTS = "tf_syncrep.python.keras.embedding.distributed_embedding.num_parts"


each_seed = pytest.mark.parametrize("seed", mostly_by_night(range(6), 0, 1))


@dataclasses.dataclass
class Feature:
    """The inputs of a feature, of the kind `kind`, for all examples."""

    name: str
    table: str
    kind: str
    max_ids: int
    is_weighted: bool


class Case:
    """Tables, features and batches."""

    def __init__(self, seed):
        self.draw = np.random.default_rng(seed)
        names = [f"t{i}" for i in range(self.draw.integers(1, 5))]
        self.combiners = {
            name: self.draw.choice(["sum", "mean", "sqrtn"]) for name in names
        }
        self.initial = {
            name: self.draw.normal(
                size=(self.draw.integers(1, 30), self.draw.choice([1, 3]))
            ).astype(np.float32)
            for name in names
        }
        self.features = [self._feature(i, names) for i in range(6)]
        # There are batches of no example, of one, and of several.
        self.batches = [self._batch(n) for n in (5, 0, 1, 9)]

    def _feature(self, number, names):
        kind = ["one", "dense", "ragged", "sparse"][self.draw.integers(4)]
        return Feature(
            f"f{number}",
            str(self.draw.choice(names)),
            kind,
            1 if kind == "one" else int(self.draw.integers(1, 5)),
            bool(self.draw.integers(2)),
        )

    def _batch(self, num_examples):
        """The twin's vectors for each feature, and their factors."""
        batch = []
        for feature in self.features:
            size, width = self.initial[feature.table].shape
            fixed = feature.kind in ("one", "dense")
            lengths = [
                feature.max_ids if fixed else self.draw.integers(feature.max_ids + 1)
                for _ in range(num_examples)
            ]
            ids = [self.draw.integers(0, size, n).tolist() for n in lengths]
            weights = [self.draw.uniform(0.5, 2, n).tolist() for n in lengths]
            batch.append(
                (
                    twin.Feature(
                        feature.table,
                        ids,
                        self.combiners[feature.table],
                        weights if feature.is_weighted else None,
                    ),
                    self.draw.normal(size=(num_examples, width)),
                )
            )
        return batch

    def layer(self, stacking):
        """The layer, with its initial tables."""
        configs = {
            name: tfs.keras.TableConfig(name, *x.shape, combiner=self.combiners[name])
            for name, x in self.initial.items()
        }
        layer = tfs.keras.DistributedEmbedding(
            {
                x.name: tfs.keras.FeatureConfig(x.name, configs[x.table])
                for x in self.features
            },
            table_stacking=stacking,
        )
        layer.build()
        used = {x.table for x in self.features}
        layer.set_embedding_tables(
            {name: x for name, x in self.initial.items() if name in used}
        )
        return layer

    def inputs(self, batch):
        """Ids, weights and factors, as tensors."""
        ids, weights, factors = {}, {}, {}
        for feature, (rows, factor) in zip(self.features, batch, strict=True):
            name = feature.name
            ids[name] = _tensor(feature, rows.ids, tf.int64)
            weights[name] = (
                _tensor(feature, rows.weights, tf.float32)
                if feature.is_weighted
                else None
            )
            factors[name] = tf.constant(factor, tf.float32)
        return ids, weights, factors

    def gradients(self, tables, batch):
        """The twin's tables."""
        features, factors = zip(*batch, strict=True)
        return twin.gradients(tables, features, factors)


def _tensor(feature, lists, dtype):
    flat = np.asarray([x for row in lists for x in row], dtype.as_numpy_dtype)
    if feature.kind == "one":
        return tf.constant(flat)
    if feature.kind == "dense":
        return tf.reshape(flat, [len(lists), feature.max_ids])
    lengths = np.asarray([len(row) for row in lists], np.int64)
    ragged = tf.RaggedTensor.from_row_lengths(flat, lengths)
    if feature.kind == "ragged":
        return ragged
    places = [[i, j] for i, row in enumerate(lists) for j in range(len(row))]
    return tf.SparseTensor(
        np.reshape(places, [-1, 2]), flat, [len(lists), feature.max_ids]
    )


def train(case, make_optimizer, num_parts, stacking, monkeypatch):
    """The tables after a step for each batch."""
    monkeypatch.setattr(NUM_PARTS, lambda: num_parts)
    layer, optimizer = case.layer(stacking), make_optimizer()
    variables = layer.trainable_variables
    natives = [keras_variants.native(x) for x in variables]
    optimizer.build(variables)

    @tf.function(reduce_retracing=True)
    def step(ids, weights, factors):
        with tf.GradientTape() as tape:
            vectors = layer(ids, weights=weights, training=True)
            loss = tf.add_n([tf.reduce_sum(factors[k] * vectors[k]) for k in vectors])
        gradients = tape.gradient(loss, natives)
        optimizer.apply_gradients(zip(gradients, variables, strict=True))

    for batch in case.batches:
        step(*case.inputs(batch))
    return layer.get_embedding_tables()


def used(case, tables):
    return {name: tables[name] for name in {x.table for x in case.features}}


@each_seed
def test_plain_gradients_are_the_twins(seed, monkeypatch):
    case = Case(seed)
    expected = {k: x.astype(np.float64) for k, x in case.initial.items()}
    for batch in case.batches:
        for name, gradient in case.gradients(expected, batch).items():
            expected[name] = expected[name] - RATE * gradient
    tables = train(
        case,
        lambda: tf.keras.optimizers.SGD(RATE),
        1 + seed % 4,
        ["auto", None][seed % 2],
        monkeypatch,
    )
    assert_same(tables, used(case, expected), 1e-5)


@each_seed
def test_adam_async_has_the_twins_values_and_the_same_bits_in_any_number_of_parts(
    seed, monkeypatch
):
    case = Case(seed)

    def adam():
        return tfs.keras.AdamAsync(RATE, *BETAS, epsilon=EPSILON)

    alone = train(case, adam, 1, "auto", monkeypatch)
    for num_parts, stacking in ((2, "auto"), (5, None)):
        tables = train(case, adam, num_parts, stacking, monkeypatch)
        assert_same(tables, alone)
    assert_same(alone, used(case, adam_of_twin(case)), 1e-5)


def test_untouched_part_advances_inside_of_sync_replicas_too(monkeypatch):
    case = Case(0)
    case.batches = [case._batch(n) for n in (1, 0, 1, 0, 1, 1)]
    tables = [
        train(
            case,
            lambda: tfs.keras.SyncReplicas(tfs.keras.AdamAsync(RATE, *BETAS), 2),
            num_parts,
            "auto",
            monkeypatch,
        )
        for num_parts in (1, 5)
    ]
    assert_same(tables[1], tables[0])


def adam_of_twin(case):
    """Each step counts for every table; only rows that are named are moved."""
    tables = {k: x.astype(np.float64) for k, x in case.initial.items()}
    m = {k: np.zeros(x.shape) for k, x in tables.items()}
    v = {k: np.zeros(x.shape) for k, x in tables.items()}
    first, second = BETAS
    for step, batch in enumerate(case.batches, start=1):
        rate = RATE * np.sqrt(1 - second**step) / (1 - first**step)
        gradients = case.gradients(tables, batch)
        for name, gradient in gradients.items():
            ids = [x.ids for x, _ in batch if x.table == name]
            rows = sorted({i for lists in ids for row in lists for i in row})
            g = gradient[rows]
            m[name][rows] = first * m[name][rows] + (1 - first) * g
            v[name][rows] = second * v[name][rows] + (1 - second) * g * g
            direction = m[name][rows] / (np.sqrt(v[name][rows]) + EPSILON)
            tables[name][rows] -= rate * direction
    return tables
