"""Trains synchronously as the coordinator of a cluster whose tasks a test kills.

One argument, JSON: those of `main` by name. Writes a line "update N" after each update,
and "epoch N" after each epoch. A file "end" in `folder` ends the training with the
epoch, and instead of a file "tell" there comes one "told" with the gate's counters; see
`worker_seams` for the others.
"""

import contextlib
import json
import os
import pathlib
import sys
import threading
import time

import keras_sync_replicas as helpers
import tensorflow as tf
import worker_seams

import tf_syncrep as tfs

_POLL_SECS = 0.02


def tell(optimizer, folder):
    """Tells the gate's counters whenever they are asked for, for ever."""
    asked, unready = pathlib.Path(folder, "tell"), pathlib.Path(folder, "telling")
    while True:
        if asked.exists():
            asked.unlink()
            unready.write_text(json.dumps(optimizer.stats()))
            unready.rename(unready.with_name("told"))
        time.sleep(_POLL_SECS)


class Progress(tf.keras.callbacks.Callback):
    """Tells how far training is, and ends it; changes the quorum where told to."""

    def __init__(self, optimizer, folder, configure):
        super().__init__()
        self._optimizer = optimizer
        self._end = pathlib.Path(folder, "end")
        self._configure = configure or {}

    def on_epoch_begin(self, epoch, logs=None):
        if str(epoch) in self._configure:
            self._optimizer.configure(*self._configure[str(epoch)])

    def on_epoch_end(self, epoch, logs=None):
        print(f"epoch {epoch}", flush=True)
        self.model.stop_training = self._end.exists()


def train_by_fit(model, optimizer, steps, epochs, folder, configure, backup):
    callbacks = [
        tfs.keras.SyncReport(),
        Progress(optimizer, folder, configure),
    ]
    if backup:
        callbacks.append(tf.keras.callbacks.BackupAndRestore(backup))
    tfs.keras.fit(
        model,
        helpers.dataset(seed=None),
        steps_per_epoch=steps,
        epochs=epochs,
        verbose=0,
        callbacks=callbacks,
    )


def train_by_loop(strategy, model, optimizer, steps, epochs, folder):
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
    iterator = iter(
        coordinator.create_per_worker_dataset(lambda _=None: helpers.dataset(seed=None))
    )
    train_step = helpers.train_step(model, optimizer)

    with optimizer.updater(strategy):
        for epoch in range(epochs):
            for _ in range(steps):
                coordinator.schedule(train_step, args=(iterator,))
            coordinator.join()
            print(f"epoch {epoch}", flush=True)
            if pathlib.Path(folder, "end").exists():
                break


def main(
    folder,
    loop,
    quorum,
    total,
    steps,
    epochs=1,
    further=(),
    compute_secs=(0.01,) * 8,
    configure=None,
    backup=None,
    **options,
):
    """Trains.

    Args:
        folder: for files that tell workers and coordinator what to do.
        loop: "fit" or "custom".
        quorum: gradients of an update.
        total: number of workers.
        steps: of an epoch.
        epochs: how many, if nothing ends them.
        further: for each training after the first a dict of what is other: "quorum",
            "total", "steps", "flush_last"; an empty one is the same again.
        compute_secs: how long each worker computes.
        configure: quorum and total to change to, by epoch.
        backup: where to back up to and to restore from.
        **options: of SyncReplicas.
    """
    strategy = tf.distribute.ParameterServerStrategy(
        tf.distribute.cluster_resolver.TFConfigClusterResolver()
    )
    with strategy.scope():
        model = helpers.make_model()
        optimizer = tfs.keras.SyncReplicas(
            helpers.OPTIMIZERS["sgd"](), quorum, total, **options
        )
        model.compile(optimizer, loss=helpers.loss)
        optimizer.build(model.trainable_variables)
    recorder = helpers.Recorder(
        optimizer, model, on_update=lambda step: print(f"update {step}", flush=True)
    )
    threading.Thread(target=tell, args=(optimizer, folder), daemon=True).start()
    result = {"errors": [], "trainings": []}
    for number, changes in enumerate([{}, *further]):
        if changes:
            optimizer.configure(changes["quorum"], changes["total"])
            optimizer.flush_last = changes["flush_last"]
            steps = changes["steps"]
        error = None
        try:
            with worker_seams.Seams(folder, compute_secs).in_place():
                if loop == "fit":
                    train_by_fit(
                        model, optimizer, steps, epochs, folder, configure, backup
                    )
                else:
                    train_by_loop(strategy, model, optimizer, steps, epochs, folder)
        except Exception as exception:
            error = f"{type(exception).__name__}: {exception}"
            print(f"raised {error}", flush=True)
            worker_seams.undo_failures(pathlib.Path(folder))
        result["errors"].append(error)
        # What was lost with a parameter server cannot be read.
        with contextlib.suppress(tf.errors.OpError):
            result |= {
                "stats": optimizer.stats(),
                "iterations": helpers.iterations_of(optimizer),
                "weights": recorder.finish(),
            }
            result["trainings"].append(
                {name: result[name] for name in ("stats", "iterations")}
            )
        print(f"training {number} has ended", flush=True)
    # Not as output, into which TensorFlow's threads write of lost connections.
    pathlib.Path(folder, "result").write_text(json.dumps(result))


if __name__ == "__main__":
    main(**json.loads(sys.argv[1]))
    # Not by the interpreter's end, at which TensorFlow's coordinator waits for workers
    # that were killed.
    os._exit(0)
