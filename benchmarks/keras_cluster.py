"""Synchronous training in TensorFlow 2 by a whole cluster, beside the alternatives.

All tasks are processes on this machine. Each contender has a cluster of its own; the
clusters are comparable, and only one of them trains at a time.

- `tfs.keras.SyncReplicas` and, without it, plain asynchronous training, in one
  `ParameterServerStrategy`: 1 chief, the workers, the parameter servers.
- `tf.distribute.MultiWorkerMirroredStrategy` (each worker has all weights and an
  optimizer of its own, and gradients are exchanged by rings of workers), with the Adam
  of Keras; and with AdamAsync, which shows how much of the difference is the
  optimizer's.
- `tfs.train.SyncReplicasOptimizer` in v1 sessions.

The step is described in harness/keras_trainer.py. An update of a synchronous contender
is the mean of one gradient of each worker. A sample is the time in which the cluster
computes as many gradients as there are workers, measured over a turn of about 0.75 s.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Sequence

import numpy as np
from harness import replicas
from harness.benchmark import (
    Axis,
    Benchmark,
    Measurement,
    Point,
    Verdict,
    at_most,
    times_faster,
)

SYNC = "tfs.keras.SyncReplicas, AdamAsync"
ASYNCHRONOUS = "asynchronous, AdamAsync"
MIRRORED = "MultiWorkerMirrored, Keras Adam"
MIRRORED_ADAM_ASYNC = "MultiWorkerMirrored, AdamAsync"
V1 = "tfs.train.SyncReplicasOptimizer, AdamAsync"
_NAMES = {
    "sync": SYNC,
    "asynchronous": ASYNCHRONOUS,
    "mirrored": MIRRORED,
    "mirrored_adam_async": MIRRORED_ADAM_ASYNC,
    "v1": V1,
}
_COORDINATED = {
    "sync": {"sync": True, "inner": "AdamAsync"},
    "asynchronous": {"sync": False, "inner": "AdamAsync"},
}
_MIRRORED = {
    "mirrored": {"sync": False, "inner": "Adam"},
    "mirrored_adam_async": {"sync": False, "inner": "AdamAsync"},
}

DENSE = "10M parameters in dense layers"
SMALL_DENSE = "25k parameters in dense layers"
EMBEDDING = "embedding of 500k x 64, 4096 ids"
SMALL_EMBEDDING = "embedding of 1000 x 64, 32 ids"
# Six layers each; an example of the embedding is 32 ids.
_MODELS: dict[str, dict[str, int]] = {
    DENSE: {"rows": 0, "ids": 0, "width": 1290, "examples": 32},
    SMALL_DENSE: {"rows": 0, "ids": 0, "width": 64, "examples": 32},
    EMBEDDING: {"rows": 500_000, "ids": 4096, "examples": 128},
    SMALL_EMBEDDING: {"rows": 1000, "ids": 32, "examples": 1},
}
_REHEARSED_STEPS = 2
_PROBED_STEPS = 2
# A turn lasts so long times their number: 5 turns of 0.75 s, or quickly 2 of 0.3 s.
_SECS_PER_TURN = 0.15


def check(cluster: replicas.Replicas, name: str) -> int:
    """Lets a contender make its first updates and compares them with one process.

    Raises RuntimeError: the weights differ.
    """
    cluster.all("rehearse", name, _REHEARSED_STEPS)
    if name == "v1":
        updates, weights = cluster.chief("read", name)
        alone = cluster.chief("train_alone", name, _REHEARSED_STEPS)
        for actual, wanted in zip(weights, alone, strict=True):
            np.testing.assert_allclose(actual, wanted, rtol=1e-4, atol=1e-6)
        return updates
    # Asynchronous updates may come in any order.
    if name != "asynchronous":
        cluster.chief("check", name, _REHEARSED_STEPS)
    return cluster.chief("updates", name)


def measure(point: Point, rounds: int) -> Sequence[Measurement]:
    """Runs all contenders in turns, each on the cluster that it needs."""
    model, workers, servers = _MODELS[point["model"]], point["workers"], point["PS"]
    v1 = {
        "sync": "ours",
        "inner": "AdamAsync",
        "quorum": workers,
        "total": workers,
        # Each worker's steps are as many as the updates.
        "strict": True,
    }
    turns = max(2, rounds // 3)
    with contextlib.ExitStack() as stack:
        clusters = {}
        for contenders, num_ps, program in (
            (_COORDINATED, servers, "keras_trainer.py"),
            (_MIRRORED, 0, "keras_trainer.py"),
            ({"v1": v1}, servers, "replica.py"),
        ):
            cluster = stack.enter_context(
                replicas.start(
                    workers,
                    contenders,
                    model,
                    num_ps=num_ps,
                    program=program,
                    coordinated=contenders is _COORDINATED,
                )
            )
            clusters |= dict.fromkeys(contenders, cluster)
        per_step = {name: workers if name == "asynchronous" else 1 for name in clusters}
        probed = {}
        for name, cluster in clusters.items():
            cluster.open(name) if name == "v1" else cluster.all("open", name)
            updates = check(cluster, name)
            expected = per_step[name] * _REHEARSED_STEPS
            assert updates == expected, f"{name}: {updates} updates, not {expected}"
            # The first step of a function traces it.
            _run(cluster, name, 1)
            probed[name] = _run(cluster, name, _PROBED_STEPS) / _PROBED_STEPS
        samples, made = replicas.take_turns(
            {
                name: functools.partial(_run, cluster, name)
                for name, cluster in clusters.items()
            },
            probed,
            turns,
            turns * _SECS_PER_TURN,
        )
        for name, cluster in clusters.items():
            updates = cluster.chief("updates", name)
            steps = _REHEARSED_STEPS + 1 + _PROBED_STEPS + made[name]
            expected = per_step[name] * steps
            assert updates == expected, f"{name}: {updates} updates, not {expected}"
    return [
        Measurement(
            _NAMES[name],
            point,
            "s",
            samples[name],
            counts={"examples": workers * model["examples"], "updates": per_step[name]},
        )
        for name in clusters
    ]


def _run(cluster: replicas.Replicas, name: str, steps: int) -> float:
    more = (0, 0.0) if name == "v1" else ()
    return cluster.all("run", name, steps, *more)


def judge(measurements: Sequence[Measurement]) -> Sequence[Verdict]:
    """Compares the figures with the targets."""
    embedding = [
        m for m in measurements if m.point["model"] in (EMBEDDING, SMALL_EMBEDDING)
    ]
    return [
        *at_most(measurements, SYNC, ASYNCHRONOUS, 1 / 0.85),
        *times_faster(embedding, SYNC, MIRRORED, 5),
    ]


BENCHMARK = Benchmark(
    title="Synchronous training in TensorFlow 2, by workers and parameter servers",
    axes={
        "model": Axis([DENSE, EMBEDDING], quick=[SMALL_DENSE, SMALL_EMBEDDING]),
        "workers": Axis([2, 4], quick=[2]),
        "PS": Axis([1, 2], quick=[2]),
    },
    measure=measure,
    judge=judge,
)
