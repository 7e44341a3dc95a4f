"""Optimizers that round half and bfloat16 variables stochastically."""

import keras_variants
import numpy as np
import pytest
import tensorflow as tf
from combinations import mostly_by_night, thinned
from same import assert_same

import tf_syncrep as tfs

NUM_PARTS = "tf_syncrep.python.keras.embedding.distributed_embedding.num_parts"


@tf.keras.utils.register_keras_serializable("tests")
class DescentOfMine(tfs.keras.LazyOptimizer):
    """A rule without a kernel, as a user would write it."""

    def initial_slots(self):
        return {"steps": 0.0}

    def update_rows(self, rows, gradient, slots, learning_rate):
        return rows - learning_rate * gradient, {"steps": slots["steps"] + 1}


def momentum(*args, **options):
    return tfs.keras.SGD(*args, momentum=0.5, **options)


# Each with a rate at which a step is below half of the last place of a bfloat16 weight.
OPTIMIZERS = {
    "adam_async": (tfs.keras.AdamAsync, 0.0002),
    "adagrad": (tfs.keras.Adagrad, 0.001),
    "rowwise_adagrad": (tfs.keras.RowwiseAdagrad, 0.0005),
    "ftrl": (tfs.keras.FTRL, 0.0002),
    "sgd": (tfs.keras.SGD, 0.001),
    "momentum": (momentum, 0.0005),
    "mine": (DescentOfMine, 0.001),
}
each_optimizer = pytest.mark.parametrize("name", OPTIMIZERS)
KINDS = ["sparse", "dense"]
ROWS, DIM = 40, 16


def as_float(variable):
    return keras_variants.native(variable).numpy().astype(np.float64)


def count_of(optimizer, variable):
    count = optimizer.slots(variable)["rounding_count"]
    (value,) = keras_variants.native(count).numpy()
    return value


@each_optimizer
def test_larger_types_keep_their_bits_and_slots(name):
    make, rate = OPTIMIZERS[name]
    results = []
    for options in ({}, {"stochastic_rounding": True}):
        variables = [tf.Variable(tf.ones([5, 3], x)) for x in (tf.float32, tf.float64)]
        optimizer = make(rate, **options)
        gradients = [tf.fill([5, 3], tf.constant(0.3, x.dtype)) for x in variables]
        optimizer.apply_gradients(zip(gradients, variables, strict=True))
        assert all("rounding_count" not in optimizer.slots(x) for x in variables)
        results.append([x.numpy() for x in variables])
    for one, other in zip(*results, strict=True):
        np.testing.assert_array_equal(one, other)


def train(make, dtype, kind, steps, jit_compile=False, **options):
    """Weights that begin at 1, under gradients towards 0 and noise."""
    variable = tf.Variable(tf.ones([ROWS, DIM], dtype))
    optimizer = make(**options)
    optimizer.build([variable])
    noise = tf.random.Generator.from_seed(1)

    @tf.function(jit_compile=jit_compile)
    def step(drawn):
        gradient = tf.cast(0.5 + 0.25 * drawn, dtype)
        if kind == "sparse":
            # Each row twice, with half of its gradient.
            rows = tf.concat([tf.range(ROWS), tf.range(ROWS)], axis=0)
            values = tf.concat([gradient, gradient], axis=0) / 2
            gradient = tf.IndexedSlices(values, rows, tf.constant([ROWS, DIM]))
        optimizer.apply_gradients([(gradient, variable)])

    for _ in range(steps):
        step(noise.normal([ROWS, DIM]))
    return as_float(variable), optimizer, variable


@thinned("name, kind, jit_compile", OPTIMIZERS, KINDS, [False, True])
def test_small_steps_train_as_in_float32_and_are_lost_when_rounded_to_nearest(
    name, kind, jit_compile
):
    make, rate = OPTIMIZERS[name]
    arguments = {"kind": kind, "steps": 200, "jit_compile": jit_compile}
    exact, _, _ = train(make, tf.float32, learning_rate=rate, **arguments)
    nearest, _, _ = train(make, tf.bfloat16, learning_rate=rate, **arguments)
    rounded, optimizer, variable = train(
        make, tf.bfloat16, learning_rate=rate, stochastic_rounding=True, **arguments
    )
    moved = (1 - exact).mean()
    assert moved > 0.01
    if name != "ftrl":  # which computes weights from its slots, and not from weights
        assert abs(1 - nearest.mean()) < 0.1 * moved
    # A step has a standard deviation of at most half a place, 2^-9.
    deviation = 2.0**-9 * np.sqrt(200 / (ROWS * DIM))
    np.testing.assert_allclose(rounded.mean(), exact.mean(), atol=5 * deviation)
    assert count_of(optimizer, variable) == -200


@pytest.mark.parametrize("name", ["mine", "adam_async", "rowwise_adagrad"])
@pytest.mark.parametrize("jit_compile", [False, True])
def test_equal_rows_and_variables_of_one_shape(name, jit_compile):
    """Occurrences of a row are rounded equally, rows and variables differently."""
    make, rate = OPTIMIZERS[name]
    variables = [tf.Variable(tf.ones([3, 500], tf.bfloat16)) for _ in range(2)]
    optimizer = make(rate, stochastic_rounding=True)
    optimizer.build(variables)

    @tf.function(jit_compile=jit_compile)
    def step():
        gradient = tf.IndexedSlices(
            tf.ones([4, 500], tf.bfloat16), tf.constant([2, 0, 2, 2])
        )
        optimizer.apply_gradients([(gradient, x) for x in variables])

    step()
    one, other = (as_float(x) for x in variables)
    for value in (one, other):
        assert (value[1] == 1).all()
        assert len(np.unique(value[0])) == 2
    assert (one[0] != other[0]).any()
    assert (one[0] != one[2]).any()


SIZES = {"words": 11, "letters": 5}


class Model(tf.keras.Model):
    """Two stacked bfloat16 tables in parts, and a kernel."""

    def __init__(self, of_words=None, sizes=None, **kwargs):
        super().__init__(**kwargs)
        features = [
            tfs.keras.FeatureConfig(
                name,
                tfs.keras.TableConfig(
                    name,
                    (sizes or SIZES)[name],
                    DIM,
                    initializer="ones",
                    combiner="sum",
                    optimizer=of_words if name == "words" else None,
                ),
            )
            for name in SIZES
        ]
        self.embedding = tfs.keras.DistributedEmbedding(features, dtype="bfloat16")
        self.dense = tf.keras.layers.Dense(1, kernel_initializer="ones")

    def call(self, ids, training=None):
        vectors = self.embedding(tf.unstack(ids, axis=1), training=training)
        return self.dense(tf.cast(tf.add_n(vectors), tf.float32))

    def tables(self):
        tables = self.embedding.get_embedding_tables()
        return {name: np.asarray(x).astype(np.float32) for name, x in tables.items()}


def make_model(optimizer, parts, monkeypatch, **options):
    monkeypatch.setattr(NUM_PARTS, lambda: parts)
    model = Model(**options)
    # The loss has a gradient of exactly one number, whose sums have no order.
    model.compile(optimizer, loss=lambda y, x: x, jit_compile=False)
    model(tf.zeros([1, 2], tf.int64))
    return model


def ids_of(step):
    draw = np.random.default_rng(step)
    columns = [draw.permutation(5) % size for size in SIZES.values()]
    return np.stack(columns, axis=1).astype(np.int64)


def steps(model, first, last):
    for step in range(first, last):
        model.train_on_batch(ids_of(step), np.zeros([5, 1], np.float32))


# Frozen, so that the gradient of a table does not depend on the kernel's training.
def compiled(name, parts, monkeypatch, **options):
    make, rate = OPTIMIZERS[name]
    optimizer = make(rate, stochastic_rounding=True)
    model = make_model(optimizer, parts, monkeypatch, **options)
    model.dense.trainable = False
    model.compile(optimizer, loss=lambda y, x: x, jit_compile=False)
    optimizer.build(model.trainable_variables)
    return model


KERNELS = ["rowwise_adagrad", "adam_async", "adagrad", "ftrl", "momentum"]
each_kernel = pytest.mark.parametrize(
    "name", mostly_by_night(KERNELS, "rowwise_adagrad", "adam_async")
)


@each_kernel
def test_tables_have_the_same_bits_in_any_number_of_parts(name, monkeypatch):
    expected = None
    for parts in (1, 2, 3):
        model = compiled(name, parts, monkeypatch)
        steps(model, 0, 6)
        tables = model.tables()
        for variable in model.trainable_variables:
            assert count_of(model.optimizer, variable) == -6
        expected = expected or tables
        assert_same(model.tables(), expected)
        assert all(len(np.unique(x)) > 1 for x in tables.values())


@each_kernel
def test_a_checkpoint_goes_on_in_other_parts_with_the_same_bits(
    name, tmp_path, monkeypatch
):
    twin = compiled(name, 1, monkeypatch)
    steps(twin, 0, 8)
    for number, parts in enumerate((2, 3, 1, 1)):
        model = compiled(name, parts, monkeypatch)
        checkpoint = tfs.keras.Checkpoint(tmp_path, model=model)
        checkpoint.restore()
        steps(model, 2 * number, 2 * number + 2)
        checkpoint.save(wait=True)
    assert_same(model.tables(), twin.tables())


@each_kernel
@pytest.mark.parametrize("saved_as", ["weights", "checkpoint"])
def test_files_go_on_with_the_same_bits(name, saved_as, tmp_path, monkeypatch):
    twin, model = (compiled(name, 2, monkeypatch) for _ in range(2))
    steps(twin, 0, 6)
    steps(model, 0, 3)
    other = compiled(name, 2, monkeypatch)
    if saved_as == "weights":
        if not keras_variants.IS_KERAS_3:
            pytest.skip("files of Keras 2 cannot hold bfloat16")
        model.save_weights(tmp_path / "model.weights.h5")
        other.load_weights(tmp_path / "model.weights.h5")
    else:
        saver = tf.train.Checkpoint(model=model, optimizer=model.optimizer)
        path = saver.save(str(tmp_path / "checkpoint"))
        saver = tf.train.Checkpoint(model=other, optimizer=other.optimizer)
        saver.restore(path).assert_consumed()
    steps(other, 3, 6)
    assert_same(other.tables(), twin.tables())


@pytest.mark.parametrize("name", ["rowwise_adagrad", "adam_async"])
def test_tables_that_grow_are_rounded_and_restored(name, tmp_path, monkeypatch):
    sizes = {key: tfs.keras.Dynamic(50) for key in SIZES}
    twin = compiled(name, 2, monkeypatch, sizes=sizes)
    steps(twin, 0, 6)
    model = compiled(name, 2, monkeypatch, sizes=sizes)
    steps(model, 0, 3)
    tfs.keras.Checkpoint(tmp_path, model=model).save(wait=True)
    other = compiled(name, 2, monkeypatch, sizes=sizes)
    tfs.keras.Checkpoint(tmp_path, model=other).restore()
    steps(other, 3, 6)
    for key, table in twin.embedding.get_embedding_tables().items():
        found = other.embedding.get_embedding_tables()[key]
        np.testing.assert_array_equal(found.keys, table.keys)
        vectors = table.vectors.astype(np.float32)
        # Which of the numbers a key draws depends on its row, which may be another.
        np.testing.assert_allclose(found.vectors.astype(np.float32), vectors, atol=0.05)
        assert len(np.unique(vectors)) > 1
    for variable in other.trainable_variables:
        assert count_of(other.optimizer, variable) == -6


@pytest.mark.parametrize("parts", [1, 2])
def test_a_table_s_own_optimizer_has_its_own_argument(parts, monkeypatch):
    def trained(of_words, of_model):
        optimizer = tfs.keras.TableOptimizers(
            tfs.keras.SGD(0.001, stochastic_rounding=of_model)
        )
        own = tfs.keras.RowwiseAdagrad(0.0005, stochastic_rounding=of_words)
        model = make_model(optimizer, parts, monkeypatch, of_words=own)
        steps(model, 0, 8)
        assert optimizer.table_optimizers["words"].stochastic_rounding is of_words
        return {name: (x != 1).any() for name, x in model.tables().items()}

    assert trained(True, False) == {"words": True, "letters": False}
    assert trained(False, True) == {"words": False, "letters": True}


@pytest.mark.parametrize("wrapper", ["SyncReplicas", "GradientAccumulation"])
@pytest.mark.parametrize("name", ["rowwise_adagrad", "adam_async", "sgd"])
def test_rounds_are_updated_once(name, wrapper, monkeypatch):
    make, rate = OPTIMIZERS[name]
    inner = make(rate, stochastic_rounding=True)
    model = make_model(getattr(tfs.keras, wrapper)(inner, 2), 2, monkeypatch)
    steps(model, 0, 12)
    for variable in model.trainable_variables:
        if keras_variants.native(variable).dtype == tf.bfloat16:
            assert count_of(inner, variable) == -6
    assert all(len(np.unique(x)) > 1 for x in model.tables().values())
