"""Models that are published while they are trained, and what they predict then."""

import pathlib
from typing import Any

import numpy as np
import tensorflow as tf

import tf_syncrep as tfs
from tf_syncrep.python.serving.publications import Publications
from tf_syncrep.serving import Follower

DEADLINE_SECS = 120
SIZE, WIDTH, EXAMPLES = 400, 4, 16
# Of each version.
UPDATES = 3


def make(
    size: Any = SIZE,
    strings: bool = False,
    optimizer: Any = None,
    is_normalized: bool = True,
) -> Any:
    """A model with a feature of several ids, and one of one id."""
    tf.keras.utils.set_random_seed(0)
    dtype = "string" if strings else "int64"
    inputs = {
        "watched": tf.keras.Input((3,), dtype=dtype, name="watched"),
        "candidate": tf.keras.Input((), dtype=dtype, name="candidate"),
    }
    table = tfs.keras.TableConfig("items", size, WIDTH)
    embedding = tfs.keras.DistributedEmbedding(
        {name: tfs.keras.FeatureConfig(name, table) for name in inputs}, name="items"
    )
    hidden = tf.keras.layers.Concatenate()(list(embedding(inputs).values()))
    if is_normalized:  # It has variables that are not trained.
        hidden = tf.keras.layers.BatchNormalization()(hidden)
    # With a bias TensorFlow 2.22 fuses both in graphs, and not in calls out of them.
    dense = tf.keras.layers.Dense(1, kernel_initializer="ones", use_bias=False)
    model = tf.keras.Model(inputs, dense(hidden))
    if isinstance(size, int):  # Initial rows of a fixed table depend on its parts.
        values = np.random.default_rng(2).normal(size=(size, WIDTH))
        embedding.set_embedding_tables({"items": values.astype(np.float32)})
    model.compile(optimizer or tfs.keras.AdamAsync(0.05), loss="mse")
    return model


def ids(draw: np.random.Generator, num: int, most: int, strings: bool) -> Any:
    found = {
        "watched": draw.integers(0, most, (num, 3)),
        "candidate": draw.integers(0, most, num),
    }
    if strings:
        found = {name: np.char.add("id ", x.astype(str)) for name, x in found.items()}
    return {name: tf.constant(x) for name, x in found.items()}


def batch(draw: np.random.Generator, most: int = SIZE, strings: bool = False) -> Any:
    targets = draw.normal(size=(EXAMPLES, 1)).astype(np.float32)
    return ids(draw, EXAMPLES, most, strings), targets


def train(model: Any, draw: np.random.Generator, most: int = SIZE, strings=False):
    model.train_on_batch(*batch(draw, most, strings))


def probe(strings: bool = False) -> dict[str, tf.Tensor]:
    """A request that looks up all ids."""
    return ids(np.random.default_rng(9), 300, SIZE, strings)


class Recorded:
    """A follower of a folder that keeps what it predicted at each version."""

    def __init__(self, folder: Any, request: Any, **options: Any):
        self.predictions: dict[int, np.ndarray] = {}
        self.updates: dict[int, int] = {}
        self._request = request
        self.follower = Follower(
            folder, poll_secs=0.01, on_version=self._record, **options
        )

    def _record(self, follower):
        self.predictions[follower.version] = self.predict()
        self.updates[follower.version] = follower.updates

    def predict(self) -> np.ndarray:
        return self.follower(**self._request)["output_0"].numpy()

    def wait(self, version: int) -> None:
        self.follower.wait(version, DEADLINE_SECS)

    def __enter__(self) -> "Recorded":
        return self

    def __exit__(self, *error):
        self.follower.close()


def published(
    folder: pathlib.Path,
    versions: int = 6,
    seed: int = 0,
    size: Any = SIZE,
    strings: bool = False,
    **options: Any,
) -> dict[int, np.ndarray]:
    """Publishes versions of a model; returns its predictions at each.

    Every third version has few ids, so that keys go where they may, and come again.
    """
    model, draw = make(size, strings), np.random.default_rng(seed)
    publisher = tfs.keras.Publisher(folder, model=model, **options)
    wanted = {}
    for version in range(1, versions + 1):
        for _ in range(UPDATES):
            train(model, draw, SIZE if version % 3 else SIZE // 8, strings)
            tfs.keras.maintain_tables(model)
        number = publisher.publish().manifest.number
        wanted[number] = model(probe(strings)).numpy()
    return wanted


def manifests(folder: Any) -> list[Any]:
    return Publications(folder).manifests()
