"""Trains synchronously as the coordinator of a cluster; reports what came of it.

Arguments: the number of parts that variables are to have, and a list of trainings, each
a dict: "loop" ("fit", "custom" or "strategy_run"), "inner" (one of OPTIMIZERS),
"quorum", "total", "steps" (of an epoch), "epochs", and options of SyncReplicas.
"""

import contextlib
import glob
import importlib.util
import io
import json
import logging
import sys
import tempfile

import keras_sync_replicas as helpers
import programs
import tensorflow as tf

import tf_syncrep as tfs


def dataset_of_worker(context=None):
    # Not the same order on all workers.
    del context
    return helpers.dataset(seed=None)


def train_by_fit(strategy, model, optimizer, steps, epochs):
    with tempfile.TemporaryDirectory() as folder:
        checkpoint = tf.keras.callbacks.ModelCheckpoint(
            f"{folder}/{{epoch}}.weights.h5", save_weights_only=True
        )
        callbacks = [
            tfs.keras.SyncReport(log_dir=f"{folder}/logs"),
            checkpoint,
        ]
        if importlib.util.find_spec("tensorboard"):
            callbacks.append(tf.keras.callbacks.TensorBoard(f"{folder}/board"))
        history = tfs.keras.fit(
            model,
            helpers.dataset(seed=None),
            steps_per_epoch=steps,
            epochs=epochs,
            validation_data=helpers.dataset(seed=1).take(4),
            validation_steps=4,
            verbose=0,
            callbacks=callbacks,
        )
        with strategy.scope():
            saved = helpers.make_model()
        saved.load_weights(f"{folder}/1.weights.h5")
        return {
            "history": {name: x[-1] for name, x in history.history.items()},
            "saved": [x.tolist() for x in helpers.weights_of(saved)],
            "board": [
                value.tag
                for path in sorted(glob.glob(f"{folder}/board/*/events*"))
                for event in tf.compat.v1.train.summary_iterator(path)
                for value in event.summary.value
            ],
        }


def train_by_strategy_run(strategy, model, optimizer, steps, epochs):
    return train_by_loop(strategy, model, optimizer, steps, epochs, strategy)


def train_by_loop(strategy, model, optimizer, steps, epochs, run_by=None):
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
    iterator = iter(coordinator.create_per_worker_dataset(dataset_of_worker))
    train_step = helpers.train_step(model, optimizer, run_by)

    with optimizer.updater(strategy) as updater:
        for _ in range(epochs):
            for _ in range(steps):
                coordinator.schedule(train_step, args=(iterator,))
            coordinator.join()
            updater.drain()
    return {}


def train(strategy, loop, steps, epochs, **arguments):
    model, optimizer = helpers.make(strategy, **arguments)
    recorder = helpers.Recorder(optimizer, model)
    trainers = {
        "fit": train_by_fit,
        "custom": train_by_loop,
        "strategy_run": train_by_strategy_run,
    }
    output, said = io.StringIO(), logging.StreamHandler(io.StringIO())
    logging.getLogger("absl").addHandler(said)
    with contextlib.redirect_stdout(output):
        result = trainers[loop](strategy, model, optimizer, steps, epochs)
    logging.getLogger("absl").removeHandler(said)
    return {
        **result,
        "output": output.getvalue(),
        "said": said.stream.getvalue(),
        "total": optimizer.total_num_replicas,
        "weights": recorder.finish(),
        "stats": optimizer.stats(),
        "iterations": helpers.iterations_of(optimizer),
    }


def main():
    num_parts, trainings = map(json.loads, sys.argv[1:])
    strategy = helpers.make_strategy(num_parts)
    programs.report([train(strategy, **training) for training in trainings])


if __name__ == "__main__":
    main()
