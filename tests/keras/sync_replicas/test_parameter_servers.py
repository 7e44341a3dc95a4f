"""SyncReplicas under ParameterServerStrategy, on a cluster of real processes.

Each training is replayed in this process: every update must be the mean of gradients of
its batches that were computed with the weights before it.
"""

import contextlib
import glob
import importlib.util
import io
import logging
import tempfile
import threading
from unittest import mock

import clusters
import keras_sync_replicas as helpers
import keras_variants
import numpy as np
import pytest
import sync_accounting
import tensorflow as tf
import worker_seams
from keras_sync_cluster import assert_exact
from programs import error_of
from waiting import in_thread, until

import tf_syncrep as tfs
from tf_syncrep.python.keras import compat
from tf_syncrep.python.keras.sync_replicas.cluster import (
    updater as sync_replicas_updater,
)

NUM_WORKERS = 2


def fit(model, steps=8, epochs=1, callbacks=(), dataset=None, **options):
    return tfs.keras.fit(
        model,
        dataset or helpers.dataset(),
        steps_per_epoch=steps,
        epochs=epochs,
        verbose=0,
        callbacks=list(callbacks),
        **options,
    )


@contextlib.contextmanager
def logged():
    handler = logging.StreamHandler(io.StringIO())
    logging.getLogger("absl").addHandler(handler)
    yield handler.stream
    logging.getLogger("absl").removeHandler(handler)


def full_rounds(strategy):
    model, _, recorder = helpers.make(strategy, 2, 2)
    with (
        tempfile.TemporaryDirectory() as folder,
        contextlib.redirect_stdout(io.StringIO()) as output,
    ):
        callbacks = [
            tfs.keras.SyncReport(log_dir=f"{folder}/logs"),
            tf.keras.callbacks.ModelCheckpoint(
                f"{folder}/{{epoch}}.weights.h5", save_weights_only=True
            ),
        ]
        if importlib.util.find_spec("tensorboard"):
            callbacks.append(tf.keras.callbacks.TensorBoard(f"{folder}/board"))
        validation = {"validation_data": helpers.dataset(), "validation_steps": 4}
        history = fit(model, 6, 2, callbacks, **validation).history
        with strategy.scope():
            saved = helpers.make_model()
        saved.load_weights(f"{folder}/1.weights.h5")
        board = [
            value.tag
            for path in sorted(glob.glob(f"{folder}/board/*/events*"))
            for event in tf.compat.v1.train.summary_iterator(path)
            for value in event.summary.value
        ]
    return {
        **recorder.result(),
        "output": output.getvalue(),
        "history": {name: values[-1] for name, values in history.items()},
        "saved": [x.tolist() for x in helpers.weights_of(saved)],
        "board": board,
    }


def dropped_rest(strategy):
    model, _, recorder = helpers.make(strategy, 3, 2, flush_last=False)
    with logged() as said:
        fit(model, steps=5, epochs=2)
    return {**recorder.result(), "said": said.getvalue()}


def several_steps_at_once(strategy):
    model, _, recorder = helpers.make(strategy, 2, 2, steps_per_execution=4)
    fit(model)
    return recorder.result()


def strategy_run(strategy):
    model, optimizer, recorder = helpers.make(strategy, 3, None)
    loop = helpers.CustomLoop(strategy, model, optimizer, by_run=True)
    with optimizer.updater(strategy) as updater:
        for _ in range(2):
            loop.make_steps(7)
            updater.drain()
    return {**recorder.result(), "total": optimizer.total_num_replicas}


def variables_in_parts(strategy):
    del strategy
    model, _, recorder = helpers.make(helpers.make_strategy(num_parts=2), 2, 2)
    fit(model)
    return recorder.result()


def other_quorums(strategy):
    model, optimizer, recorder = helpers.make(strategy, 3, 3)
    after_epoch = {0: (2, 2), 1: (1, 3)}

    def configure(epoch, logs):
        del logs
        if epoch in after_epoch:
            optimizer.configure(*after_epoch[epoch])

    callback = tf.keras.callbacks.LambdaCallback(on_epoch_end=configure)
    fit(model, steps=9, epochs=3, callbacks=[callback])
    return recorder.result()


def changed_settings(strategy):
    """How far each of several trainings moves, after the optimizer was changed."""
    model, optimizer, _ = helpers.make(strategy, 1, 1)
    updater = optimizer._rounds
    decay = tf.keras.optimizers.schedules.PiecewiseConstantDecay
    changes = {
        "none": {},
        "none again": {},
        "clipped": {"global_clipnorm": 1e-3},
        "decayed": {"global_clipnorm": None, "weight_decay": 1000.0},
    }
    if keras_variants.IS_KERAS_3:  # Keras 2 makes a variable in the step for it.
        schedule = decay([1000], [0.0, 0.1])
        changes["scheduled"] = {"weight_decay": None, "learning_rate": schedule}
    moved, functions = {}, []
    for name, change in changes.items():
        for attribute, value in change.items():
            setattr(optimizer, attribute, value)
        before = helpers.weights_of(model)
        fit(model, steps=1)
        after = helpers.weights_of(model)
        moves = [x - y for x, y in zip(after, before, strict=True)]
        moved[name] = float(np.sqrt(sum(np.sum(x**2) for x in moves)))
        functions.append(updater._wait_and_apply_fn)
    return {"moved": moved, "kept": functions[0] is functions[1]}


def slow_rounds(strategy):
    """Each batch takes longer than one wait of the updater."""
    model, _, recorder = helpers.make(strategy, 2, 2)
    with (
        tempfile.TemporaryDirectory() as folder,
        worker_seams.Seams(folder, compute_secs=[0.2] * 2).in_place(),
        mock.patch.object(sync_replicas_updater, "_WAIT_SECS", 0.05),
    ):
        fit(model)
    return recorder.result()


def error_in_a_closure(strategy):
    def spoil(number, batch):
        # The third batch has a word that is not in the table. With Keras 2 each worker
        # has batches of its own, and one of two reaches its third within eight steps.
        inputs, targets = batch
        word = tf.cast(tf.where(number == 2, 1_000_000, 0), tf.int32)
        return inputs + word * tf.constant([0, 1, 0, 0]), targets

    model, _, recorder = helpers.make(strategy, 2, 2)
    spoilt = helpers.dataset().enumerate().map(spoil)
    error = error_of(fit, model, dataset=spoilt)
    return {"error": error, "after": error_of(fit, model), **recorder.result()}


def error_in_an_update(strategy):
    def fail_before(update):
        def fail(gradients, variables):
            large = tf.reduce_sum(gradients[1]) > 1e9
            with tf.control_dependencies([tf.debugging.Assert(large, ["too small"])]):
                update(gradients, variables)

        return fail

    def train_by_loop(model, optimizer):
        loop = helpers.CustomLoop(strategy, model, optimizer)
        with optimizer.updater(strategy):
            loop.make_steps(8)

    result = {}
    for name, train in (
        ("fit", lambda model, _: fit(model)),
        ("custom", train_by_loop),
    ):
        model, optimizer, recorder = helpers.make(strategy, 2, 2)
        updater = optimizer._rounds
        updater._update = fail_before(updater._update)
        with logged() as said:
            error = error_of(train, model, optimizer)
        result[name] = {**recorder.result(), "error": error, "said": said.getvalue()}
    return result


def error_in_a_custom_loop(strategy):
    model, optimizer, recorder = helpers.make(strategy, 2, 2)
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)

    @tf.function
    def outside_of_a_step():
        optimizer.apply_gradients(
            (tf.zeros_like(x), x) for x in model.trainable_variables
        )

    def in_updater(call):
        with optimizer.updater(strategy):
            call()
            coordinator.join()

    errors = {
        "no_step": error_of(
            in_updater, lambda: coordinator.schedule(outside_of_a_step)
        ),
        "in_the_loop": error_of(in_updater, lambda: 1 / 0),
        "after": error_of(fit, model),
    }
    return {**errors, **recorder.result()}


def updater_left_behind(strategy):
    """The thread of one training ends only after the next one has begun."""
    in_update, go_on = threading.Event(), threading.Event()

    def wait_after_the_first(step):
        if step == 1:
            in_update.set()
            go_on.wait()

    model, optimizer, recorder = helpers.make(
        strategy, 2, 2, on_update=wait_after_the_first
    )
    loop = helpers.CustomLoop(strategy, model, optimizer)
    with mock.patch.object(sync_replicas_updater, "_END_SECS", 0.2):
        rounds = optimizer._rounds
        rounds.start()
        first = rounds._training.thread
        loop.make_steps(2)
        in_update.wait()
        rounds.close()
    left_behind = first.is_alive()
    with optimizer.updater(strategy):
        go_on.set()
        loop.make_steps(4)
        first.join(timeout=20)
        ended = not first.is_alive()
    return {**recorder.result(), "left_behind": left_behind, "ended": ended}


def errors_apart_from_closures(strategy):
    """A function fails beside a closure, and a closure fails beside a function."""
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
    with strategy.scope():
        num_begun = tf.Variable(0)

    def sleep_and_check(secs, fails):
        with tf.control_dependencies([worker_seams.sleep(secs)]):
            check = tf.debugging.Assert(tf.logical_not(fails), ["made to fail"])
        with tf.control_dependencies([check]):
            return tf.identity(secs)

    @tf.function
    def closure(secs, fails):
        with tf.control_dependencies([num_begun.assign_add(1)]):
            return sleep_and_check(secs, fails)

    function = tf.function(sleep_and_check)
    said = {}

    def call_apart(*args):
        with compat.apart_from_closures():
            return error_of(function, *args)

    for number, closure_fails in enumerate([False, True], start=1):
        short, long = map(tf.constant, (0.1, 0.5))
        mine, other = (short, long) if closure_fails else (long, short)
        coordinator.schedule(closure, args=(mine, tf.constant(closure_fails)))
        until(lambda n=number: int(num_begun) >= n)
        call = in_thread(call_apart, other, tf.constant(not closure_fails))
        said[f"closure {number}"] = error_of(coordinator.join)
        said[f"function {number}"] = call.result(60)
    return said


def loss_scaling(strategy):
    with keras_variants.policy("mixed_float16"):
        return {"error": error_of(lambda: fit(helpers.make(strategy, 2, 2)[0]))}


TRAININGS = [
    full_rounds,
    dropped_rest,
    several_steps_at_once,
    strategy_run,
    other_quorums,
    changed_settings,
    slow_rounds,
    error_in_a_closure,
    error_in_an_update,
    error_in_a_custom_loop,
    updater_left_behind,
    errors_apart_from_closures,
    loss_scaling,
    # Keras 3 cannot train them.
    *([] if keras_variants.IS_KERAS_3 else [variables_in_parts]),
]


def trained():
    strategy = helpers.make_strategy()
    return {x.__name__: x(strategy) for x in TRAININGS}


@pytest.fixture(scope="module")
def results():
    return clusters.call(trained, num_workers=NUM_WORKERS)


@pytest.mark.parametrize(
    ("name", "counts"),
    [
        ("full_rounds", [2] * 6),
        ("dropped_rest", [3] * 3),
        ("several_steps_at_once", [2] * 4),
        ("strategy_run", [3] * 4 + [2]),
        ("slow_rounds", [2] * 4),
        pytest.param(
            "variables_in_parts",
            [2] * 4,
            marks=pytest.mark.skipif(
                keras_variants.IS_KERAS_3, reason="Keras 3 cannot train them"
            ),
        ),
    ],
)
def test_each_update_is_the_mean_of_its_round_on_the_weights_before(
    name, counts, results
):
    assert_exact(results[name], counts)
    assert results[name]["iterations"] == len(counts)


def test_number_of_replicas_is_the_clusters_number_of_workers(results):
    assert results["strategy_run"]["total"] == NUM_WORKERS


def test_rest_is_dropped_on_request_and_that_is_said(results):
    dropped = results["dropped_rest"]
    assert "dropped the 1 gradients of a last incomplete round" in dropped["said"]
    assert dropped["stats"]["pending"] == 1


def test_logs_have_the_counters_and_the_validation(results):
    history = results["full_rounds"]["history"]
    assert history["sync/updates"] == 6
    assert history["sync/late"] == history["sync/voided"] == 0
    assert {"loss", "val_loss", "sync/waited_secs"} <= set(history)


def test_checkpoint_of_an_epoch_has_all_of_its_updates(results):
    assert results["full_rounds"]["saved"] == results["full_rounds"]["weights"][3]


@pytest.mark.skipif(
    not importlib.util.find_spec("tensorboard"), reason="needs tensorboard"
)
def test_tensorboards_callback_gets_its_scalars(results):
    tags = results["full_rounds"]["board"]
    assert tags.count("epoch_loss") == 4  # two epochs of training and validation


def test_line_of_each_epoch_names_updates_and_the_slowest_worker(results):
    lines = results["full_rounds"]["output"].splitlines()
    assert len(lines) == 2
    assert all("3 updates (" in line and "of 6 gradients" in line for line in lines)
    assert all("slowest worker:" in line for line in lines)


def test_quorum_changed_while_running_holds_from_the_next_round_on(results):
    result = results["other_quorums"]
    # The rounds that were open at the changes have the old size.
    counts = [3] * 4 + [2] * 4 + [1] * (result["stats"]["updates"] - 8)
    assert len(counts) > 9
    assert_exact(result, counts)


def test_settings_of_the_optimizer_hold_from_the_next_training_on(results):
    moved = results["changed_settings"]["moved"]
    rate = 0.1
    assert moved["none"] > 2 * rate * 1e-3
    assert moved["clipped"] == pytest.approx(rate * 1e-3, rel=1e-3)
    assert moved["decayed"] > 10 * moved["none"]
    assert moved.get("scheduled", 0.0) == 0.0
    # As long as nothing changes, nothing is traced again.
    assert results["changed_settings"]["kept"]


def test_error_in_a_closure_is_raised_and_the_next_fit_works(results):
    result = results["error_in_a_closure"]
    assert result["error"].startswith("InvalidArgumentError")
    assert "1000" in result["error"]
    assert result["after"] == ""
    assert_exact(result)


@pytest.mark.parametrize("loop", ["fit", "custom"])
def test_error_in_an_update_ends_training_and_is_raised(loop, results):
    result = results["error_in_an_update"][loop]
    # It is neither what closures heard of it, nor the CancelledError of those that did
    # not.
    assert result["error"].startswith("InvalidArgumentError")
    assert "too small" in result["error"]
    stats = result["stats"]
    sync_accounting.assert_identities(stats)
    assert result["iterations"] == stats["updates"] == stats["applied"] == 0
    assert "SyncReplicas: an update failed" in result["said"]
    assert "too small" in result["said"]


def test_error_in_a_custom_loop_is_raised_and_a_fit_works_after_it(results):
    result = results["error_in_a_custom_loop"]
    assert "in the scheduled function and" in result["no_step"]
    assert result["in_the_loop"].startswith("ZeroDivisionError")
    assert result["after"] == ""
    assert_exact(result)


def test_updater_that_outlives_its_training_takes_no_part_in_the_next(results):
    result = results["updater_left_behind"]
    assert result["left_behind"]
    assert result["ended"]
    assert_exact(result)


def test_functions_and_closures_fail_without_cancelling_each_other(results):
    said = results["errors_apart_from_closures"]
    for name in ("function 1", "closure 2"):
        assert said[name].startswith("InvalidArgumentError")
        assert "made to fail" in said[name]
    assert said["closure 1"] == said["function 2"] == ""


def test_loss_scaling_is_refused(results):
    # Keras 2 itself refuses this, for any optimizer under this strategy.
    message = (
        "SyncReplicas under ParameterServerStrategy has no place in a LossScaleOpt"
        if keras_variants.IS_KERAS_3
        else "Mixed precision is not supported"
    )
    assert message in results["loss_scaling"]["error"]
