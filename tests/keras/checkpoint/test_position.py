"""Where a training continues from a checkpoint, and where the next one begins."""

import contextlib
import io

import clusters
import keras_variants
import numpy as np
import pytest
import tensorflow as tf
from keras_sync_replicas import make_strategy

import tf_syncrep as tfs

EXAMPLES, STEPS = 12, 6
OF_REST = "Metrics of this epoch will be those of its steps from here on."


class OnPurposeError(Exception):
    pass


class Watch(tf.keras.callbacks.Callback):
    """Notes the first step, and fails or stops at a step, or stops after an epoch."""

    def __init__(self, fail_at=None, stop_at=None, stop_after=None):
        super().__init__()
        self.fail_at, self.stop_at, self.stop_after = fail_at, stop_at, stop_after
        self.epoch, self.first = 0, None

    def on_train_begin(self, logs=None):
        if self.fail_at == "begin":
            raise OnPurposeError

    def on_epoch_begin(self, epoch, logs=None):
        self.epoch = epoch

    def on_train_batch_end(self, batch, logs=None):
        self.first = self.first or (self.epoch, batch)
        if self.fail_at == (self.epoch, batch):
            raise OnPurposeError
        if self.stop_at == (self.epoch, batch):  # told to leave the machine
            self.model.stop_training = True

    def on_epoch_end(self, epoch, logs=None):
        if epoch == self.stop_after:
            self.model.stop_training = True


class TwoUpdates(tf.keras.Model):
    """Makes two updates in each step."""

    def train_step(self, data):
        x, y = data  # pyright: ignore

        def loss():
            return tf.reduce_mean((self(x, training=True) - y) ** 2)

        variables = self.trainable_variables
        for _ in range(2):
            last = keras_variants.update(self.optimizer, variables, loss)
        return {"loss": last}


def make(kind="plain", per_execution=1, run_eagerly=True):
    inputs = tf.keras.Input([2])
    outputs = tf.keras.layers.Dense(1)(inputs)
    of = TwoUpdates if kind == "two updates" else tf.keras.Model
    model = of(inputs, outputs)
    optimizer = tf.keras.optimizers.SGD(0.01)
    if kind == "accumulated":
        optimizer = tfs.keras.GradientAccumulation(optimizer, 2)
    elif kind == "synchronous":
        optimizer = tfs.keras.SyncReplicas(optimizer, 2, 2, spares=False)
    # A few steps take less than a trace of each model.
    options = {"run_eagerly": run_eagerly and per_execution == 1, "jit_compile": False}
    model.compile(optimizer, "mse", steps_per_execution=per_execution, **options)
    return model


def fit(model, *callbacks, epochs=3, how=tfs.keras.fit):
    draw = np.random.default_rng(0)
    x, y = (draw.normal(size=(EXAMPLES, n)).astype(np.float32) for n in (2, 1))
    history = how(
        model,
        tf.data.Dataset.from_tensor_slices((x, y)).batch(EXAMPLES // STEPS),
        epochs=epochs,
        verbose=0,
        callbacks=[*callbacks],
    )
    return history.epoch


def interrupted(folder, kind="plain", every=4, at=(1, 4)):
    """Trains until step `at`, with a checkpoint at an interval of steps."""
    checkpoint = tfs.keras.Checkpoint(folder, every_n_steps=every)
    with pytest.raises(OnPurposeError):
        fit(make(kind), checkpoint, Watch(fail_at=at))
    return tfs.keras.Checkpoint(folder)


@pytest.mark.parametrize(
    ("kind", "every", "at", "first"),
    [
        ("plain", 4, (1, 4), (1, 2)),
        ("two updates", 4, (1, 4), (1, 2)),
        ("two updates", 3, (0, 4), (0, 3)),
        ("accumulated", 4, (1, 4), (1, 2)),
        ("accumulated", 3, (0, 4), (0, 2)),  # the third waits for the fourth
        ("accumulated", 6, (1, 0), (1, 0)),
    ],
)
def test_training_goes_on_after_the_steps_that_fit_has_counted(
    tmp_path, capsys, kind, every, at, first
):
    """For any number of updates in a step. Keras 3's own loop repeats the epoch."""
    checkpoint, watch = interrupted(tmp_path, kind, every, at), Watch()
    epoch, step = first
    step = 0 if keras_variants.IS_KERAS_3 else step
    assert fit(make(kind), checkpoint, watch) == [*range(epoch, 3)]
    assert watch.first == (epoch, step)
    goes_on = f", in epoch {epoch + 1}/3 after {step} of its {STEPS} steps: at most "
    said = capsys.readouterr().out
    assert goes_on in said
    assert (OF_REST in said) == (step > 0)


@pytest.mark.parametrize("how", [tfs.keras.fit, tf.keras.Model.fit])
def test_interval_is_of_steps_however_many_an_execution_has(tmp_path, how):
    """Each epoch has two executions. Keras 3.10 tells the number of a first step."""
    checkpoint = tfs.keras.Checkpoint(tmp_path, every_n_steps=4)
    fit(make(per_execution=3), checkpoint, how=how)
    assert checkpoint.saving.manifest.number == 3 + 1  # with that of the end


@pytest.mark.parametrize("at", ["begin", (1, 4)])
@pytest.mark.parametrize("how", [tfs.keras.fit, tf.keras.Model.fit])
def test_nothing_of_an_interrupted_run_is_left_to_the_next(tmp_path, at, how):
    checkpoint, model = interrupted(tmp_path), make()
    with pytest.raises(OnPurposeError):
        fit(model, checkpoint, Watch(fail_at=at), how=how)
    assert fit(model, how=how) == [0, 1, 2]


@pytest.mark.parametrize("how", [tfs.keras.fit, tf.keras.Model.fit])
def test_backup_of_keras_goes_on_too_and_the_next_run_begins_anew(tmp_path, how):
    def backup():
        return tf.keras.callbacks.BackupAndRestore(tmp_path)

    with pytest.raises(OnPurposeError):
        fit(make(), backup(), Watch(fail_at=(1, 4)), how=how)
    model = make()
    assert fit(model, backup(), how=how) == [1, 2]
    assert fit(model, tfs.keras.Checkpoint(tmp_path / "run"), how=how) == [0, 1, 2]


@pytest.mark.parametrize(("epochs", "stop_after"), [(2, None), (5, 1)])
def test_after_its_end_nothing_is_left_to_train(
    tmp_path, caplog, capsys, epochs, stop_after
):
    """However often the script runs again, and whether or not it stopped early."""

    def run(epochs):
        caplog.clear()
        callbacks = tfs.keras.Checkpoint(tmp_path), Watch(stop_after=stop_after)
        return fit(make(), *callbacks, epochs=epochs)

    assert run(epochs) == [0, 1]
    for number in (1, 2):
        assert run(epochs) == []
        assert "There is nothing left to train: " in caplog.text
        assert (
            f"ckpt-{number} was written at the end of a training, with " in caplog.text
        )
        assert f" epochs={epochs}." in caplog.text
    assert run(epochs + 1) == [epochs]
    said = capsys.readouterr().out
    assert f"in epoch {epochs + 1}/{epochs + 1} after 0 of" in said
    assert "nothing is lost" in said


@pytest.mark.parametrize("order", [1, -1])
@pytest.mark.parametrize("how", [tfs.keras.fit, tf.keras.Model.fit])
def test_training_that_was_stopped_within_an_epoch_goes_on_there(tmp_path, order, how):
    callbacks = [Watch(stop_at=(1, 3)), tfs.keras.Checkpoint(tmp_path)]
    assert fit(make(), *callbacks[::order], how=how) == [0, 1]
    watch = Watch()
    assert fit(make(), tfs.keras.Checkpoint(tmp_path), watch, how=how) == [1, 2]
    assert watch.first == (1, 0 if keras_variants.IS_KERAS_3 else 4)
    assert fit(make(), tfs.keras.Checkpoint(tmp_path), how=how) == []


class Ruin(tf.keras.callbacks.Callback):
    """Ruins the weights before an epoch."""

    def __init__(self, epoch):
        super().__init__()
        self.at = epoch

    def on_epoch_begin(self, epoch, logs=None):
        if epoch == self.at:
            self.model.set_weights([x * np.nan for x in self.model.get_weights()])


@pytest.mark.parametrize("order", [1, -1])
@pytest.mark.parametrize(("every", "goes_on"), [(6, [1, 2]), (100, [0, 1, 2])])
def test_training_that_ends_on_nan_goes_on_from_its_last_good_checkpoint(
    tmp_path, caplog, order, every, goes_on
):
    """Without one it begins anew."""
    checkpoint = tfs.keras.Checkpoint(tmp_path, every_n_steps=every)
    ends = [tf.keras.callbacks.TerminateOnNaN(), checkpoint][::order]
    assert fit(make(), Ruin(1), Await(checkpoint), *ends) == [0, 1]
    model = make()
    assert fit(model, tfs.keras.Checkpoint(tmp_path)) == goes_on
    assert "the loss at which training was stopped is not finite" in caplog.text
    assert "There is nothing left to train" not in caplog.text
    assert np.isfinite(model.get_weights()[0]).all()


def fit_a_list(model, *data, callbacks, **arguments):
    callbacks = tf.keras.callbacks.CallbackList(
        callbacks, add_history=True, model=model
    )
    return model.fit(*data, callbacks=callbacks, **arguments)


@pytest.mark.parametrize("order", [1, -1])
@pytest.mark.parametrize("how", [tfs.keras.fit, tf.keras.Model.fit, fit_a_list])
def test_last_checkpoint_holds_the_best_weights_that_were_restored(
    tmp_path, order, how
):
    class Score(tf.keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            logs.update(score=epoch)

    stopping = tf.keras.callbacks.EarlyStopping(
        "score", patience=1, mode="min", restore_best_weights=True
    )
    checkpoint = tfs.keras.Checkpoint(tmp_path)
    callbacks = [stopping, checkpoint][::order]
    model, other = make(), make()
    assert fit(model, Score(), *callbacks, epochs=5, how=how) == [0, 1]
    assert checkpoint.saving.manifest.number == 1  # one alone
    tfs.keras.Checkpoint(tmp_path, model=other).restore()
    for found, expected in zip(other.get_weights(), model.get_weights(), strict=True):
        np.testing.assert_array_equal(found, expected)


class Await(tf.keras.callbacks.Callback):
    """Waits for each checkpoint, so that none is skipped while another is written."""

    def __init__(self, checkpoint):
        super().__init__()
        self.checkpoint = checkpoint

    def on_train_batch_end(self, batch, logs=None):
        if self.checkpoint.saving is not None:
            self.checkpoint.saving.wait()


def fit_steps(model, *callbacks):
    ones = np.ones([2, 2], np.float32)
    data = keras_variants.for_ever(ones, ones[:, :1])()
    options = {"epochs": 3, "steps_per_epoch": STEPS, "verbose": 0}
    return tfs.keras.fit(model, data, callbacks=[*callbacks], **options).epoch


def scenario(strategy, folder, kind):
    """Trains, is interrupted twice, continues twice, then begins anew."""

    def new():
        with strategy.scope():
            return make(kind, run_eagerly=False)

    checkpoint = tfs.keras.Checkpoint(folder, every_n_steps=4)
    with contextlib.suppress(OnPurposeError):
        callbacks = checkpoint, Await(checkpoint), Watch(fail_at=(1, 4))
        fit_steps(new(), *callbacks)
    state = checkpoint.saving.wait().state
    model = new()
    with contextlib.suppress(OnPurposeError):
        fit_steps(model, tfs.keras.Checkpoint(folder), Watch(fail_at="begin"))
    after_failure = fit_steps(model)
    model, watch = new(), Watch()
    with contextlib.redirect_stdout(io.StringIO()) as said:
        epochs = fit_steps(model, tfs.keras.Checkpoint(folder), watch)
    stopped, again = tfs.keras.Checkpoint(f"{folder}/stopped"), Watch()
    fit_steps(new(), stopped, Watch(stop_at=(1, 3)))
    cut = stopped.saving.wait().state
    fit_steps(new(), tfs.keras.Checkpoint(f"{folder}/stopped"), again)
    return {
        "stopped": [cut["epoch"], cut["step"]],
        "first after stop": again.first,
        "saved": [state["epoch"], state["step"]],
        "after failure": after_failure,
        "first": watch.first,
        "epochs": epochs,
        "log": said.getvalue(),
        "iterations": int(np.asarray(model.optimizer.iterations)),
    }


def trainings(folder):
    strategy = make_strategy()
    return {
        kind: scenario(strategy, f"{folder}/{kind}", kind)
        for kind in ("two updates", "synchronous")
    }


@pytest.mark.slow
def test_on_a_cluster_too(tmp_path):
    result = clusters.call(trainings, str(tmp_path), num_ps=1)
    for kind in ("two updates", "synchronous"):
        assert result[kind]["after failure"] == [0, 1, 2], kind
        assert result[kind]["epochs"] == [1, 2], kind
        assert result[kind]["first"] == result[kind]["saved"], kind
        # Workers may have made all steps by the time the fourth was heard of.
        goes_on = result[kind]["stopped"], [2, 0] if kind == "synchronous" else None
        assert result[kind]["first after stop"] in goes_on, kind
        assert result[kind]["stopped"][0] == 1, kind
        assert OF_REST in result[kind]["log"], kind
    assert result["two updates"]["saved"] == [1, 2]
    # Each step is in one update of two, except those whose gradients came late.
    assert result["synchronous"]["iterations"] <= 3 * STEPS // 2
