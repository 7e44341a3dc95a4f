"""Keras' preprocessing layers within a model that trains on a cluster."""

import clusters
import fit_data
import keras_sync_replicas
import keras_variants
import numpy as np
import pytest
import tensorflow as tf

import tf_syncrep as tfs

pytestmark = pytest.mark.ci

layers = tf.keras.layers
WORDS = [["a"], ["b"], ["c"], ["d"]]
NUMBERS = np.array([[1.0], [2.0], [5.0], [9.0]], dtype=np.float32)
IDS = np.array([[1], [2], [5], [9]], dtype=np.int64)
X = {"words": WORDS, "numbers": NUMBERS, "ids": IDS}
Y = np.ones([4, 1], np.float32)
# By the name of the layer: its input, and the function that makes it.
MADE = {
    "CategoryEncoding": ("ids", lambda: layers.CategoryEncoding(10)),
    "Discretization": ("numbers", lambda: layers.Discretization([2.0, 6.0])),
    "HashedCrossing": ("ids", lambda: layers.HashedCrossing(7)),
    "Hashing": ("words", lambda: layers.Hashing(7)),
    "IntegerLookup": ("ids", lambda: layers.IntegerLookup(vocabulary=[1, 5])),
    "Normalization": ("numbers", lambda: layers.Normalization(mean=3, variance=2)),
    "Rescaling": ("numbers", lambda: layers.Rescaling(0.1)),
    "StringLookup": ("words", lambda: layers.StringLookup(vocabulary=["a", "c"])),
    "TextVectorization": (
        "words",
        lambda: layers.TextVectorization(
            vocabulary=["a", "c"], output_sequence_length=1
        ),
    ),
}
executions = pytest.mark.parametrize("executions", [1, 2])


def found():
    """The preprocessing layers of Keras, without those for images and audio."""
    modules = {
        name: value.__module__
        for name, value in vars(layers).items()
        if isinstance(value, type)
    }
    others = ("image", "Spectrogram", "Pipeline", "Random", "Crop", "Resizing")
    return [
        name
        for name, module in modules.items()
        if ".preprocessing" in module
        and (name == "Rescaling" or not any(x in module + name for x in others))
    ]


def make(**options):
    tf.keras.utils.set_random_seed(1)
    dtypes = {"words": "string", "numbers": "float32", "ids": "int64"}
    inputs = {
        name: tf.keras.Input((1,), name=name, dtype=dtype)
        for name, dtype in dtypes.items()
    }
    made = []
    for of_input, make_layer in MADE.values():
        x = inputs[of_input]
        layer = make_layer()
        is_crossing = isinstance(layer, layers.HashedCrossing)
        made.append(layer((inputs["words"], x) if is_crossing else x))
    # Whatever it is, as a number.
    parts = [layers.Rescaling(1.0)(layers.Flatten()(x)) for x in made]
    outputs = layers.Dense(1)(layers.Concatenate()(parts))
    model = tf.keras.Model(inputs, outputs)
    model.compile(tf.keras.optimizers.SGD(0.0), loss="mse", **options)
    return model


def dataset(_=None):
    return tf.data.Dataset.from_tensors((X, Y)).repeat(3)


class Batches(fit_data.Base):
    """Three batches by number."""

    def __len__(self):
        return 3

    def __getitem__(self, index):
        return {**X, "words": tf.constant(WORDS)}, Y


def batches():
    while True:
        yield {**X, "words": tf.constant(WORDS)}, Y


KINDS = {
    # Keras accepts strings only as tensors.
    "arrays": lambda: {"x": {**X, "words": tf.constant(WORDS)}, "y": Y},
    "dataset": lambda: {"x": dataset()},
    "dataset and steps": lambda: {"x": dataset(), "steps_per_epoch": 3},
    "function": lambda: {"x": dataset},
    "function and steps": lambda: {"x": dataset, "steps_per_epoch": 4},
    "PyDataset": lambda: {"x": Batches()},
    "generator": lambda: {"x": batches(), "steps_per_epoch": 3},
}


def trained():
    """The losses of one process, and of a cluster with each kind of data.

    The learning rate is zero, and all batches are the same, so that they are equal.
    """
    expected = make().evaluate(dataset(), verbose=0)
    strategy = keras_sync_replicas.make_strategy()
    results = {"found": found(), "made": [*MADE], "expected": expected}
    for executions in (1, 2):
        with strategy.scope():
            model = make(steps_per_execution=executions)
        for kind, data in KINDS.items():
            try:
                history = tfs.keras.fit(model, epochs=1, verbose=0, **data())
                result = history.history["loss"][0]
            except Exception as error:
                result = f"{type(error).__name__}: {error}"[:500]
            results[f"{kind}, {executions} at once"] = result
    return results


@pytest.fixture(scope="module")
def losses():
    return clusters.call(trained)


def test_all_layers_of_keras_are_in_the_model(losses):
    assert sorted(losses["found"]) == sorted(losses["made"])


@executions
@pytest.mark.parametrize("kind", KINDS)
def test_layers_compute_on_workers_what_they_do_in_one_process(
    losses, kind, executions
):
    found = losses[f"{kind}, {executions} at once"]
    if kind in ("PyDataset", "generator") and not keras_variants.IS_KERAS_3:
        # Its own fit refuses them, too: such batches have no shapes.
        assert "`TextVectorization` to tokenize strings, the input rank" in found
    else:
        assert found == pytest.approx(losses["expected"], rel=1e-5)
