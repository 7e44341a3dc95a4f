"""Trains synchronously where something raises, and goes on; reports what came of it."""

import io
import logging
import tempfile
import threading
import time
from unittest import mock

import keras_sync_replicas as helpers
import programs
import tensorflow as tf
import worker_seams

import tf_syncrep as tfs
from tf_syncrep.python.keras import compat
from tf_syncrep.python.keras.sync_replicas import updater as sync_replicas_updater


def fit(model, callbacks=(), steps=8, epochs=1, dataset=None):
    """Returns what it raised, or an empty string."""
    if dataset is None:
        dataset = helpers.dataset(seed=None)
    try:
        tfs.keras.fit(
            model,
            dataset,
            steps_per_epoch=steps,
            epochs=epochs,
            verbose=0,
            callbacks=list(callbacks),
        )
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""


def scheduled_step(model, optimizer, strategy):
    """A coordinator, and the arguments of its `schedule`."""
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
    data = coordinator.create_per_worker_dataset(
        lambda _=None: helpers.dataset(seed=None)
    )
    train_step = helpers.train_step(model, optimizer)
    return coordinator, (train_step, (iter(data),))


def custom_loop(model, optimizer, strategy, steps=8):
    """What `fit` does, in a loop that schedules steps itself."""
    coordinator, train_step = scheduled_step(model, optimizer, strategy)
    try:
        with optimizer.updater(strategy):
            for _ in range(steps):
                coordinator.schedule(*train_step)
            coordinator.join()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""


def with_bad_batch():
    """The third batch has a word that is not in the table.

    With Keras 2 each worker has batches of its own, and one of three comes to its third
    in eight steps for sure.
    """

    def spoil(number, batch):
        inputs, targets = batch
        word = tf.cast(tf.where(number == 2, 1_000_000, 0), tf.int32)
        return inputs + word * tf.constant([0, 1, 0, 0]), targets

    return helpers.dataset(seed=None).enumerate().map(spoil)


def outcome(optimizer, recorder, **result):
    return {
        **result,
        "weights": recorder.finish(),
        "stats": optimizer.stats(),
        "iterations": helpers.iterations_of(optimizer),
    }


def error_in_a_closure(strategy):
    model, optimizer = helpers.make(strategy, "sgd", 2, 2)
    recorder = helpers.Recorder(optimizer, model)
    error = fit(model, dataset=with_bad_batch())
    after = fit(model)
    return outcome(optimizer, recorder, error=error, after=after)


def error_in_an_update(strategy):
    said = io.StringIO()
    handler = logging.StreamHandler(said)
    result = {}
    for loop, train in (
        ("fit", lambda model, _: fit(model)),
        ("custom", lambda *made: custom_loop(*made, strategy)),
    ):
        model, optimizer = helpers.make(strategy, "sgd", 2, 2)
        updater = optimizer._rounds._updater
        updater._update = fail_before(updater._update)
        logging.getLogger("absl").addHandler(handler)
        error = train(model, optimizer)
        logging.getLogger("absl").removeHandler(handler)
        result[loop] = {
            "error": error,
            "iterations": helpers.iterations_of(optimizer),
            "stats": optimizer.stats(),
        }
    return {**result, "said": said.getvalue()}


def fail_before(update):
    def fail(gradients, variables):
        large = tf.reduce_sum(gradients[1]) > 1e9
        with tf.control_dependencies([tf.debugging.Assert(large, ["too small"])]):
            update(gradients, variables)

    return fail


def slow_rounds(strategy):
    """Each takes longer than the updater waits for it at a time."""
    model, optimizer = helpers.make(strategy, "sgd", 2, 2)
    recorder = helpers.Recorder(optimizer, model)
    with (
        tempfile.TemporaryDirectory() as folder,
        worker_seams.Seams(folder, compute_secs=[0.5] * 3).in_place(),
        mock.patch.object(sync_replicas_updater, "_WAIT_SECS", 0.1),
    ):
        error = fit(model)
    return outcome(optimizer, recorder, error=error)


def updater_left_behind(strategy):
    """The thread of one training ends only after the next one has begun."""
    model, optimizer = helpers.make(strategy, "sgd", 2, 2)
    in_update, go_on = threading.Event(), threading.Event()

    def wait_after_the_first(step):
        if step == 1:
            in_update.set()
            go_on.wait()

    recorder = helpers.Recorder(optimizer, model, on_update=wait_after_the_first)
    with mock.patch.object(sync_replicas_updater, "_END_SECS", 0.2):
        rounds = optimizer._rounds
        rounds.start()
        first = rounds._updater._thread
        coordinator, train_step = scheduled_step(model, optimizer, strategy)
        for _ in range(2):
            coordinator.schedule(*train_step)
        coordinator.join()
        in_update.wait()
        rounds.close()
    left_behind = first.is_alive()
    with optimizer.updater(strategy):
        go_on.set()
        for _ in range(4):
            coordinator.schedule(*train_step)
        coordinator.join()
        first.join(timeout=20)
        ended = not first.is_alive()
    return outcome(optimizer, recorder, left_behind=left_behind, ended=ended)


def errors_apart_from_closures(strategy):
    """A function fails beside a closure, and a closure beside a function."""
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
    with strategy.scope():
        num_begun = tf.Variable(0)

    def sleep_and_check(secs, fails):
        slept = worker_seams.sleep(secs)
        with tf.control_dependencies([slept]):
            check = tf.debugging.Assert(tf.logical_not(fails), ["made to fail"])
        with tf.control_dependencies([check]):
            return tf.identity(secs)

    @tf.function
    def closure(secs, fails):
        with tf.control_dependencies([num_begun.assign_add(1)]):
            return sleep_and_check(secs, fails)

    function = tf.function(sleep_and_check)
    said = {}

    def tell(name, call, *args):
        try:
            call(*args)
            said[name] = ""
        except Exception as error:
            said[name] = f"{type(error).__name__}: {error}"

    def call_apart(secs, fails):
        with compat.apart_from_closures():
            function(tf.constant(secs), tf.constant(fails))

    for number, (closure_fails, function_fails) in enumerate(
        [(False, True), (True, False)], start=1
    ):
        secs = tf.constant(1.0 if function_fails else 0.2)
        coordinator.schedule(closure, args=(secs, tf.constant(closure_fails)))
        while int(num_begun) < number:
            time.sleep(0.01)
        call = threading.Thread(
            target=tell,
            args=(f"function {number}", call_apart, 1.2 - float(secs), function_fails),
        )
        call.start()
        tell(f"closure {number}", coordinator.join)
        call.join()
    return said


def error_in_a_custom_loop(strategy):
    model, optimizer = helpers.make(strategy, "sgd", 2, 2)
    recorder = helpers.Recorder(optimizer, model)
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
    result = {}

    @tf.function
    def outside_of_a_step():
        optimizer.apply_gradients(
            (tf.zeros_like(x), x) for x in model.trainable_variables
        )

    for name, what in (
        ("no_step", lambda: coordinator.schedule(outside_of_a_step)),
        ("in_the_loop", lambda: 1 / 0),
    ):
        try:
            with optimizer.updater(strategy):
                what()
                coordinator.join()
        except Exception as error:
            result[name] = f"{type(error).__name__}: {error}"
    return outcome(optimizer, recorder, **result, after=fit(model))


def other_quorum(strategy):
    model, optimizer = helpers.make(strategy, "sgd", 3, 3)
    recorder = helpers.Recorder(optimizer, model)

    def configure(epoch, logs):
        del logs
        if epoch == 0:
            optimizer.configure(2, 2)

    callbacks = [tf.keras.callbacks.LambdaCallback(on_epoch_end=configure)]
    error = fit(model, callbacks, steps=9, epochs=2)
    return outcome(optimizer, recorder, error=error)


def loss_scaling(strategy):
    policies = tf.keras.mixed_precision
    before = policies.global_policy()
    policies.set_global_policy("mixed_float16")
    try:
        model, _ = helpers.make(strategy, "sgd", 2, 2)
        return {"error": fit(model)}
    except ValueError as error:
        return {"error": str(error)}
    finally:
        policies.set_global_policy(before)


def main():
    strategy = helpers.make_strategy()
    trainings = (
        error_in_a_closure,
        error_in_an_update,
        slow_rounds,
        updater_left_behind,
        errors_apart_from_closures,
        error_in_a_custom_loop,
        other_quorum,
        loss_scaling,
    )
    programs.report({training.__name__: training(strategy) for training in trainings})


if __name__ == "__main__":
    main()
