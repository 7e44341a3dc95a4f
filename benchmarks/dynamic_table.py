"""Tables that grow, on one thread, beside tables of fixed size.

A part has 1M rows, all of which have a key, in no order. This is timed:

- 65,536 distinct keys are found and their rows read, by `table_find`; and as many rows
  of a fixed table are read by `embedding_gather`, which is told where they are;
- 4,096 keys are looked up in training and AdamAsync moves their rows: `table_find`,
  `table_gradient`, the update; and the same by `embedding_gather`;
- what a worker does before: the distinct keys of 26 features of 4,096 ids each are
  found, by `table_requests`; and what a server does after: gradients of 65,536 rows are
  given to the rows that keys still have, by `table_gradient`;
- 100 keys in each of 26 small tables of a part are found and read;
- a maintenance that evicts 1% of the rows, and frees those that the one before has
  evicted, which is the longest time that an update can wait for it.

Before that, initial vectors are compared with the expected ones, exactly, and vectors
that AdamAsync has moved with those of the fixed table. Width 0 is the index alone,
without TensorFlow: dynamic_table_bench.cc gives rows to ten times as many keys, finds
them, looks for keys that are not there, and makes the index anew; it fails if a row is
wrong.

Results of TFRA's tables, which did the first two, are kept beside them.
"""

from __future__ import annotations

import functools
import statistics
import subprocess
import time
from collections.abc import Sequence

import numpy as np
import tensorflow as tf
from harness import adam, native
from harness.benchmark import (
    Axis,
    Benchmark,
    Measurement,
    Point,
    Verdict,
)
from harness.timing import Contender, race

import tf_syncrep as tfs
from tf_syncrep.python.ops import table_ops

SOURCES = (
    "benchmarks/dynamic_table_bench.cc",
    *map(str, sorted(native.ROOT.glob("tf_syncrep/cc/lib/table/*.cc"))),
    *(
        f"tf_syncrep/cc/lib/{name}.cc"
        for name in (
            "rows/row_order",
            "sharder",
            "zero_pages",
        )
    ),
)
BATCHES = 8
FOUND, TRAINED = 65_536, 4_096
FEATURES, SMALL = 26, 100
EVICTED_AT_ONCE = 100  # of a table's rows, one

FIND = "keys found and read"
GATHER = "rows of a fixed table read"
TRAIN = "keys found, read and moved"
TRAIN_FIXED = "rows of a fixed table read and moved"
REQUEST = "keys of 26 features requested"
GIVE = "gradients given to rows of keys"
FIND_FEW = "keys of 26 small tables found and read"
MAINTAIN = "maintenance"
ADD, HIT, MISS = "a key added", "a key found", "a key not found"
LONGEST = "the longest call that adds 4,096 keys"
BUILD = "a row of an index that is made anew"


class Fixed:
    """A plain table, its slots, and AdamAsync."""

    def __init__(self, rows: int, width: int):
        self.vectors, self.m, self.v = (
            tf.Variable(table_ops.table_zeros([rows, width], tf.float32))
            for _ in range(3)
        )
        self._powers = [tf.Variable(tf.constant(x)) for x in (adam.BETA1, adam.BETA2)]
        rates = (adam.LEARNING_RATE, adam.BETA1, adam.BETA2, adam.EPSILON)
        self._rates = [tf.constant(x) for x in rates]

    def read(self, rows: tf.Tensor) -> tf.Tensor:
        """The vectors of rows."""
        return tfs.ops.embedding_gather(
            self.vectors.handle, rows, shape=self.vectors.shape, dtype=tf.float32
        )

    def apply(self, gradient: tf.Tensor, rows: tf.Tensor) -> None:
        """Moves rows."""
        state = (self.vectors, self.m, self.v, *self._powers)
        handles = [variable.handle for variable in state]
        tfs.ops.resource_sparse_apply_adam_async(*handles, *self._rates, gradient, rows)

    def train(self, rows: tf.Tensor, gradient: tf.Tensor) -> None:
        """A step that reads and moves rows."""
        self.read(rows)
        self.apply(gradient, rows)


class Growing(Fixed):
    """A part of one table, or of several equally large ones."""

    def __init__(self, rows: int, width: int, num_tables: int = 1):
        super().__init__(rows * num_tables, width)
        index = table_ops.table_index(
            [
                table_ops.IndexedTable(f"items {i}", i * rows, rows)
                for i in range(num_tables)
            ],
            counted=True,
        )
        rows *= num_tables
        self.part = table_ops.Part(
            self.vectors,
            tf.Variable(table_ops.table_zeros([rows], tf.int64)),
            tf.Variable(table_ops.table_zeros([rows, 2], tf.int32)),
            index,
        )

    def fill(self, keys: np.ndarray, last_uses: np.ndarray) -> np.ndarray:
        """Gives keys rows."""
        counts = np.ones(len(keys), np.int32)
        return table_ops.table_import(self.part, 0, keys, last_uses, counts).numpy()

    def find(self, request: tf.Tensor, insert: bool) -> tuple[tf.Tensor, tf.Tensor]:
        """The rows of keys, and their vectors."""
        return table_ops.table_find(self.part, request, insert=insert)

    def give(
        self, request: tf.Tensor, rows: tf.Tensor, gradient: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """The gradient, and the rows that keys still have."""
        _, keys, uses, index = self.part
        inputs = index, keys.handle, uses.handle, request, rows, gradient
        return table_ops.table_gradient(*inputs, dtype=tf.float32)

    def train(self, request: tf.Tensor, gradient: tf.Tensor) -> None:
        """A step that looks keys up and moves their rows."""
        rows, _ = self.find(request, insert=True)
        self.apply(*self.give(request, rows, gradient))

    def maintain(self, step: int, unused_for: int) -> tf.Tensor:
        """Evicts rows that were not used for so long."""
        return table_ops.table_maintain(
            self.part,
            step,
            slots=[(self.m, 0.0), (self.v, 0.0)],
            evict=[None],
            unused_for=[unused_for],
        )


def vectors_of(numbers: np.ndarray, width: int) -> np.ndarray:
    """The vectors of keys, by their numbers."""
    return np.sin(numbers[:, None] + np.arange(width)).astype(np.float32)


def requests_of(keys: np.ndarray) -> tf.Tensor:
    """The request of a worker."""
    return tf.constant(np.append(len(keys), keys))


def measure_maintenance(keys: np.ndarray, point: Point, calls: int) -> Measurement:
    """Times maintenances, each of which evicts one in a hundred rows."""
    table = Growing(point["keys"], point["width"])
    at_once = len(keys) // EVICTED_AT_ONCE
    table.fill(keys, np.arange(len(keys), dtype=np.int32) // at_once)
    samples, cpu = [], []
    unused_for = EVICTED_AT_ONCE
    for i in range(1 + min(calls, EVICTED_AT_ONCE // 2)):
        begin_cpu, begin = time.process_time(), time.perf_counter()
        evicted = table.maintain(unused_for + 1 + i, unused_for)
        samples.append(time.perf_counter() - begin)
        cpu.append(time.process_time() - begin_cpu)
        assert evicted.numpy() == at_once
    # The first one had nothing to free.
    return Measurement(
        MAINTAIN, point, "s", samples[1:], cpu=statistics.median(cpu[1:])
    )


def measure_ops(point: Point, rounds: int) -> Sequence[Measurement]:
    """Times lookups, steps and maintenance."""
    tf.config.threading.set_intra_op_parallelism_threads(1)
    num, width = point["keys"], point["width"]
    draw = np.random.default_rng(7)
    keys = draw.permutation(np.unique(draw.integers(-(1 << 62), 1 << 62, num + 1000)))
    keys = keys[:num]
    growing, fixed = Growing(num, width), Fixed(num, width)
    rows = growing.fill(keys, np.zeros(num, np.int32))
    values = np.empty([num, width], np.float32)
    values[rows] = vectors_of(np.arange(num), width)
    growing.vectors.assign(values)
    fixed.vectors.assign(vectors_of(np.arange(num), width))

    def batches(size):
        made = []
        for _ in range(BATCHES):
            picked = draw.choice(num, min(size, num // 2), replace=False)
            picked = picked[np.argsort(keys[picked])]
            gradient = draw.normal(size=[len(picked), width]).astype(np.float32)
            asked = tf.constant(np.sort(picked).astype(np.int32))
            made.append(
                (picked, requests_of(keys[picked]), asked, tf.constant(gradient))
            )
        return made

    found, trained = batches(FOUND), batches(TRAINED)
    for picked, request, _, gradient in trained:
        np.testing.assert_array_equal(
            growing.find(request, insert=False)[1], fixed.read(tf.constant(picked))
        )
        growing.train(request, gradient)
        order = np.argsort(picked)
        fixed.apply(
            tf.gather(gradient, order), tf.constant(picked[order].astype(np.int32))
        )
    for picked, request, _, _ in [*trained, *found]:
        np.testing.assert_array_equal(
            growing.find(request, insert=False)[1], fixed.read(tf.constant(picked))
        )

    def find(i: int) -> None:
        growing.find(found[i % BATCHES][1], insert=True)

    def gather(i: int) -> None:
        fixed.read(found[i % BATCHES][2])

    given = [(x[1], growing.find(x[1], insert=False)[0], x[3]) for x in found]
    for request, rows, gradient in given:
        values, kept = growing.give(request, rows, gradient)
        np.testing.assert_array_equal(values, gradient)
        np.testing.assert_array_equal(kept, rows)
    ids = draw.choice(keys, [FEATURES, min(TRAINED, num)])
    request = functools.partial(
        table_ops.table_requests,
        list(map(tf.constant, ids)),
        table_of_feature=range(FEATURES),
        num_tables=FEATURES,
        num_shards=1,
    )
    (requested,), places = request()
    distinct = requested.numpy()[FEATURES:]
    np.testing.assert_array_equal(distinct[np.stack(places)], ids)
    few = Growing(SMALL, width, FEATURES)
    of_few = tf.constant(np.append([SMALL] * FEATURES, keys[: SMALL * FEATURES]))
    assert set(few.find(of_few, insert=True)[0].numpy()) == set(range(SMALL * FEATURES))

    contenders = [
        Contender(FIND, find, list),
        Contender(GATHER, gather, list),
        Contender(REQUEST, lambda i: request(), list),
        Contender(GIVE, lambda i: growing.give(*given[i % BATCHES]), list),
        Contender(FIND_FEW, lambda i: few.find(of_few, insert=True), list),
        Contender(TRAIN, lambda i: growing.train(*trained[i % BATCHES][1::2]), list),
        Contender(TRAIN_FIXED, lambda i: fixed.train(*trained[i % BATCHES][2:]), list),
    ]
    for contender in contenders:
        contender.step(0)
    measured = race(contenders, point, rounds, with_cpu=True)
    return [
        *measured,
        measure_maintenance(keys, point, 2 * rounds),
    ]


def measure_index(point: Point, rounds: int) -> Sequence[Measurement]:
    """Times the index alone, in processor time."""
    program, _ = native.program(*SOURCES)
    result = subprocess.run(
        [str(program), str(10 * point["keys"]), str(max(1, rounds // 4))],
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    )
    lines = [tuple(map(float, line.split())) for line in result.stdout.splitlines()]
    added, hits, misses, longest, built, _ = zip(*lines, strict=True)
    return [
        Measurement(name, point, "s", samples, cpu=statistics.median(samples))
        for name, samples in (
            (ADD, added),
            (HIT, hits),
            (MISS, misses),
            (LONGEST, longest),
            (BUILD, built),
        )
    ]


def measure(point: Point, rounds: int) -> Sequence[Measurement]:
    """Times the index alone, or all ops at a width."""
    return (measure_ops if point["width"] else measure_index)(point, rounds)


def judge(measurements: Sequence[Measurement]) -> Sequence[Verdict]:
    """Compares the figures with the targets, in processor time."""
    reaches = [
        (ADD, 0, 1 / 4e6),
        (HIT, 0, 1 / 15e6),
        (MISS, 0, 1 / 20e6),
        (LONGEST, 0, 0.02),
        (BUILD, 0, 60e-9),
        (FIND, 16, 0.005),
        (FIND, 64, 0.01),
        (REQUEST, 16, FEATURES * TRAINED * 15e-9),
        (GIVE, 16, FOUND * 10e-9),
        (FIND_FEW, 16, FEATURES * SMALL * 70e-9),
        (TRAIN, 16, 0.0015),
        (TRAIN, 64, 0.0025),
        (MAINTAIN, 16, 0.02),
        (MAINTAIN, 64, 0.02),
    ]
    return [
        Verdict(
            claim=f"{name}: at most {reach:.2g} s of processor time (width {width})",
            value=m.cpu,
            met=m.cpu <= reach,
        )
        for name, width, reach in reaches
        for m in measurements
        if m.contender == name and m.point["width"] == width and m.cpu is not None
    ]


BENCHMARK = Benchmark(
    title="Tables that grow: lookups, steps and maintenance on one thread",
    axes={
        "keys": Axis([1_000_000], quick=[20_000]),
        "width": Axis([0, 16, 64], quick=[0, 16]),
    },
    measure=measure,
    judge=judge,
)
