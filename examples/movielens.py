"""Recommenders on MovieLens-100K, in one process and by parameter servers.

Three models, each with the score that papers give for it:

- `neumf`: NeuMF (He et al., 2017): which film comes next, by HR@10 and NDCG@10;
- `mf`: matrix factorisation with biases (Koren et al., 2009): how many stars, by RMSE;
- `dcn`: DCN V2 (Wang et al., 2021) on all features: four stars or more, by AUC.

Their tables are those of `tfs.keras.DistributedEmbedding`, trained by
`tfs.keras.AdamAsync`. The same batches are trained on in four ways:

    python examples/movielens.py --model mf
    tf-syncrep launch --workers 2 --ps 2 examples/movielens.py --training async
    tf-syncrep launch --workers 2 --ps 2 examples/movielens.py --training sync
    tf-syncrep launch --workers 3 --ps 2 examples/movielens.py --training backup

With `--growing` the tables are not told how many users and films there are: they are
`tfs.keras.Dynamic`, and an id gets its row when an example names it first.

The data, 100,000 ratings, is for research and may not be redistributed. It is fetched
by pip once; without a network, `--data` names a folder that has it. Workers get their
shares of it from a `tfs.data.WorkQueue`, and `tfs.keras.Checkpoint` writes what is
needed to go on after a crash.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import pathlib
import shutil
import time
from typing import Any

import movielens_files
import movielens_models
import movielens_tasks
import numpy as np
import ps_cluster
import tensorflow as tf
from matplotlib.figure import Figure

import tf_syncrep as tfs

ONE_PROCESS, ASYNC, SYNC, BACKUP = "one-process", "async", "sync", "backup"


class Scores(tf.keras.callbacks.Callback):
    """Tests the model every few epochs, and adds the scores to what Keras shows."""

    # Under ParameterServerStrategy, Keras 2 asks this of callbacks.
    _supports_tf_logs = True

    def __init__(self, task: movielens_tasks.Task, every: int):
        super().__init__()
        self.epochs: list[int] = []  # after how many epochs it was tested
        self.found: list[dict[str, float]] = []  # the scores then
        self.losses: list[float] = []  # of each epoch
        self.seconds = 0.0  # of training, without the tests
        self._task, self._every = task, every
        self._begin = 0.0
        self._predict = tf.function(
            lambda columns: self.model(task.features(columns), training=False),
            reduce_retracing=True,
        )

    def on_epoch_begin(self, epoch: int, logs: dict | None = None):
        """Starts the clock."""
        self._begin = time.monotonic()

    def on_epoch_end(self, epoch: int, logs: dict):
        """Stops the clock, and tests."""
        self.seconds += time.monotonic() - self._begin
        self.losses.append(float(logs["loss"]))
        if (epoch + 1) % self._every == 0 or epoch + 1 == self.params["epochs"]:
            self.epochs.append(epoch + 1)
            self.found.append(self.test())
            logs.update(self.found[-1])

    def test(self) -> dict[str, float]:
        """Predicts what is tested; returns the scores."""
        batches = tf.data.Dataset.from_tensor_slices(self._task.tested)
        outputs = [self._predict(columns).numpy() for columns in batches.batch(8192)]
        return self._task.score(np.concatenate(outputs)[:, 0])


@dataclasses.dataclass(frozen=True)
class Cluster:
    """The processes that train."""

    strategy: Any
    workers: int  # 0 if one process trains
    quorum: int  # how many gradients make an update; 0 if each gradient is one


def connect(training: str, backup_workers: int) -> Cluster:
    """Connects to the cluster that TF_CONFIG describes, unless one process trains."""
    if training == ONE_PROCESS:
        return Cluster(tf.distribute.get_strategy(), 0, 0)
    workers_needed = 1 + backup_workers if training == BACKUP else 1
    strategy, workers = ps_cluster.connect(
        f"tf-syncrep launch --workers {2 + (training == BACKUP)} --ps 2 "
        f"examples/movielens.py --training {training}"
    )
    if workers < workers_needed:
        raise SystemExit(
            "--backup-workers must be below the number of workers, "
            f"{workers}. Received: {backup_workers}"
        )
    quorum = {ASYNC: 0, SYNC: workers, BACKUP: workers - backup_workers}[training]
    return Cluster(strategy, workers, quorum)


def train(
    task: movielens_tasks.Task,
    settings: movielens_models.Settings,
    cluster: Cluster,
    test_every: int,
    output: pathlib.Path,
) -> tuple[Scores, Any]:
    """Trains; returns the scores, of every few epochs, and the optimizer.

    Logs, and checkpoints while it trains, are in `output`.
    """
    # The gradients of an update share its examples.
    batch_size = max(1, settings.batch_size // max(1, cluster.quorum))
    with cluster.strategy.scope():
        tf.keras.utils.set_random_seed(settings.seed)
        model = task.make_model()
        optimizer = tfs.keras.AdamAsync(settings.learning_rate)
        if cluster.quorum:
            optimizer = tfs.keras.SyncReplicas(
                optimizer, cluster.quorum, cluster.workers
            )
        model.compile(
            optimizer,
            loss=task.loss,
            # One trip to a worker trains so many batches.
            steps_per_execution=8 if cluster.workers else 1,
        )
        # Shares are numbered through all epochs. There is one epoch more than is
        # trained on, and the queue repeats, since `fit` counts steps: workers that come
        # to the end of a queue wait for items that others still read.
        shares = task.examples.shares_per_epoch()
        queue = tfs.data.WorkQueue((settings.epochs + 1) * shares, num_epochs=None)

    def dataset_fn(_: tf.distribute.InputContext | None) -> tf.data.Dataset:
        """Makes the dataset of one worker, of the shares that it gets."""
        batches = task.examples.batches(queue.dataset(), batch_size)
        return batches.map(
            lambda columns, labels: (task.features(columns), labels)
        ).prefetch(2)

    def learning_rate(epoch: int) -> float:
        """Returns a schedule of half a cosine, from the setting to nothing."""
        share = epoch / settings.epochs
        return settings.learning_rate * (1 + math.cos(math.pi * share)) / 2

    found = Scores(task, test_every)
    callbacks: list = [found, tf.keras.callbacks.LearningRateScheduler(learning_rate)]
    # With another seed, or other films left out, a model is tested on what this one
    # sees, so it must not go on from these weights.
    checkpoints = output / f"checkpoints-{settings.left_out}-{settings.seed}"
    if cluster.workers:
        # A task that is started again goes on where the last checkpoint was written.
        callbacks.append(
            tfs.keras.Checkpoint(
                checkpoints, every_secs=60, work_queues={"shares": queue}
            )
        )
    if cluster.quorum:
        log_dir = str(output / "logs" / time.strftime("%Y%m%d-%H%M%S"))
        callbacks.append(
            tfs.keras.SyncReport(log_dir=log_dir, every_n_updates=20, verbose=0)
        )
    tfs.keras.fit(
        model,
        dataset_fn if cluster.workers else dataset_fn(None),
        epochs=settings.epochs,
        steps_per_epoch=task.examples.batches_per_epoch(batch_size),
        callbacks=callbacks,
    )
    # After a training has ended, the next one begins anew.
    shutil.rmtree(checkpoints, ignore_errors=True)
    return found, optimizer


def summarise(
    options: argparse.Namespace, epochs: int, task: movielens_tasks.Task, runs: list
) -> dict[str, Any]:
    """Returns the results of the trainings, ready for JSON."""
    return {
        "model": options.model,
        "training": options.training,
        "growing": options.growing,
        "epochs": epochs,
        "seeds": [options.seed + run for run in range(len(runs))],
        "seconds": [found.seconds for found, _ in runs],
        "scores": {
            name: [found.found[-1][name] for found, _ in runs] for name in task.baseline
        },
        "baseline": task.baseline_name,
        "baseline_scores": {
            name: [baseline[name] for _, baseline in runs] for name in task.baseline
        },
    }


def way(summary: dict[str, Any]) -> str:
    """Returns the way of training in words."""
    return summary["training"] + ", growing tables" * summary["growing"]


def print_summary(summary: dict[str, Any]) -> None:
    """Prints the scores, the mean of several runs and their standard deviation."""
    seeds = len(summary["seeds"])
    print(
        f"\n{summary['model']}, {way(summary)}, after {summary['epochs']} epochs"
        + (f", mean of {seeds} runs and standard deviation:" if seeds > 1 else ":")
    )
    for name, values in summary["scores"].items():
        spread = f" +- {np.std(values, ddof=1):.4f}" if seeds > 1 else ""
        other = np.mean(summary["baseline_scores"][name])
        mean = np.mean(values)
        print(f"  {name} {mean:.4f}{spread}  ({summary['baseline']}: {other:.4f})")
    seconds = np.mean(summary["seconds"])
    print(f"Trained for {seconds:.0f} s{' each' * (seeds > 1)}, tests not counted.")


def plot(runs: list, summary: dict[str, Any], path: pathlib.Path) -> None:
    """Draws losses and scores over the epochs as a PNG."""
    figure = Figure(figsize=(8, 5), layout="constrained")
    score_axes, loss_axes = figure.subplots(2, sharex=True, height_ratios=[3, 2])
    name = next(iter(summary["scores"]))
    for found, _ in runs:
        values = [scores[name] for scores in found.found]
        score_axes.plot(found.epochs, values, "o-", color="tab:blue", alpha=0.7)
        # These are not all epochs if a training went on from a checkpoint.
        last = found.epochs[-1]
        epochs = range(last - len(found.losses) + 1, last + 1)
        loss_axes.plot(epochs, found.losses, color="tab:orange", alpha=0.7)
    score_axes.axhline(
        float(np.mean(summary["baseline_scores"][name])),
        color="0.5",
        linestyle="--",
        label=summary["baseline"],
    )
    score_axes.margins(y=0.15)
    score_axes.set_ylabel(f"{name} of what was left out")
    mean = np.mean(summary["scores"][name])
    score_axes.set_title(
        f"{summary['model']} on MovieLens-100K, {way(summary)}: {name} {mean:.3f}",
        loc="left",
    )
    score_axes.legend(frameon=False)
    loss_axes.set_ylabel("loss in training")
    loss_axes.set_xlabel("epochs")
    for axes in (score_axes, loss_axes):
        axes.grid(alpha=0.3)
        axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=150)


def parse_options() -> argparse.Namespace:
    """Reads the command line."""
    parser = argparse.ArgumentParser(
        description="Trains recommenders on MovieLens-100K."
    )
    add, positive = parser.add_argument, ps_cluster.positive
    add("--model", choices=list(movielens_models.SETTINGS), default="neumf")
    add(
        "--training",
        choices=[ONE_PROCESS, ASYNC, SYNC, BACKUP],
        default=ONE_PROCESS,
        help="the last three on a cluster; backup: synchronously, some may be late",
    )
    add("--backup-workers", type=positive, default=1, help="those that may be late")
    add("--data", type=pathlib.Path, help="a folder that has MovieLens-100K already")
    add("--epochs", type=positive, help="how often to see all ratings")
    add("--batch-size", type=positive, help="examples of an update")
    add("--learning-rate", type=float, help="at the beginning")
    add(
        "--left-out",
        choices=[movielens_models.LAST, movielens_models.ANY],
        help="by neumf: each user's last film, or any one",
    )
    add("--growing", action="store_true", help="tables grow with the ids that come")
    add("--test-every", type=positive, default=5, metavar="EPOCHS")
    add("--seed", type=int, default=0, help="also chooses what is tested on")
    add("--runs", type=positive, default=1, help="trainings, with seeds from that on")
    add("--output", type=pathlib.Path, default="build/movielens")
    return parser.parse_args()


def main() -> None:
    """Trains, prints the scores, and writes them with a picture."""
    options = parse_options()
    make_task = movielens_tasks.TASKS[options.model]
    given = {
        name: getattr(options, name)
        for name in ("epochs", "batch_size", "learning_rate", "left_out", "growing")
        if getattr(options, name) is not None
    }
    settings = dataclasses.replace(movielens_models.SETTINGS[options.model], **given)
    # This comes before anything is fetched, since there may be no cluster.
    cluster = connect(options.training, options.backup_workers)
    folder = options.data or movielens_files.fetch(options.output / "data")
    data = movielens_files.read(folder)
    name = f"{options.model}-{options.training}" + "-growing" * options.growing
    output = options.output / name
    output.mkdir(parents=True, exist_ok=True)
    runs = []
    for seed in range(options.seed, options.seed + options.runs):
        settings = dataclasses.replace(settings, seed=seed)
        task = make_task(data, settings)
        found, optimizer = train(task, settings, cluster, options.test_every, output)
        runs.append((found, task.baseline))
        if cluster.quorum:
            ps_cluster.print_gate(optimizer.stats())
    summary = summarise(options, settings.epochs, task, runs)
    print_summary(summary)
    (output / "scores.json").write_text(json.dumps(summary, indent=2) + "\n")
    plot(runs, summary, output / "scores.png")
    print(f"Wrote {output / 'scores.json'} and {output / 'scores.png'}.")
    if cluster.quorum:
        print(f"For a picture of the workers: tf-syncrep report {output / 'logs'}")


if __name__ == "__main__":
    main()
