"""All kinds of data that `Model.fit` takes, for a model of three numbers to one.

Each kind is a function that returns new arguments of `fit`, in a defined order. What
Keras refuses must be refused in the same words.
"""

import functools

import numpy as np
import tensorflow as tf

EXAMPLES, BATCH = 26, 8
X = np.random.default_rng(0).normal(size=(EXAMPLES, 3)).astype(np.float32)
Y = X.sum(axis=1, keepdims=True)
CLASSES = (Y[:, 0] > 0).astype(np.int32)
WEIGHTS = np.linspace(0.1, 2, EXAMPLES, dtype=np.float32)
# Keras 2 calls it Sequence.
Base = getattr(tf.keras.utils, "PyDataset", tf.keras.utils.Sequence)


class Batches(Base):  # pyright: ignore
    """Batches by number."""

    def __init__(self, *arrays, **options):
        super().__init__(**options)
        self.arrays = arrays

    def __len__(self):
        return 4

    def __getitem__(self, index):
        at = slice(index * BATCH, (index + 1) * BATCH)
        return tuple(array[at] for array in self.arrays)


def generator(*arrays, repeat=100):
    for i in range(repeat * 4):
        at = slice(i % 4 * BATCH, (i % 4 + 1) * BATCH)
        yield tuple(None if array is None else array[at] for array in arrays)


def dataset(*arrays):
    return tf.data.Dataset.from_tensor_slices(arrays or (X, Y)).batch(BATCH)


def _sparse():
    import scipy.sparse

    return scipy.sparse.csr_matrix(np.where(X > 0, X, 0))


def _frames():
    import pandas

    frame = pandas.DataFrame(X.astype(np.float64), columns=["a", "b", "c"])
    return frame, pandas.Series(Y[:, 0])


def _loader():
    import torch.utils.data

    tensors = torch.utils.data.TensorDataset(torch.tensor(X), torch.tensor(Y))
    return torch.utils.data.DataLoader(tensors, batch_size=BATCH)


def _of_function(side):
    """A function that makes a dataset, which stock Keras does not accept.

    Nobody knows how many batches it will make, so the dataset of stock Keras is one of
    unknown size.
    """
    if side.is_stock:
        return dataset().filter(lambda *_: True)
    return lambda context: dataset()


_SPLIT = {"validation_split": 0.3}
_FOUR_STEPS = {"steps_per_epoch": 4}
_BOTH_CLASSES = {"class_weight": {0: 1.0, 1: 3.0}}

KINDS = {
    "arrays": lambda: {"x": X, "y": Y},
    "arrays of float64, split": lambda: dict(x=X.astype(float), y=Y, **_SPLIT),
    "arrays with weights": lambda: {"x": X, "y": Y, "sample_weight": WEIGHTS},
    "arrays, class weights": lambda: {"x": X, "y": CLASSES, "class_weight": {1: 3.0}},
    "arrays, few steps": lambda: {"x": X, "y": Y, "steps_per_epoch": 2},
    "arrays, batches by steps": lambda: {
        "x": X,
        "y": Y,
        "steps_per_epoch": 5,
        "batch_size": None,
    },
    "tensors, split": lambda: dict(x=tf.constant(X), y=tf.constant(Y), **_SPLIT),
    "dict of arrays": lambda: dict(x={"numbers": X}, y=Y, **_SPLIT),
    "lists": lambda: {"x": X.tolist(), "y": Y.tolist()},
    "lists for y": lambda: {"x": X, "y": Y.tolist()},
    "lists for weights": lambda: {"x": X, "y": Y, "sample_weight": WEIGHTS.tolist()},
    "sizes that differ": lambda: {"x": X, "y": Y[1:]},
    "none for training": lambda: {"x": X, "y": Y, "validation_split": 1.0},
    "no data": lambda: {"x": {1.0}},
    "sparse of scipy": lambda: {"x": _sparse(), "y": Y},
    "sparse of scipy, split": lambda: dict(x=_sparse(), y=Y, **_SPLIT),
    "frame and series": lambda: dict(zip("xy", _frames(), strict=True)),
    "frame and series, split": lambda: dict(
        zip("xy", _frames(), strict=True), **_SPLIT
    ),
    "ragged": lambda: {"x": _ragged(), "y": Y},
    "ragged, split": lambda: dict(x=_ragged(), y=Y, **_SPLIT),
    "PyDataset": lambda: {"x": Batches(X, Y)},
    "PyDataset, validated by another": lambda: {
        "x": Batches(X, Y),
        "validation_data": Batches(X, Y),
    },
    "PyDataset, few steps": lambda: {"x": Batches(X, Y), "steps_per_epoch": 3},
    "PyDataset, class weights": lambda: {
        "x": Batches(X, CLASSES),
        "class_weight": {0: 0.5, 1: 3.0},
    },
    "PyDataset with y": lambda: {"x": Batches(X, Y), "y": Y},
    "generator": lambda: {"x": generator(X, Y), **_FOUR_STEPS},
    "generator with an end": lambda: {"x": generator(X, Y, repeat=1), "epochs": 1},
    "generator with weights": lambda: {"x": generator(X, Y, WEIGHTS), **_FOUR_STEPS},
    "generator with None": lambda: {"x": generator(X, Y, None), **_FOUR_STEPS},
    "generator with weights of classes": lambda: {
        "x": generator(X, CLASSES),
        **_FOUR_STEPS,
        **_BOTH_CLASSES,
    },
    "dataset, class weights": lambda: {"x": dataset(X, CLASSES), **_BOTH_CLASSES},
    "dataset with y": lambda: {"x": dataset(), "y": Y},
    "dataset, split": lambda: dict(x=dataset(), **_SPLIT),
    "dataset, validated by a list": lambda: {"x": dataset(), "validation_data": [X, Y]},
    "loader of torch": lambda: {"x": _loader()},
}
# Those that Keras refuses, which is soon tried.
REFUSED = (
    "lists",
    "lists for y",
    "lists for weights",
    "sizes that differ",
    "none for training",
    "no data",
    "sparse of scipy, split",
    "PyDataset with y",
    "dataset with y",
    "dataset, split",
)
# Kinds of data for validation.
_VALIDATED_ON = {
    "arrays": lambda side: (X, Y),
    "arrays with weights": lambda side: (X, Y, WEIGHTS),
    "lists": lambda side: (X.tolist(), Y.tolist()),
    "tensors": lambda side: (tf.constant(X), tf.constant(Y)),
    "dataset": lambda side: dataset(),
    "dataset without end": lambda side: dataset().repeat(),
    "dataset of a function": _of_function,
    "PyDataset": lambda side: Batches(X, Y),
    "PyDataset with y": lambda side: (Batches(X, Y), Y),
    "generator": lambda side: generator(X, Y),
    "generator with weights": lambda side: generator(X, Y, WEIGHTS),
    "generator with an end": lambda side: generator(X, Y, repeat=1),
}
_WITHOUT_END = ("dataset without end", "generator", "generator with weights")
_NEEDS = {"scipy": "scipy", "frame": "pandas", "torch": "torch"}


def package_for(kind):
    """The package that makes a kind of data, or None if none does."""
    return next((package for word, package in _NEEDS.items() if word in kind), None)


def _ragged():
    lengths = np.arange(EXAMPLES) % 3 + 1
    return tf.RaggedTensor.from_row_lengths(
        np.arange(lengths.sum(), dtype=np.float32) / 50, lengths
    )


class Numbers(tf.keras.Model):
    """Weighs three numbers, or the mean of any number of them."""

    def __init__(self):
        super().__init__()
        self.dense = tf.keras.layers.Dense(1)

    def build(self, input_shape=None):
        self.dense.build((None, 3))
        self.built = True

    def call(self, inputs):
        x = inputs["numbers"] if isinstance(inputs, dict) else inputs
        if isinstance(x, tf.SparseTensor):
            x = tf.sparse.to_dense(x)
        if isinstance(x, tf.RaggedTensor):
            x = tf.reduce_mean(x, axis=1, keepdims=True) * tf.ones([1, 3])
        return self.dense(tf.reshape(tf.cast(x, tf.float32), [-1, 3]))


def fresh_model(side):
    """The model that all kinds of data share, in its initial state."""
    if not hasattr(side, "numbers"):
        side.numbers = side.compiled(
            Numbers, make_optimizer=tf.keras.optimizers.SGD, weighted_metrics=["mse"]
        )
        with side.scope():
            side.numbers.build()
    side.numbers.set_weights([np.full((3, 1), 0.3), np.zeros(1)])
    return side.numbers


def fitted(side, options):
    """The results of `fit`, or its error, with the model in its initial state."""
    model = fresh_model(side)
    options = {"batch_size": BATCH, "shuffle": False, "epochs": 2, **options}
    try:
        history = side.fit(model, verbose=0, **options)
        return {
            "history": history.history,
            "steps": history.params["steps"],
            "weights": [x.tolist() for x in model.get_weights()],
        }
    except Exception as error:
        return {"error": _told(error)}


def _told(error):
    first_line = str(error).strip().partition("\n")[0]
    # addresses of objects are removed
    return f"{type(error).__name__}: {first_line.partition(' at 0x')[0]}"


def trained(kind, side):
    """Trains on a kind of data; on plain data it does everything."""
    result = fitted(side, KINDS[kind]())
    if "error" not in result and (" " not in kind or kind.endswith("scipy")):
        few = {"steps": 2} if kind == "generator" else {"batch_size": BATCH}
        again = {k: v for k, v in KINDS[kind]().items() if k in ("x", "y")}
        model = side.numbers
        try:
            result["evaluated"] = side.evaluate(model, verbose=0, **again, **few)
            outputs = side.predict(model, KINDS[kind]()["x"], verbose=0, **few)
            result["outputs"] = outputs.tolist()
        except Exception as error:
            result["error"] = _told(error)
    return result


def validated_on_each_kind(side):
    """Trains on a dataset, validated by each kind of data."""
    return {
        name: fitted(
            side,
            {
                "x": dataset(),
                "validation_data": make(side),
                "validation_steps": 2 if name in _WITHOUT_END else None,
                # How far threads of Keras 2 have read ahead, with a second thread, is
                # chance.
                "epochs": 1 if "generator" in name else 2,
            },
        )
        for name, make in _VALIDATED_ON.items()
    }


SCENARIOS = {f"data: {kind}": functools.partial(trained, kind) for kind in KINDS}
SCENARIOS |= {validated_on_each_kind.__name__: validated_on_each_kind}
