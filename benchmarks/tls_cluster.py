"""The cost of TLS: a cluster trains embedding tables with `--tls` and without.

A chief, workers and 2 parameter servers, each in a network namespace of its own on this
machine, are started by `tf-syncrep task`. They train 26 tables in a
`DistributedEmbedding`. Both clusters train by turns. A sample is the time in which the
cluster computes one gradient for each worker. The benchmark needs root, `ip`, `openssl`
and stunnel, and is left out elsewhere.
"""

from __future__ import annotations

import contextlib
import functools
import os
import shutil
import tempfile
from collections.abc import Sequence

import certificates
import network_namespaces
import numpy as np
from harness import replicas
from harness.benchmark import (
    Axis,
    Benchmark,
    Measurement,
    Point,
    Verdict,
    at_most,
)

PLAIN, TLS = "without", "with --tls"
_CONTENDER = "DistributedEmbedding"
_CONTENDERS = {
    _CONTENDER: {
        "tables": "distributed",
        "sync": False,
        "inner": "AdamAsync",
        "steps": 1,
    }
}
_MODEL = {"tables": 26, "width": 16, "examples": 512, "ids": "zipf"}
_PROGRAMS = ("ip", "openssl", "stunnel")
_PORTS = {PLAIN: 2222, TLS: 2223}
_REHEARSED_STEPS = 2
_PROBED_STEPS = 3
_SECS_PER_TURN = 1.0


def measure(point: Point, rounds: int) -> Sequence[Measurement]:
    """Lets both train in turns."""
    missing = [program for program in _PROGRAMS if shutil.which(program) is None]
    if missing or os.geteuid() != 0:
        print(f"Left out: it takes root and {', '.join(missing or _PROGRAMS)}.")
        return []
    model = {**_MODEL, "rows": point["rows"]}
    workers = [f"worker-{i}" for i in range(point["workers"])]
    names = ["chief", *workers, "ps-0", "ps-1"]
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        files = certificates.make(folder, "task")
        made = stack.enter_context(network_namespaces.namespaces(len(names)))
        namespaces = dict(zip(names, made, strict=True))
        clusters = {
            name: stack.enter_context(
                replicas.start_in_namespaces(
                    namespaces, port, options, _CONTENDERS, model
                )
            )
            for name, port, options in (
                (PLAIN, _PORTS[PLAIN], []),
                (TLS, _PORTS[TLS], ["--tls", ",".join(map(str, files))]),
            )
        }
        trained = []
        for cluster in clusters.values():
            cluster.chief("open", _CONTENDER)
            trained.append(cluster.chief("rehearse", _CONTENDER, _REHEARSED_STEPS))
        np.testing.assert_allclose(*trained, atol=1e-4)
        runs = {
            name: functools.partial(cluster.chief, "run", _CONTENDER)
            for name, cluster in clusters.items()
        }
        probed = {
            name: run(_PROBED_STEPS) / _PROBED_STEPS for name, run in runs.items()
        }
        samples, counts = replicas.take_turns(runs, probed, rounds, _SECS_PER_TURN)
        for name, cluster in clusters.items():
            steps = _REHEARSED_STEPS + len(workers) * (_PROBED_STEPS + counts[name])
            assert cluster.chief("updates", _CONTENDER) == steps
    return [Measurement(name, point, "s", samples[name]) for name in clusters]


def judge(measurements: Sequence[Measurement]) -> Sequence[Verdict]:
    """Compares the figures with the target: TLS costs a fifth of the steps at most."""
    return at_most(measurements, TLS, PLAIN, 1.25)


BENCHMARK = Benchmark(
    title="Tasks that talk through TLS",
    axes={
        "rows": Axis([100_000], quick=[1000]),
        "workers": Axis([2], quick=[1]),
    },
    measure=measure,
    judge=judge,
)
