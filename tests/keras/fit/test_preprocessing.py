"""Keras' preprocessing layers within a model that trains on a cluster."""

import inspect

import clusters
import fit_data
import keras_sync_replicas
import keras_variants
import numpy as np
import programs
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
RAGGED = {
    "words": [["a"], ["b", "c"], [], ["d"]],
    "numbers": [[1.0], [2.0, 5.0], [], [9.0]],
    "ids": [[1], [2, 5], [], [9]],
}
IMAGES = np.random.default_rng(0).uniform(0, 255, [4, 8, 8, 3]).astype(np.float32)
IMAGE_STEPS = 4
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
# These choose layers in Python, when a function is traced.
CHOOSING = {"AugMix", "RandAugment"}
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


class OfRagged(tf.keras.Model):
    """Each layer that takes ragged tensors here, in eager mode."""

    def __init__(self):
        super().__init__()
        tf.keras.utils.set_random_seed(1)
        self.dense = layers.Dense(1)
        self.made = {}
        for name, (of_input, make_layer) in MADE.items():
            try:
                layer = make_layer()
                layer(ragged()[of_input])
            except (TypeError, ValueError, tf.errors.OpError):
                continue
            self.made[name] = layer

    def call(self, inputs):
        parts = []
        for name, layer in self.made.items():
            x = tf.cast(layer(inputs[MADE[name][0]]), tf.float32)
            parts.append(tf.reduce_sum(x, axis=1, keepdims=True))
        return self.dense(tf.reshape(tf.concat(parts, axis=1), [-1, len(parts)]))


def ragged():
    dtypes = {"words": tf.string, "numbers": tf.float32, "ids": tf.int64}
    return {
        name: tf.ragged.constant(RAGGED[name], dtype=dtype)
        for name, dtype in dtypes.items()
    }


# The arguments of layers for images that have no default.
IMAGE_ARGUMENTS = {
    "factor": 0.2,
    "height": 4,
    "height_factor": 0.1,
    "max_number": 2,
    "scale": 0.1,
    "width": 4,
    "width_factor": 0.1,
}


# Here it is a number of bits.
IMAGE_ARGUMENTS_OF = {"RandomPosterization": {"factor": 4}}


def image_layers():
    """A layer of each class for images that Keras has, by name."""
    made = {}
    for name, kind in vars(layers).items():
        if not isinstance(kind, type) or ".image_preprocessing" not in kind.__module__:
            continue
        parameters = inspect.signature(kind.__init__).parameters.values()
        known = {**IMAGE_ARGUMENTS, **IMAGE_ARGUMENTS_OF.get(name, {})}
        made[name] = kind(
            **{
                parameter.name: known[parameter.name]
                for parameter in parameters
                if parameter.default is parameter.empty and parameter.name in known
            }
        )
    return made


class OfImages(tf.keras.Model):
    """Each layer for images. What is random counts as zero, if it is a number."""

    def __init__(self):
        super().__init__()
        tf.keras.utils.set_random_seed(1)
        self.dense = layers.Dense(1, kernel_initializer="ones")
        self.made = image_layers()

    def call(self, images, training=False):
        total = tf.zeros([4, 1])
        for name, layer in self.made.items():
            takes_training = "training" in inspect.signature(layer.call).parameters
            x = layer(images, **({"training": training} if takes_training else {}))
            mean = tf.reduce_mean(tf.cast(x, tf.float32), axis=[1, 2, 3])
            is_random = name.startswith("Rand") or name in OTHERS_THAT_ARE_RANDOM
            total += mean[:, None] * (0.0 if is_random else 0.01)
        return self.dense(total)

    def draws(self):
        """How often each layer's generators of seeds were asked."""
        return {
            name: sum(int(keras_variants.native(x).numpy()[1]) for x in layer.variables)
            for name, layer in self.made.items()
            if keras_variants.IS_KERAS_3
        }


OTHERS_THAT_ARE_RANDOM = ("AugMix", "CutMix", "MixUp", "Solarization")


def images_trained(model, fit):
    """The loss of an epoch, and how often each layer has drawn for it."""
    data = tf.data.Dataset.from_tensors((IMAGES, Y)).repeat(IMAGE_STEPS)
    fit(model, data, epochs=1, verbose=0)  # It builds the model by a call, which draws.
    before = model.draws()
    history = fit(model, data, epochs=1, verbose=0)
    drawn = {name: x - before[name] for name, x in model.draws().items()}
    return {"loss": history.history["loss"][0], "drawn": drawn}


def make():
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
    model.compile(tf.keras.optimizers.SGD(0.0), loss="mse")
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


RAGGED_KINDS = {
    "ragged arrays": lambda: {"x": ragged(), "y": Y},
    "ragged dataset": lambda: {
        "x": tf.data.Dataset.from_tensors((ragged(), Y)).repeat(3)
    },
    "ragged dataset and steps": lambda: {
        "x": tf.data.Dataset.from_tensors((ragged(), Y)),
        "steps_per_epoch": 3,
    },
}


def compiled(model, executions=1):
    model.compile(tf.keras.optimizers.SGD(0.0), "mse", steps_per_execution=executions)
    return model


def trained():
    """The losses of one process, and of a cluster with each kind of data.

    The learning rate is zero, and all batches are the same, so that they are equal.
    """
    expected = make().evaluate(dataset(), verbose=0)
    strategy = keras_sync_replicas.make_strategy()
    results = {"found": found(), "made": [*MADE], "expected": expected}
    ragged_in_one = compiled(OfRagged())
    data = RAGGED_KINDS["ragged dataset"]()["x"]
    results["expected of ragged"] = ragged_in_one.evaluate(data, verbose=0)
    results["take ragged"] = [*ragged_in_one.made]
    results["images"] = {
        "steps": IMAGE_STEPS,
        "one process": images_trained(compiled(OfImages()), tf.keras.Model.fit),
    }
    for executions in (1, 2):
        with strategy.scope():
            model, of_ragged = (
                compiled(kind(), executions) for kind in (make, OfRagged)
            )
        for kind, data in {**KINDS, **RAGGED_KINDS}.items():
            used = of_ragged if kind in RAGGED_KINDS else model
            try:
                history = tfs.keras.fit(used, epochs=1, verbose=0, **data())
                result = history.history["loss"][0]
            except Exception as error:
                result = f"{type(error).__name__}: {error}"[:500]
            results[f"{kind}, {executions} at once"] = result
    # These take long to trace: once is enough.
    with strategy.scope():
        of_images = compiled(OfImages())
    results["images"]["workers"] = images_trained(of_images, tfs.keras.fit)
    return results


@pytest.fixture(scope="module")
def losses():
    with clusters.Cluster(num_workers=2, num_ps=2) as cluster:
        return programs.call(trained, env=cluster.environment())


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


@executions
@pytest.mark.parametrize("kind", RAGGED_KINDS)
def test_layers_compute_the_same_of_ragged_tensors(losses, kind, executions):
    names = {"Discretization", "Hashing", "IntegerLookup", "Rescaling", "StringLookup"}
    assert names <= {*losses["take ragged"]}
    found = losses[f"{kind}, {executions} at once"]
    assert found == pytest.approx(losses["expected of ragged"], rel=1e-5)


def test_layers_for_images_compute_the_same_and_draw_once_for_each_step(losses):
    """Of those that are random, losses tell that they give numbers."""
    expected = losses["images"]["one process"]
    found = losses["images"]["workers"]
    assert found["loss"] == pytest.approx(expected["loss"], rel=1e-5)
    for name in expected["drawn"].keys() - CHOOSING:
        assert found["drawn"][name] == expected["drawn"][name], name
    if keras_variants.IS_KERAS_3:
        assert expected["drawn"]["RandomFlip"] == losses["images"]["steps"]
