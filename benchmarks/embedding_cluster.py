"""Training of many embedding tables by a cluster, beside the alternatives.

A model has 26 tables and two dense layers behind them; a batch has 512 examples with
one id for each table. Workers and 2 parameter servers are processes on this machine.
These contenders have clusters of their own, of which one trains at a time:

- `tfs.keras.DistributedEmbedding`: all tables are in one slab, which is split among the
  servers. It is asynchronous, and with `tfs.keras.SyncReplicas`, each by single steps,
  and by 16 at once. There are also tables that grow, in both ways, by single steps, and
  the same tables looked up by TensorFlow's own ops (unique, dynamic_partition, gather,
  dynamic_stitch).
- `tfs.keras.Embedding`, a layer for each table: asynchronous, and synchronous.
- No tables: the dense layers on numbers made of the ids, asynchronous.
- Keras' own Embedding and Adam, in tf_keras: Keras 3's would read whole tables.
- One process with `DistributedEmbedding` and no cluster, by single steps and by 16 at
  once, and the same with RowwiseAdagrad for the tables. Results of PyTorch's
  EmbeddingBag and SparseAdam, and of fbgemm's tables and row-wise Adagrad, are kept
  beside them.

A sample is the time in which the cluster computes one gradient for each worker,
measured over a turn. Before that, tables are compared with those that one process
trained.
"""

from __future__ import annotations

import contextlib
import functools
import pathlib
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
    describe,
    times_faster,
)

DISTRIBUTED = "DistributedEmbedding"
DISTRIBUTED_SYNC = "DistributedEmbedding, SyncReplicas"
GROWING = "DistributedEmbedding, tables that grow"
GROWING_SYNC = "DistributedEmbedding, tables that grow, SyncReplicas"
STOCK_OPS = "the same tables, stock ops"
NO_TABLES = "no tables, all else"
LAYERS = "a layer for each table"
LAYERS_SYNC = "a layer for each table, SyncReplicas"
KERAS = "tf_keras, Keras' Embedding and Adam"
ALONE = "DistributedEmbedding, one process"
AT_ONCE = 16
DISTRIBUTED_AT_ONCE = f"{DISTRIBUTED}, {AT_ONCE} steps at once"
SYNC_AT_ONCE = f"{DISTRIBUTED_SYNC}, {AT_ONCE} steps at once"
ALONE_AT_ONCE = f"{ALONE}, {AT_ONCE} steps at once"
ROWWISE = f"{DISTRIBUTED}, RowwiseAdagrad, one process"
ROWWISE_AT_ONCE = f"{ROWWISE}, {AT_ONCE} steps at once"


def _contender(tables, sync=False, inner="AdamAsync", steps=1):
    return {"tables": tables, "sync": sync, "inner": inner, "steps": steps}


_CLUSTER = {
    DISTRIBUTED: _contender("distributed"),
    DISTRIBUTED_SYNC: _contender("distributed", sync=True),
    DISTRIBUTED_AT_ONCE: _contender("distributed", steps=AT_ONCE),
    SYNC_AT_ONCE: _contender("distributed", sync=True, steps=AT_ONCE),
    GROWING: _contender("growing"),
    GROWING_SYNC: _contender("growing", sync=True),
    STOCK_OPS: _contender("stock_ops"),
    NO_TABLES: _contender("none"),
    LAYERS: _contender("layers"),
    LAYERS_SYNC: _contender("layers", sync=True),
}
_LEGACY = {KERAS: _contender("keras_layers", inner="Adam")}
_ALONE = {
    ALONE: _contender("distributed"),
    ALONE_AT_ONCE: _contender("distributed", steps=AT_ONCE),
    ROWWISE: _contender("rowwise_adagrad", inner="TableOptimizers"),
    ROWWISE_AT_ONCE: _contender(
        "rowwise_adagrad", inner="TableOptimizers", steps=AT_ONCE
    ),
}
_SYNCHRONOUS = (DISTRIBUTED_SYNC, SYNC_AT_ONCE, GROWING_SYNC, LAYERS_SYNC)
_STEPS = {
    name: contender["steps"]
    for contenders in (_CLUSTER, _LEGACY, _ALONE)
    for name, contender in contenders.items()
}
_MODEL = {"tables": 26, "rows": 100_000, "width": 16, "examples": 512}
_SERVERS = 2
_REHEARSED_STEPS = 2
_TRACED_STEPS = 1
_PROBED_STEPS = 3
_SECS_PER_TURN = 0.2
_WATCHED = 20
_LOOPBACK = pathlib.Path("/sys/class/net/lo/statistics/tx_bytes")


def measure(point: Point, rounds: int) -> Sequence[Measurement]:
    """Runs all in turns."""
    workers = point["workers"]
    model = {**_MODEL, "rows": point["rows"], "ids": point["ids"]}
    turns = max(2, rounds // 3)
    with contextlib.ExitStack() as stack:
        clusters = {}
        for contenders, num_workers, num_ps, env in (
            (_CLUSTER, workers, _SERVERS, {}),
            (_LEGACY, workers, _SERVERS, {"TF_USE_LEGACY_KERAS": "1"}),
            (_ALONE, 1, 0, {}),
        ):
            cluster = stack.enter_context(
                replicas.start(
                    num_workers,
                    contenders,
                    model,
                    num_ps=num_ps,
                    program="embedding_trainer.py",
                    coordinated=num_ps > 0,
                    env=env,
                )
            )
            clusters |= dict.fromkeys(contenders, cluster)
        trained = {}
        for name, cluster in clusters.items():
            cluster.chief("open", name)
            trained[name] = cluster.chief("rehearse", name, _REHEARSED_STEPS)
        # The Adam of Keras is another formula for rows that a batch does not name.
        for name in {*_CLUSTER, ALONE_AT_ONCE} - {NO_TABLES}:
            np.testing.assert_allclose(
                trained[name], trained[ALONE], atol=1e-4, err_msg=name
            )
        np.testing.assert_allclose(
            trained[ROWWISE_AT_ONCE], trained[ROWWISE], atol=1e-4
        )
        assert np.max(np.abs(np.asarray(trained[ALONE]) - 1)) > 1e-3
        runs = {
            name: functools.partial(_run, cluster, name)
            for name, cluster in clusters.items()
        }
        for run in runs.values():
            run(_TRACED_STEPS)
        probed = {
            name: run(_PROBED_STEPS) / _PROBED_STEPS for name, run in runs.items()
        }
        samples, made = replicas.take_turns(runs, probed, turns, turns * _SECS_PER_TURN)
        sent = {}
        for name, cluster in clusters.items():
            is_update_of_all = name in (*_SYNCHRONOUS, *_ALONE)
            steps = (_TRACED_STEPS + _PROBED_STEPS + made[name]) * _STEPS[name]
            expected = _REHEARSED_STEPS + steps * (1 if is_update_of_all else workers)
            updates = cluster.chief("updates", name)
            # Keras' own counter is read, added to and assigned, so that steps get lost.
            assert updates == expected or name == KERAS, (name, updates, expected)
            if name not in _ALONE:
                kibibytes = _loopback_kibibytes(functools.partial(runs[name], _WATCHED))
                sent[name] = {
                    "messages": cluster.chief("messages", name),
                    "KiB": kibibytes / (_WATCHED * _STEPS[name] * workers),
                }
        sizes = clusters[DISTRIBUTED].chief("bytes_on_servers", DISTRIBUTED)
        assert max(sizes) <= 1.02 * min(sizes), sizes
    return [
        Measurement(
            name,
            point,
            "s",
            samples[name],
            counts={"examples": model["examples"] * (1 if name in _ALONE else workers)},
            sent=sent.get(name),
        )
        for name in clusters
    ]


def _run(cluster, name, calls) -> float:
    """Calls each worker so many times; returns the seconds for one step of a call."""
    steps = _STEPS[name]
    return cluster.chief("run", name, calls * steps) / steps


def _loopback_kibibytes(run) -> float:
    """The bytes that go through this machine's loopback device while `run` runs."""
    before = int(_LOOPBACK.read_text(encoding="ascii"))
    run()
    return (int(_LOOPBACK.read_text(encoding="ascii")) - before) / 1024


def judge(measurements: Sequence[Measurement]) -> Sequence[Verdict]:
    """Compares the figures with the targets."""
    # In the time of a sample one process makes one step, and each worker of a cluster
    # does.
    by_workers = {m.point["workers"] for m in measurements}
    verdicts = [
        *times_faster(measurements, DISTRIBUTED, LAYERS, 2.5),
        *times_faster(measurements, DISTRIBUTED_SYNC, LAYERS_SYNC, 3),
        *times_faster(measurements, DISTRIBUTED, KERAS, 10),
        *times_faster(measurements, DISTRIBUTED, STOCK_OPS, 1),
        *at_most(measurements, GROWING, DISTRIBUTED, 1 / 0.85),
        *at_most(measurements, GROWING_SYNC, DISTRIBUTED_SYNC, 1 / 0.85),
    ]
    for workers in sorted(by_workers):
        of_these = [m for m in measurements if m.point["workers"] == workers]
        verdicts += at_most(of_these, DISTRIBUTED, ALONE, workers / 0.75)
    by_point = {(m.contender, str(m.point)): m for m in measurements}
    for mine in measurements:
        if mine.contender == DISTRIBUTED:
            theirs = by_point[LAYERS, str(mine.point)]
            fewer = theirs.sent["KiB"] / mine.sent["KiB"]
            claim = f"{DISTRIBUTED} sends at most a third of the bytes of {LAYERS}"
            at = describe(mine.point)
            verdicts.append(Verdict(f"{claim} ({at})", fewer, fewer >= 3))
    return verdicts


BENCHMARK = Benchmark(
    title="Many embedding tables, by workers and 2 parameter servers",
    axes={
        "ids": Axis(["zipf", "uniform"], quick=["zipf"]),
        "rows": Axis([100_000], quick=[1000]),
        "workers": Axis([2, 4], quick=[2]),
    },
    measure=measure,
    judge=judge,
)
