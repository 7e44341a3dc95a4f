"""Clusters of real processes that train by SyncReplicas for Keras, and their checks."""

import contextlib
import json
import os
import pathlib
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import clusters
import keras_sync_replicas as helpers
import network_namespaces
import numpy as np
import programs
import sync_accounting
import tensorflow as tf
import waiting
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


def train(
    folder,
    loop,
    quorum,
    total,
    steps,
    epochs=1,
    further=(),
    compute_secs=(0.01,) * 8,
    backup=None,
    seams=True,
    **options,
):
    """Trains by a loop, "fit" or "custom", with `steps` steps in each epoch.

    After the first training there is one for each of `further`: a dict of its "quorum",
    "total", "steps" and "flush_last". `seams`: whether workers can be stopped at points
    of a step, which makes the trace of many steps long. The other arguments are options
    of SyncReplicas.
    Writes a line "update N" after each update, and "epoch N" after each epoch. A file
    "end" in `folder` ends the training with the epoch. A file "tell" is replaced by a
    file "told" with the gate's counters; see `worker_seams` for the other files.
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
            points = worker_seams.Seams(str(folder), compute_secs)
            with points.in_place() if seams else contextlib.nullcontext():
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
    # The interpreter's normal end is avoided: TensorFlow's coordinator would wait there
    # for workers that were killed.
    os._exit(0)


def train_with(arguments):
    """What the coordinator does."""
    train(**arguments)


class KerasSyncCluster:
    """Two parameter servers, workers, and a coordinator that the test starts."""

    def __init__(
        self,
        folder: pathlib.Path,
        num_workers: int,
        namespace: network_namespaces.Namespace | None = None,
        **arguments: Any,
    ):
        """Describes the cluster; its servers start when the context is entered.

        `namespace`: the network of the last worker, if it is not this machine's.
        """
        env, namespaces = programs.environment(), {}
        if namespace is not None:
            namespaces[f"worker-{num_workers - 1}"] = namespace
            # gRPC would ask a proxy for these addresses.
            hosts = f"{namespace.inside},{namespace.outside}"
            env |= {"no_proxy": hosts, "NO_PROXY": hosts}
        self.tasks = clusters.Cluster(
            num_workers, num_ps=2, env=env, namespaces=namespaces
        )
        self.folder = folder
        self._arguments = {
            "folder": str(folder),
            "loop": "fit",
            "quorum": num_workers,
            "total": num_workers,
            "steps": 4 * num_workers,
            "epochs": 10_000,
            **arguments,
        }

    def __enter__(self) -> "KerasSyncCluster":
        self.tasks.__enter__()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.tasks.__exit__(*exc_info)

    def start(self) -> None:
        """Starts the coordinator."""
        self._epochs_before = self.num_epochs()
        command = programs.call_command(train_with, self._arguments)
        self.tasks.start("chief", command)

    def num_epochs(self) -> int:
        """How many epochs have ended."""
        lines = self.tasks.output("chief").splitlines()
        return sum(line.startswith("epoch ") for line in lines)

    def wait_until_at(self, point: str, worker: int, past: str | None = None) -> None:
        """Makes a worker stop at a point, and waits until it is there."""
        name, text = f"worker-{worker}", f"at {point}"
        earlier = self.tasks.output(name).count(text)
        worker_seams.stop_at(self.folder, point, worker)
        if past is not None:
            worker_seams.go_on(self.folder, past, worker)
        self.tasks.wait_for_output(name, text, occurrence=earlier + 1)

    def kill_at(self, point: str, worker: int) -> None:
        """Kills a worker at a point."""
        self.wait_until_at(point, worker)
        self.tasks.kill(f"worker-{worker}")
        worker_seams.go_on(self.folder, point, worker)

    def wait_for_updates(self, more: int = 3) -> None:
        """Waits for a number of further updates of the coordinator."""
        updates = self.tasks.output("chief").count("update ")
        self.tasks.wait_for_output("chief", "update ", updates + more)

    def stats(self) -> dict[str, Any]:
        """The present counters of the gate."""
        told = self.folder / "told"
        (self.folder / "tell").touch()
        waiting.until(told.exists, lambda: self.tasks.output("chief"))
        stats = json.loads(told.read_text())
        told.unlink()
        return stats

    def wait_for_stats(self, holds: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        """Waits until a condition of the gate's counters holds; returns them."""

        def those_that_hold() -> dict[str, Any]:
            return stats if holds(stats := self.stats()) else {}

        return waiting.until(those_that_hold, lambda: json.dumps(self.stats()))

    def end(self) -> None:
        """Makes the training end with the epoch."""
        (self.folder / "end").touch()

    def result(self, exact: bool = True) -> dict[str, Any]:
        """The coordinator's final report.

        `exact`: whether only workers failed, in a single training: then the result must
        be exact, and no step may be lost with a worker.
        """
        assert self.tasks.wait("chief") == 0, self.tasks.output("chief")
        result = json.loads((self.folder / "result").read_text())
        if exact:
            assert result["errors"] == [None]
            assert_exact(result)
            epochs = self.num_epochs() - self._epochs_before
            fates = ("admitted", "late", "stale", "rejected")
            done = sum(result["stats"][fate] for fate in fates)
            assert self._arguments["steps"] * epochs <= done
        return result


def assert_exact(result: dict[str, Any], counts: list[int] | None = None) -> None:
    """Checks what holds of any training that ended in an orderly way, and replays it.

    `counts`: how many gradients each update had; by default the quorum, and the rest
    for the last one.
    """
    stats, updates = result["stats"], len(result["weights"]) - 1
    sync_accounting.assert_identities(stats)
    assert stats["in_flight"] == 0
    assert stats["updates"] == updates
    assert stats["step"] == result["iterations"]
    if counts is None:
        counts = [stats["quorum"]] * updates
        counts[-1] -= stats["quorum"] * updates - stats["applied"]
        assert 0 < counts[-1] <= stats["quorum"]
    assert stats["applied"] == sum(counts)
    replay(result["weights"], counts)


def replay(weights: list[list[Any]], counts: list[int]) -> None:
    """Makes the same updates in this process, without SyncReplicas, and compares.

    Each update must be the mean of its gradients, with the weights before it.
    """
    assert len(weights) == len(counts) + 1
    inputs, targets = helpers.data()
    inputs = inputs.reshape(helpers.NUM_BATCHES, helpers.BATCH_SIZE, -1)
    targets = targets.reshape(helpers.NUM_BATCHES, helpers.BATCH_SIZE, -1)
    model, optimizer = helpers.make_model(), helpers.OPTIMIZERS["sgd"]()
    variables = model.trainable_variables
    rate = float(np.asarray(optimizer.learning_rate))
    (table,) = (i for i, x in enumerate(variables) if x.shape[0] == helpers.NUM_BATCHES)
    for variable, value in zip(variables, weights[0], strict=True):
        variable.assign(np.array(value))
    for before, after, count in zip(weights, weights[1:], counts, strict=False):
        # SGD moves a row of the table by its rate times its mean gradient.
        change = np.array(before[table]) - np.array(after[table])
        times = change[:, 0] / rate * count
        np.testing.assert_allclose(times, np.round(times), atol=1e-3)
        times = np.round(times).astype(int)
        assert times.min() >= 0
        assert times.sum() == count
        batches = np.repeat(np.arange(helpers.NUM_BATCHES), times)
        # All of them are of one size.
        x, y = np.concatenate(inputs[batches]), np.concatenate(targets[batches])
        with tf.GradientTape() as tape:
            value = helpers.loss(y, model(tf.constant(x)))
        gradients = map(
            tf.convert_to_tensor, tape.gradient(value, model.trainable_variables)
        )
        optimizer.apply_gradients(zip(gradients, variables, strict=True))
        for variable, value in zip(variables, after, strict=True):
            np.testing.assert_allclose(
                np.asarray(variable), np.array(value), rtol=1e-4, atol=1e-5
            )
    assert helpers.iterations_of(optimizer) == len(counts)
