"""Publications of a training that goes on, and a follower that answers meanwhile.

Two workers train every hundredth row of a table of rows of 64 floats, with AdamAsync
and SyncReplicas, on two parameter servers, and publish each second. A follower in
another process is asked for predictions of 64 examples, one after the other. Each
update is a sample of the time until it is served. Before and behind that, without
publications, predictions and updates are timed as well; once training is stopped,
predictions of all rows are compared with the trainer's, to the bit.

Lookups of 512 ids in a table that grows, as it is published, are timed beside those in
an exported one, which are compared as well.
"""

from __future__ import annotations

import concurrent.futures
import pathlib
import re
import tempfile
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from harness import replicas
from harness.benchmark import Axis, Benchmark, Measurement, Point, Verdict

from tf_syncrep.python.embedding.layout import Table
from tf_syncrep.python.embedding.lookup import Feature
from tf_syncrep.python.embedding.served_tables import (
    PublishedGrowingTable,
    ServedTable,
)
from tf_syncrep.serving import Follower

WIDTH, TABLES = 64, 4
SERVED = "an update until it is served"
ASKED, ASKED_WHILE = "a prediction", "a prediction while versions come"
STEP, STEP_WHILE = "a step", "a step while publications are written"
FOUND, FOUND_EXPORTED = "512 lookups, as published", "512 lookups, as exported"
_EVERY_SECS = 1.0
_DEADLINE_SECS = 120.0
_MOST_SAMPLES = 201


def measure(point: Point, rounds: int) -> Sequence[Measurement]:
    """Trains, publishes, follows and asks; then looks up."""
    secs = 20.0 if rounds > 2 else 2.0
    with tempfile.TemporaryDirectory() as folder:
        samples, counts = _published(point["rows"], secs, folder)
    samples |= _lookups(point["keys"], 200 * rounds)
    return [
        Measurement(name, point, "s", _thinned(found), counts=counts.get(name))
        for name, found in samples.items()
    ]


def _published(
    rows: int, secs: float, folder: str
) -> tuple[dict[str, list[float]], dict[str, dict[str, float]]]:
    model = {
        "rows": rows,
        "width": WIDTH,
        "tables": TABLES,
        "examples": 512,
        "ids": "uniform",
        "max_bytes_per_sec": None,
        "published": folder,
    }
    samples: dict[str, list[float]] = {ASKED: [], STEP: []}
    arrived: dict[int, tuple[float, int]] = {}
    waits: list[float] = []

    def note(follower: Follower) -> None:
        arrived[follower.version] = (time.perf_counter(), follower.updates)
        waits.append(follower.numbers()["apply_secs"])

    with replicas.start(
        2, {}, model, program="publish_trainer.py", coordinated=True
    ) as cluster:
        tell = cluster.chief
        tell("publish")
        memory = _resident_bytes()
        with Follower(folder, on_version=note) as follower:
            follower.wait(secs=_DEADLINE_SECS)
            with follower.reading() as served:
                inputs = served.signatures["serving_default"].structured_input_signature
            (name,) = inputs[1]
            request = _requests(rows)

            def ask() -> None:
                follower(**{name: request})

            tell("start")

            def undisturbed() -> None:
                gaps, asked = _meanwhile(lambda: tell("gaps", secs), ask)
                samples[STEP].append(_mean(gaps))
                samples[ASKED].extend(asked)

            undisturbed()
            found, samples[ASKED_WHILE] = _meanwhile(
                lambda: tell("publish_for", secs, _EVERY_SECS), ask
            )
            follower.wait(found["last"], _DEADLINE_SECS)
            undisturbed()
            tell("stop")
            memory = _resident_bytes() - memory
            everything = np.arange(0, rows - rows % TABLES).reshape(-1, TABLES)
            version, wanted = tell("publish_and_predict", everything.tolist())
            assert follower.wait(version, _DEADLINE_SECS) == version
            (predicted,) = follower(**{name: everything}).values()
            np.testing.assert_array_equal(predicted.numpy(), np.float32(wanted))
            assert follower.numbers()["fulls"] == 1
            assert not follower.numbers()["failures"]
    times = found["times"]
    made = list(times.values())
    samples[SERVED] = _latencies(times, list(arrived.values()))
    samples[STEP_WHILE] = [(made[-1] - made[0]) / (len(made) - 1)]
    # The first has the rows of the training before.
    sizes = np.array(found["sizes"][1:] or found["sizes"])
    counts = {
        "versions": len(sizes),
        "MB of a delta": sizes[:, 0].mean() / 1e6,
        "rows of a delta": sizes[:, 1].mean(),
        "ms for which requests wait": 1e3 * float(np.median(waits[1:])),
        "MB of the follower": memory / 1e6,
        "MB of the table": rows * WIDTH * 4 / 1e6,
    }
    return samples, {SERVED: counts}


def _requests(rows: int) -> tf.Tensor:
    ids = np.random.default_rng(0).integers(0, rows, (64, TABLES))
    return tf.constant(ids)


def _meanwhile(
    function: Callable[[], Any], ask: Callable[[], None]
) -> tuple[Any, list[float]]:
    """Calls a function in a thread; returns what it does, and how long asking took."""
    ask()
    asked = []
    with concurrent.futures.ThreadPoolExecutor(1) as threads:
        call = threads.submit(function)
        while not call.done():
            begin = time.perf_counter()
            ask()
            asked.append(time.perf_counter() - begin)
    return call.result(), asked


def _mean(gaps: Sequence[float]) -> float:
    """Divides the time by its updates; the last one is under way."""
    return sum(gaps) / (len(gaps) - 0.5)


def _latencies(
    times: dict[int, float], arrived: Sequence[tuple[float, int]]
) -> list[float]:
    """Returns how long after each update a version was served that has it."""
    return [
        min(when for when, updates in arrived if updates >= update) - made
        for update, made in times.items()
    ]


def _lookups(num_keys: int, rounds: int) -> dict[str, list[float]]:
    """Looks up in tables of the same keys and vectors, in turns."""
    draw = np.random.default_rng(0)
    keys = np.unique(draw.integers(0, 2**62, num_keys))
    vectors = draw.random((len(keys), WIDTH), np.float32)
    exported = ServedTable(keys, vectors)
    published = PublishedGrowingTable([WIDTH], tf.float32, 1)
    for variable in published.arrays.values():
        # As in a SavedModel, which has one row at least.
        variable.assign(tf.zeros([1, *variable.shape[1:]], variable.dtype))
    published.apply(
        {
            "places": tf.range(len(keys), dtype=tf.int64),
            "vectors": tf.constant(vectors),
            "keys": tf.constant(keys),
            "tombstones": tf.zeros([0], tf.int64),
        }
    )
    del vectors
    samples: dict[str, list[float]] = {}
    layout = Table("items", num_keys, WIDTH, grows=True)
    contenders = {
        name: tf.function(
            lambda ids, table=table: table.look_up(Feature("ids", layout, ids)),
            input_signature=[tf.TensorSpec([None], tf.int64)],
            autograph=False,
        )
        for name, table in ((FOUND, published), (FOUND_EXPORTED, exported))
    }
    for number in range(rounds):
        known = draw.choice(keys, 480)
        ids = tf.constant(np.append(known, draw.integers(0, 2**62, 32)))
        found = []
        for name, look_up in contenders.items():
            begin = time.perf_counter()
            found.append(look_up(ids).numpy())
            seconds = time.perf_counter() - begin
            if number:  # The first one is traced.
                samples.setdefault(name, []).append(seconds)
        np.testing.assert_array_equal(*found)
    return samples


def _thinned(found: Sequence[float]) -> list[float]:
    """Returns the samples, or as many of their quantiles as a file should have."""
    if len(found) <= _MOST_SAMPLES:
        return list(found)
    return np.quantile(found, np.linspace(0, 1, _MOST_SAMPLES)).tolist()


def _resident_bytes() -> int:
    status = pathlib.Path("/proc/self/status").read_text()
    return 1024 * int(re.search(r"VmRSS:\s+(\d+) kB", status)[1])


def judge(measurements: Sequence[Measurement]) -> Sequence[Verdict]:
    """Compares the figures with the targets."""
    found = {m.contender: m for m in measurements}
    counts = found[SERVED].counts or {}

    def p99(name: str) -> float:
        return float(np.quantile(found[name].samples, 0.99))

    def at_most(claim: str, value: float, reach: float) -> Verdict:
        return Verdict(f"{claim}, at most {reach:g}", value, value <= reach)

    row_bytes = 4 * WIDTH / 1e6
    steps = found[STEP].median / found[STEP_WHILE].median
    return [
        at_most("seconds until an update is served", found[SERVED].median, 3),
        at_most("seconds until an update is served, p99", p99(SERVED), 5),
        at_most(
            "predictions' p99 while versions come", p99(ASKED_WHILE) / p99(ASKED), 1.5
        ),
        at_most(
            "a delta's bytes against those of its rows",
            counts["MB of a delta"] / (counts["rows of a delta"] * row_bytes),
            1.1,
        ),
        Verdict("steps a second meanwhile, at least 0.9", steps, steps >= 0.9),
        at_most(
            "the follower's memory against the table's",
            counts["MB of the follower"] / counts["MB of the table"],
            1.2,
        ),
        at_most(
            "lookups against exported ones",
            found[FOUND].median / found[FOUND_EXPORTED].median,
            1,
        ),
        at_most(
            "lookups against exported ones, p99", p99(FOUND) / p99(FOUND_EXPORTED), 1
        ),
    ]


BENCHMARK = Benchmark(
    title="Publications while training and predictions go on",
    axes={
        "rows": Axis([1_000_000], quick=[10_000]),
        "keys": Axis([5_000_000], quick=[10_000]),
    },
    measure=measure,
    judge=judge,
)
