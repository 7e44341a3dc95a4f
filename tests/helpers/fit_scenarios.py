"""Trainings in which `Model.fit` and `tfs.keras.fit` must do the same.

Each scenario is a function of a `Side` of test_fit.py, and returns the values to
compare, as JSON.
"""

import contextlib
import csv
import importlib.util
import io
import pathlib
import re
import tempfile
from typing import Any
from unittest import mock

import fit_data
import keras_variants
import numpy as np
import tensorflow as tf

import tf_syncrep as tfs
from tf_syncrep.python.keras.fit import sizes

layers = tf.keras.layers
WORDS, TARGETS = keras_variants.small_data(66)
WEIGHTS = np.linspace(0.1, 2.0, len(TARGETS)).astype(np.float32)
NUM_BATCHES = 7


def dataset(*arrays):
    """Batches; the last one is smaller.

    They are made when they are needed: objects that were made before the process became
    a coordinator are on a device of another name.
    """
    return tf.data.Dataset.from_tensor_slices(arrays or (WORDS, TARGETS)).batch(10)


class Recorder(tf.keras.callbacks.Callback):
    """Writes down each call, with the names of its arguments."""

    def __init__(self):
        super().__init__()
        self.calls = []

    def __getattribute__(self, name):
        if name.startswith("on_"):
            return lambda *args, logs=None, **kwargs: self.calls.append(
                [
                    name,
                    *[sorted(x) if isinstance(x, dict) else x for x in args],
                    *sorted(logs or kwargs),
                ]
            )
        return super().__getattribute__(name)


def every_batch_once(side):
    return side.trained(side.compiled(), validation_data=dataset())


def several_steps_per_execution(side):
    model = side.compiled(steps_per_execution=3)
    recorder = Recorder()
    trained = side.trained(model, validation_data=dataset(), callbacks=[recorder])
    # Keras counts the steps of an execution that is cut short as if it were whole.
    ends = [
        call
        for call in recorder.calls
        if "batch_end" not in call[0] or call[1] < NUM_BATCHES - 1
    ]
    return {**trained, "calls": ends[:-1]}


def executions_of_several_steps_have_the_bits_of_single_ones(side):
    """Any data, which ends within an execution."""
    num_steps = {"steps_per_epoch": NUM_BATCHES}
    kinds = {
        "worker": (lambda: dataset().repeat(), num_steps),
        "pass": (lambda: dataset() if side.is_stock else lambda _: dataset(), {}),
        "coordinator": (dataset, {}),
    }
    result = {}
    for name, (make_data, options) in kinds.items():
        # What is evaluated on does not depend on what was trained on.
        options["evaluates"] = name == "coordinator"
        one = trained_by(side, make_data(), 1, **options)
        four = one
        if not side.is_stock:
            four = trained_by(side, make_data(), 4, **options)
            assert all(map(np.array_equal, one["bits"], four["bits"])), name
        result[name] = [{**x, "bits": None} for x in (one, four)]
    return result


def trained_by(side, data, per_execution, evaluates, **options):
    model = side.compiled(steps_per_execution=per_execution)
    trained = side.trained(model, data, **options)
    del trained["params"]
    trained["bits"] = model.get_weights()
    if evaluates:
        trained["bits"].append(side.predict(model, dataset(), verbose=0))
        trained["evaluated"] = side.evaluate(model, dataset(), verbose=0)
    return trained


def executions_of_a_size_found_and_of_a_large_one_have_these_bits_too(side):
    """Callbacks are told of 20 steps at once, which are made in two blocks."""
    if side.is_stock:  # Keras 3 itself does not know "auto".
        trained = side.trained(side.compiled(), dataset().repeat(5))
        return {name: trained[name] for name in ("epochs", "iterations")}
    num_steps = 5 * NUM_BATCHES
    of_epoch = {"steps_per_epoch": num_steps}
    bits, ends = {}, {}
    for per_execution, data, options in (
        (1, dataset().repeat(), of_epoch),
        ("auto", dataset().repeat(), of_epoch),
        (20, lambda _: dataset().repeat(5), {}),
    ):
        recorder = Recorder()
        model = side.compiled(steps_per_execution=per_execution)
        # However slow this machine is, it makes as many at once as the epoch allows.
        with mock.patch.object(sizes, "_AUTO_SECS", 600.0):
            trained = side.trained(model, data, callbacks=[recorder], **options)
        bits[per_execution] = model.get_weights()
        ends[per_execution] = [
            call[1] for call in recorder.calls if call[0] == "on_train_batch_end"
        ]
        assert all(map(np.array_equal, bits[1], bits[per_execution])), per_execution
    assert ends[20] == 2 * [19, num_steps - 1]
    first, second = np.split(ends["auto"], [ends["auto"].index(num_steps - 1) + 1])
    assert {*np.diff(first[:-1])} == {1, 4}
    assert {*np.diff(second[:-1])} == {4}
    return {name: trained[name] for name in ("epochs", "iterations")}


def calls_of_callbacks_that_change_rates_and_stop(side):
    recorder = Recorder()
    callbacks = [
        recorder,
        tf.keras.callbacks.LearningRateScheduler(lambda epoch: 0.1 / (epoch + 1)),
        tf.keras.callbacks.EarlyStopping("loss", min_delta=1e9, patience=2),
    ]
    trained = side.trained(
        side.compiled(),
        validation_data=dataset(),
        validation_steps=2,
        validation_freq=[2],
        epochs=9,
        initial_epoch=1,
        callbacks=callbacks,
    )
    return {**trained, "calls": recorder.calls}


def seen_in_the_end(line):
    """What a terminal shows of a redrawn line, without colours and times."""
    line = re.sub(r"\x1b\[\d+m|\x08", "", line.rpartition("\r")[2])
    # Keras pads a line with spaces, to cover a longer one.
    return re.sub(r"\d+(s|ms|us)(/step)?", "TIME", line).rstrip()


def fits_one_after_the_other_with_progress_bars(side):
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    model, result = side.compiled(), {}
    for verbose in (1, 2):
        with contextlib.redirect_stdout(Terminal()) as output:
            trained = side.trained(model, validation_data=dataset(), verbose=verbose)
        lines = [seen_in_the_end(line) for line in output.getvalue().split("\n")]
        for epoch, line in enumerate(lines[1::2]):
            # Numbers are rounded, so that those of both sides need not be the same.
            for name, value in re.findall(r"(\w+): (\S+)", line):
                assert abs(float(value) - trained["history"][name][epoch]) < 1e-4, line
        names = [re.sub(r": \S+", "", line) for line in lines]
        result[f"verbose={verbose}"] = {**trained, "output": names}
    with side.scope():
        model.compile(optimizer="sgd", loss="mae", metrics=["mse"])
    return {**result, "compiled anew": side.trained(model, epochs=1)}


def arrays_for_several_inputs_and_outputs_of_an_unbuilt_model(side):
    class Two(tf.keras.Model):
        def __init__(self):
            super().__init__()
            self.table = layers.Embedding(20, 4)
            self.heads = {"a": layers.Dense(1), "b": layers.Dense(2)}

        def call(self, inputs):
            words, numbers = inputs
            x = tf.reduce_mean(self.table(words), axis=1) * numbers
            return {name: head(x) for name, head in self.heads.items()}

    model = side.compiled(
        Two,
        loss={"a": "mse", "b": "mae"},
        metrics={"a": ["mae"], "b": ["mse"]},
        run_eagerly=False,  # or Keras 3 leaves the first batch out of these losses
    )
    # Whole batches: Keras 3.16 counts a smaller one as one example in these losses.
    words, targets, weights = WORDS[:64], TARGETS[:64], WEIGHTS[:64]
    x = [words[:, :2], words[:, 2:].astype(np.float32)]
    y = {"a": targets, "b": np.tile(targets, [1, 2])}
    trained = side.trained(
        model,
        x,
        y=y,
        sample_weight={"a": weights, "b": weights[::-1]},
        batch_size=8,
        shuffle=False,
        validation_split=0.25,
    )
    outputs = side.predict(model, x, verbose=0)
    return {
        **trained,
        "evaluated": side.evaluate(model, x, y, verbose=0),
        "outputs": {name: value.tolist() for name, value in outputs.items()},
    }


class Largest(tf.keras.metrics.Metric):
    """A metric that is not a sum, and by default says so."""

    def __init__(self, aggregation="mean"):
        super().__init__(name="largest")
        self.largest = self.add_variable((), "zeros", aggregation=aggregation)

    def update_state(self, y_true, y_pred, sample_weight=None):
        self.largest.assign(tf.maximum(self.largest.value, tf.reduce_max(y_true)))

    def result(self):
        return self.largest


def sample_weights_and_a_metric_that_is_no_sum(side):
    # Keras 2 has no name for such a metric.
    metrics = ["mae", *([Largest()] if keras_variants.IS_KERAS_3 else [])]
    trained = side.trained(
        side.compiled(metrics=metrics, weighted_metrics=["mse", "mae"]),
        dataset(WORDS, TARGETS, WEIGHTS),
        validation_data=(WORDS, TARGETS, WEIGHTS),
    )
    if keras_variants.IS_KERAS_3:
        assert np.isclose(trained["history"]["largest"][0], TARGETS.max())
    return trained


def class_weights(side):
    def classifier():
        model = keras_variants.small_model()
        model.pop()
        model.add(layers.Dense(3, activation="softmax"))
        return model

    classes = dataset(WORDS, WORDS[:, :1] % 3)
    model = side.compiled(
        classifier,
        loss="sparse_categorical_crossentropy",
        metrics=["accuracy"],
        weighted_metrics=["accuracy"],
    )
    if not keras_variants.IS_KERAS_3:  # which wants a weight for each class
        return side.trained(model, classes, class_weight={0: 1.0, 1: 5.0, 2: 0.5})
    trained = side.trained(model, classes, class_weight={1: 5.0, 2: 0.5})
    # Keras accepts classes above all named ones only in arrays.
    of_arrays = side.trained(
        model, WORDS, y=WORDS[:, :1] % 3, shuffle=False, class_weight={1: 5.0}
    )
    return {"dataset": trained, "arrays": of_arrays}


def metrics_of_all_kinds_of_a_dataset_of_unknown_length(side):
    metrics = tf.keras.metrics
    data = dataset().map(lambda words, y: (words, tf.cast(y > 0.9, tf.float32)))
    if not side.is_stock:  # Keras 3 counts steps for which there is no batch any more.
        data = data.filter(lambda *_: True)
    with side.scope():
        made = [
            metrics.RootMeanSquaredError(name="rmse"),
            metrics.AUC(name="auc"),
            metrics.R2Score(name="r2"),
            metrics.BinaryIoU(name="iou"),
        ]
    model = side.compiled(metrics=made)
    trained = side.trained(model, data)
    del trained["params"]
    return {**trained, "evaluated": side.evaluate(model, data, verbose=0)}


def layers_with_state_and_losses(side):
    class Penalty(layers.Layer):
        def call(self, inputs):
            self.add_loss(0.01 * tf.reduce_mean(inputs**2))
            return inputs

    def make():
        return tf.keras.Sequential(
            [
                layers.Input((3,), dtype="int32"),
                layers.Embedding(20, 4, embeddings_regularizer="l2"),
                layers.Flatten(),
                layers.BatchNormalization(),
                Penalty(),
                layers.Dropout(0.3),
                layers.Dense(4, activation="relu", kernel_regularizer="l2"),
                layers.Dropout(0.2),
                layers.Dense(1),
            ]
        )

    model = side.compiled(make)
    trained = side.trained(model, validation_data=dataset())
    if not keras_variants.IS_KERAS_3:  # which draws other numbers in each function
        return {name: trained[name] for name in ("epochs", "iterations")}
    counted = [
        int(layer.seed_generator.state.numpy()[1])
        for layer in model.layers
        if isinstance(layer, layers.Dropout)
    ]
    return {**trained, "counted": counted}


class Pair(tf.keras.Model):
    """Two networks with an optimizer each."""

    def __init__(self):
        super().__init__()
        self.networks = [tf.keras.Sequential([layers.Input((3,)), layers.Dense(1)])]
        self.other = keras_variants.small_model()
        self.first_optimizer = tf.keras.optimizers.SGD(0.001)
        self.second_optimizer = tf.keras.optimizers.Adam(0.05)
        self.error = tf.keras.metrics.Mean(name="error")

    def train_step(self, data):
        words, y = data  # pyright: ignore
        pairs = [
            (self.networks[0], self.first_optimizer, tf.cast(words, tf.float32)),
            (self.other, self.second_optimizer, words),
        ]
        for network, optimizer, x in pairs:
            with tf.GradientTape() as tape:
                error = tf.reduce_mean((network(x, training=True) - y) ** 2)
            variables = network.trainable_variables
            grads = tape.gradient(error, variables)
            optimizer.apply_gradients(zip(grads, variables, strict=True))
            self.error.update_state(error)
        return {"error": self.error.result(), "last": error}


def two_networks_with_a_train_step_but_no_call_or_optimizer(side):
    optimizer = None
    if not keras_variants.IS_KERAS_3:  # which wants both, and uses neither
        optimizer, Pair.call = "sgd", lambda self, words: self.other(words)
    model = side.compiled(Pair, optimizer=optimizer, loss=None, metrics=None)
    history = side.fit(model, dataset(), epochs=2, verbose=0).history
    counted = [
        int(optimizer.iterations.numpy())
        for optimizer in (model.first_optimizer, model.second_optimizer)
    ]
    return {"history": history, "counted": counted}


def optimizer_with_all_options_and_steps_per_epoch(side):
    def make_optimizer(rate):
        return tf.keras.optimizers.Adam(
            keras_variants.slow_decay(rate),
            use_ema=True,
            ema_momentum=0.9,
            global_clipnorm=0.5,
            weight_decay=0.01,
        )

    model = side.compiled(make_optimizer=make_optimizer)
    return side.trained(model, dataset().repeat(), steps_per_epoch=5)


def files_of_callbacks(side):
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder)
        callbacks = [
            tf.keras.callbacks.CSVLogger(f"{folder}/log.csv"),
            tf.keras.callbacks.ModelCheckpoint(
                f"{folder}/best.weights.h5", save_best_only=True, save_weights_only=True
            ),
            tf.keras.callbacks.ModelCheckpoint(f"{folder}/{{epoch}}.keras"),
        ]
        if importlib.util.find_spec("tensorboard"):
            board = tf.keras.callbacks.TensorBoard(f"{folder}/logs", update_freq=1)
            callbacks.append(board)
        model = side.compiled()
        trained = side.trained(model, validation_data=dataset(), callbacks=callbacks)
        loaded = tf.keras.models.load_model(f"{folder}/1.keras")
        model.load_weights(f"{folder}/best.weights.h5")
        with open(path / "log.csv") as file:
            rows = [list(map(float, row.values())) for row in csv.DictReader(file)]
        events = sorted(path.glob("logs/*/*"))
        tags = {
            f"{file.parent.name}/{value.tag}"
            for file in events
            if ".tfevents." in file.name
            for event in tf.compat.v1.train.summary_iterator(str(file))
            for value in event.summary.value
        }
        if not keras_variants.IS_KERAS_3:
            # Keras 2 writes these if any callback looks at batches, as one of ours
            # does, for a loss of NaN.
            tags = {tag for tag in tags if not tag.startswith("train/batch_")}
        return {
            **trained,
            "rows": rows,
            "loaded": [float(np.sum(x)) for x in loaded.get_weights()],
            "best": side.evaluate(model, dataset(), verbose=0),
            "tags": sorted(tags - {"train/keras"}),
        }


def backup_after_an_interruption(side):
    class Interruption(tf.keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            if epoch == 1:
                raise KeyboardInterrupt

    with tempfile.TemporaryDirectory() as folder:
        backup = tf.keras.callbacks.BackupAndRestore(f"{folder}/backup")
        with contextlib.suppress(KeyboardInterrupt):
            side.trained(side.compiled(), epochs=3, callbacks=[backup, Interruption()])
        return side.trained(side.compiled(), epochs=3, callbacks=[backup])


def predictions(side):
    class Uncompiled(tf.keras.Model):
        def __init__(self):
            super().__init__()
            self.inner = keras_variants.small_model()

        def call(self, words):
            y = self.inner(words)
            return {"sum": y, "both": (y, tf.cast(words, tf.float32) * y)}

    with side.scope():
        model = Uncompiled()
        tagger = tf.keras.Sequential([layers.Embedding(9, 2, "ones")])
    of_lengths = tf.data.Dataset.range(1, 8).map(tf.range).padded_batch(2)
    tags = side.predict(tagger, of_lengths, verbose=0).to_list()
    recorder = Recorder()
    outputs = side.predict(model, WORDS, batch_size=7, verbose=0, callbacks=[recorder])
    some = side.predict(model, dataset(), steps=3, verbose=0)
    assert outputs["both"][1].shape == WORDS.shape
    assert some["sum"].shape == (30, 1)
    outputs, some = tf.nest.map_structure(
        lambda array: array.astype(float).tolist(), (outputs, some)
    )
    calls = recorder.calls
    return {"outputs": outputs, "some": some, "tags": tags, "calls": calls}


class Graph(tf.keras.Model):
    """Its train step is a TensorFlow function, and reports in words of its own."""

    def __init__(self):
        super().__init__()
        self.inner = keras_variants.small_model()

    def call(self, words):
        return self.inner(words)

    @tf.function
    def train_step(self, data):
        words, y = data  # pyright: ignore
        if tf.reduce_mean(y) > 1.0:
            y = y + 1.0  # pyright: ignore
        return super().train_step((words, y))


def train_step_that_is_a_function_with_several_kinds_of_data(side):
    model = side.compiled(Graph)
    model.build((None, 3))
    first = side.trained(model)
    arrays = side.trained(
        model, WORDS[:64], y=TARGETS[:64], batch_size=8, shuffle=False
    )
    return [first, arrays]


class Towers(tf.keras.Model):
    """Two towers, and a batch that is a dict: only its step knows what each takes."""

    def __init__(self):
        super().__init__()
        self.left, self.right = layers.Dense(4), layers.Dense(4)
        self.error = tf.keras.metrics.Mean(name="error")

    def call(self, words):
        return self.left(words)

    def train_step(self, data: Any):
        with tf.GradientTape() as tape:
            left = self(tf.reduce_sum(tf.one_hot(data["words"], 20), axis=1))
            right = self.right(tf.cast(data["words"], tf.float32))
            y = tf.reduce_sum(left * right, axis=1, keepdims=True)
            loss = tf.reduce_mean((y - data["y"]) ** 2)
        variables = self.trainable_variables
        grads = tape.gradient(loss, variables)
        self.optimizer.apply_gradients(zip(grads, variables, strict=True))
        self.error.update_state(loss)
        return {"error": self.error.result()}


def unbuilt_model_with_a_train_step_on_dicts(side):
    def synchronous(rate):
        return tfs.keras.SyncReplicas(tf.keras.optimizers.Adam(rate), 1)

    optimizers = [tf.keras.optimizers.Adam, synchronous]
    if not keras_variants.IS_KERAS_3:
        optimizers.append(tf.keras.optimizers.legacy.Adam)
    data = tf.data.Dataset.from_tensor_slices({"words": WORDS, "y": TARGETS}).batch(10)
    return [
        side.trained(
            side.compiled(Towers, make_optimizer=optimizer, loss=None, metrics=None),
            data,
        )
        for optimizer in optimizers
    ]


def numbers_of_numpy(side):
    """Keras' own `fit` does not accept all of these."""
    whole, real = (int, float) if side.is_stock else (np.int64, np.float32)
    return side.trained(
        side.compiled(steps_per_execution=whole(2)),
        WORDS,
        y=TARGETS,
        batch_size=whole(10),
        shuffle=False,  # Keras 3.16 takes no seed.
        epochs=whole(3),
        initial_epoch=whole(1),
        validation_split=real(0.25),
        # Keras 3 itself makes whole executions, however few steps are asked for.
        validation_steps=whole(2),
        validation_freq=whole(2),
    )


def loss_that_branches_on_tensors(side):
    """In Keras 3 it would be for `tf.function`s of the user's own."""

    def loss(y_true, y_pred):
        error = tf.abs(y_true - y_pred)
        if tf.reduce_mean(error) > 0.5:
            error = 2 * error
        return tf.reduce_sum(error) / tf.cast(len(y_pred), error.dtype)

    return side.trained(side.compiled(loss=loss), validation_data=dataset())


class Reading(tf.keras.Model):
    """Has what it reads in its logs."""

    def train_step(self, data: Any):
        return {"read": tf.cast(data[0], tf.float32)}


def shuffled_orders_of_a_training_that_goes_on(side):
    """Those of its third epoch and the next."""
    tf.keras.utils.set_random_seed(1)
    number = 20
    of_epoch = {"steps_per_epoch": number}

    def make(_=None):
        return tf.data.Dataset.range(number).shuffle(number, seed=3).batch(1)

    data = make()
    kinds = {"pass": (make, {}), "steps": (make, of_epoch), "same": (data, of_epoch)}
    if side.is_stock:  # `Model.fit` begins with the order of the first epoch.
        _, _, third, fourth = ([int(x[0]) for x in data] for _ in range(4))
        return dict.fromkeys(kinds, third + fourth)
    orders = {}
    for name, (data, options) in kinds.items():
        orders[name] = read = []
        note = tf.keras.callbacks.LambdaCallback(
            on_train_batch_end=lambda _, logs, read=read: read.append(int(logs["read"]))
        )
        options |= {"initial_epoch": 2, "epochs": 4, "verbose": 0, "callbacks": [note]}
        side.fit(side.compiled(make=Reading, metrics=None), data, **options)
    return orders


SCENARIOS = {
    scenario.__name__: scenario
    for scenario in (
        every_batch_once,
        several_steps_per_execution,
        executions_of_several_steps_have_the_bits_of_single_ones,
        executions_of_a_size_found_and_of_a_large_one_have_these_bits_too,
        calls_of_callbacks_that_change_rates_and_stop,
        fits_one_after_the_other_with_progress_bars,
        arrays_for_several_inputs_and_outputs_of_an_unbuilt_model,
        sample_weights_and_a_metric_that_is_no_sum,
        class_weights,
        metrics_of_all_kinds_of_a_dataset_of_unknown_length,
        layers_with_state_and_losses,
        optimizer_with_all_options_and_steps_per_epoch,
        files_of_callbacks,
        backup_after_an_interruption,
        predictions,
        two_networks_with_a_train_step_but_no_call_or_optimizer,
        train_step_that_is_a_function_with_several_kinds_of_data,
        unbuilt_model_with_a_train_step_on_dicts,
        numbers_of_numpy,
        shuffled_orders_of_a_training_that_goes_on,
        *([] if keras_variants.IS_KERAS_3 else [loss_that_branches_on_tensors]),
    )
} | fit_data.SCENARIOS
