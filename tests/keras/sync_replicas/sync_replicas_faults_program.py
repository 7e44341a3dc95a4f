"""Trains synchronously as the coordinator of a cluster whose tasks a test kills.

The argument is JSON: the arguments of `main` by name. Writes a line "update N" after
each update, and "epoch N" after each epoch. A file "end" in `folder` ends the training
with the epoch. A file "tell" is replaced by a file "told" with the gate's counters; see
`worker_seams` for the other files.
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
    """Reports the gate's counters whenever they are asked for, for ever."""
    asked, unready = folder / "tell", folder / "telling"
    while True:
        if asked.exists():
            asked.unlink()
            unready.write_text(json.dumps(optimizer.stats()))
            unready.rename(folder / "told")
        time.sleep(_POLL_SECS)


def train_by_fit(model, steps, epochs, epoch_ends, backup):
    class Progress(tf.keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            self.model.stop_training = epoch_ends(epoch)

    callbacks = [tfs.keras.SyncReport(), Progress()]
    if backup:
        callbacks.append(tf.keras.callbacks.BackupAndRestore(backup))
    tfs.keras.fit(
        model,
        helpers.dataset(),
        steps_per_epoch=steps,
        epochs=epochs,
        verbose=0,
        callbacks=callbacks,
    )


def train_by_loop(strategy, model, optimizer, steps, epochs, epoch_ends):
    loop = helpers.CustomLoop(strategy, model, optimizer)
    with optimizer.updater(strategy):
        for epoch in range(epochs):
            loop.make_steps(steps)
            if epoch_ends(epoch):
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
    backup=None,
    **options,
):
    """Trains by a loop, "fit" or "custom", with `steps` steps in each epoch.

    After the first training there is one for each of `further`: a dict of its "quorum",
    "total", "steps" and "flush_last". The other arguments are options of SyncReplicas.
    """
    folder = pathlib.Path(folder)
    strategy = helpers.make_strategy()
    model, optimizer, recorder = helpers.make(
        strategy,
        quorum,
        total,
        on_update=lambda step: print(f"update {step}", flush=True),
        **options,
    )
    threading.Thread(target=tell, args=(optimizer, folder), daemon=True).start()

    def epoch_ends(epoch):
        print(f"epoch {epoch}", flush=True)
        return (folder / "end").exists()

    result = {"errors": [], "trainings": []}
    for number, changes in enumerate([{}, *further]):
        if changes:
            optimizer.configure(changes["quorum"], changes["total"])
            optimizer.flush_last = changes["flush_last"]
            steps = changes["steps"]
        error = None
        try:
            with worker_seams.Seams(str(folder), compute_secs).in_place():
                if loop == "fit":
                    train_by_fit(model, steps, epochs, epoch_ends, backup)
                else:
                    train_by_loop(strategy, model, optimizer, steps, epochs, epoch_ends)
        except Exception as exception:
            error = f"{type(exception).__name__}: {exception}"
            print(f"raised {error}", flush=True)
        result["errors"].append(error)
        # Variables that were lost with a parameter server cannot be read.
        with contextlib.suppress(tf.errors.OpError):
            result |= recorder.result()
            names = ("stats", "iterations")
            result["trainings"].append({name: result[name] for name in names})
        # It is behind what was logged, which goes there, too.
        print(f"training {number} has ended", file=sys.stderr, flush=True)
    # Standard output would not do: TensorFlow's threads write of lost connections into
    # it.
    (folder / "result").write_text(json.dumps(result))


if __name__ == "__main__":
    main(**json.loads(sys.argv[1]))
    # The interpreter's normal end is avoided: TensorFlow's coordinator would wait there
    # for workers that were killed.
    os._exit(0)
