"""What a worker does for a lookup in 26 tables: before its message, and after.

A slab has 26 tables of 100,000 x 16, in two parts; each feature has one id an example.
A worker finds the distinct rows of each part and, when it has them, gives each feature
its vectors; in training it then sums, row by row, the gradients of the vectors. The
rows and gradients themselves are made at the beginning. This is done by

- this package's `embedding_rows` and `embedding_combine`, and the gradient of that;
- the same with rows and gradients of rows that are half;
- TensorFlow's own ops: unique and dynamic_partition, dynamic_stitch and gather, and the
  gradients of these;
- two threads of plain C++ that only put the ids into a hash table, and copy for each id
  its row from a place that they are told, beside two threads of TensorFlow.

TensorFlow has one, two and sixteen threads for an op, however many cores there are.
Before that, all results are compared with NumPy's, exactly.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence

import numpy as np
import tensorflow as tf
from harness import native
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
from harness.timing import Contender, race

import tf_syncrep as tfs

# Otherwise all sessions of a process share the threads of the first one.
os.environ["TF_OVERRIDE_GLOBAL_THREADPOOL"] = "1"

OURS = "embedding_rows, embedding_combine"
HALF = "the same, of half rows"
STOCK = "TensorFlow's own ops"
AND_GRADIENT = ", and the gradient"
FLOOR = "two threads that hash and copy"
WIDTH = 16
PARTS = 2
BATCHES = 8


def draw_ids(point: Point) -> np.ndarray:
    """Ids of shape [batches, tables, examples]."""
    random = np.random.default_rng(1)
    rows = point["rows"]
    shape = (BATCHES, point["tables"], point["examples"])
    if point["ids"] == "uniform":
        return random.integers(rows, size=shape, dtype=np.int32)
    return ((random.zipf(1.2, shape) - 1) % rows).astype(np.int32)


def vectors_of(rows: np.ndarray) -> np.ndarray:
    """The values of some rows of all tables, which differ."""
    return np.sin(rows[..., None] + np.arange(WIDTH)).astype(np.float32)


def find_by_ours(ids, rows):
    """Rows of each part, and the arguments of `give_by_ours`."""
    tables = len(ids)
    return tfs.ops.embedding_rows(
        ids,
        num_rows=tables * rows,
        num_shards=PARTS,
        first_rows=[i * rows for i in range(tables)],
        vocabulary_sizes=[rows] * tables,
        features=[f"feature {i}" for i in range(tables)],
        tables=[f"table {i}" for i in range(tables)],
    )


def give_by_ours(vectors, places):
    """The vectors of each feature."""
    return tfs.ops.embedding_combine(vectors, places, [None] * len(places))


def find_by_stock(ids, rows):
    """Rows of each part, and the arguments of `give_by_stock`."""
    all_rows = tf.concat([x + i * rows for i, x in enumerate(ids)], axis=0)
    different, places = tf.unique(all_rows)
    owners = different % PARTS
    numbers = tf.dynamic_partition(tf.range(tf.size(different)), owners, PARTS)
    asked = tf.dynamic_partition(different // PARTS, owners, PARTS)
    return asked, [numbers, places, len(ids)]


def give_by_stock(vectors, found):
    """The vectors of each feature."""
    numbers, places, tables = found
    return tf.split(tf.gather(tf.dynamic_stitch(numbers, vectors), places), tables)


def gradients_of(point: Point) -> np.ndarray:
    """Gradients of a batch's vectors: small numbers, whose sums are exact."""
    shape = (point["tables"], point["examples"], WIDTH)
    return np.random.default_rng(2).integers(-8, 8, shape).astype(np.float32)


def sums_of(point: Point, ids: np.ndarray, rows: Sequence[np.ndarray]) -> np.ndarray:
    """The gradients of a batch, summed by row: of these rows of each part."""
    first_rows = np.arange(point["tables"])[:, None] * point["rows"]
    distinct, places = np.unique(ids + first_rows, return_inverse=True)
    sums = np.zeros([len(distinct), WIDTH], np.float32)
    np.add.at(sums, places.reshape(ids.shape), gradients_of(point))
    asked = np.concatenate([part * PARTS + i for i, part in enumerate(rows)])
    return sums[np.searchsorted(distinct, asked)]


def make_contenders(
    name: str,
    find: Callable,
    give: Callable,
    point: Point,
    ids: np.ndarray,
    dtype: tf.DType = tf.float32,
) -> list[tuple[Contender, np.ndarray, np.ndarray]]:
    """Contenders of TensorFlow: a lookup, and a lookup and its gradient.

    Each comes with its result for the first batch, and the right one. `dtype` is that
    of rows.
    """
    config = tf.compat.v1.ConfigProto(intra_op_parallelism_threads=point["threads"])
    # Otherwise TensorFlow would not compute results that nobody reads or that never
    # change.
    config.graph_options.rewrite_options.disable_meta_optimizer = True
    config.graph_options.optimizer_options.opt_level = -1
    lookups, trainings, checked = [], [], []

    def rounded(values: np.ndarray) -> np.ndarray:
        return values.astype(dtype.as_numpy_dtype).astype(np.float32)

    for batch in ids:
        with tf.Graph().as_default() as graph:
            asked, found = find(list(map(tf.constant, batch)), point["rows"])
            looked_up = [tf.compat.v1.placeholder(dtype) for _ in asked]
            of_vectors = tf.compat.v1.Variable(gradients_of(point), use_resource=True)
            kept = [
                tf.compat.v1.Variable(x, validate_shape=False, use_resource=True)
                for x in looked_up
            ]
            values = [tf.ensure_shape(x.read_value(), [None, WIDTH]) for x in kept]
            with tf.control_dependencies(asked):
                vectors = give(values, found)
            sums = tf.gradients(vectors, values, tf.unstack(of_vectors.read_value()))
            initialize = tf.compat.v1.global_variables_initializer()
            lookup = tf.group(*[x.op for x in vectors])
            training = tf.group(lookup, *[x.op for x in sums])
        session = tf.compat.v1.Session(graph=graph, config=config)
        rows = session.run(asked)
        values = [vectors_of(part * PARTS + i) for i, part in enumerate(rows)]
        session.run(initialize, dict(zip(looked_up, values, strict=True)))
        if not checked:
            first_rows = np.arange(point["tables"])[:, None] * point["rows"]
            checked = [
                (
                    np.stack(session.run(vectors)),
                    rounded(vectors_of(batch + first_rows)),
                ),
                (
                    np.concatenate(session.run(sums)),
                    rounded(sums_of(point, batch, rows)),
                ),
            ]
        lookups.append(session.make_callable(lookup))
        trainings.append(session.make_callable(training))
        trainings[-1]()
    return [
        (Contender(name, lambda i: lookups[i % BATCHES](), list), *checked[0]),
        (
            Contender(name + AND_GRADIENT, lambda i: trainings[i % BATCHES](), list),
            *checked[1],
        ),
    ]


def make_floor(
    point: Point, ids: np.ndarray
) -> tuple[Contender, np.ndarray, np.ndarray]:
    """The plain loops, their result for the first batch, and the right one."""
    tables, examples = point["tables"], point["examples"]
    first_rows = np.arange(tables)[:, None] * point["rows"]
    batches = []
    for batch in ids:
        rows, places = np.unique(batch + first_rows, return_inverse=True)
        vectors = native.Memory((len(rows), WIDTH))
        vectors.array[:] = vectors_of(rows)
        batches.append((batch, places.astype(np.int32), vectors))
    out = native.Memory((tables, examples, WIDTH))
    num_buckets = 1 << (2 * examples - 1).bit_length()
    buckets = np.empty([tables, num_buckets], np.int32)

    def step(i: int) -> None:
        batch, places, vectors = batches[i % BATCHES]
        native.library().floor_lookup(
            *(batch.ctypes.data, places.ctypes.data, vectors.pointer),
            *(tables, examples, WIDTH),
            *(buckets.ctypes.data, num_buckets, out.pointer),
        )

    step(0)
    return (
        Contender(FLOOR, step, list),
        out.array.copy(),
        vectors_of(ids[0] + first_rows),
    )


def measure(point: Point, rounds: int) -> Sequence[Measurement]:
    """Times all at one point."""
    ids = draw_ids(point)
    made = [
        *make_contenders(OURS, find_by_ours, give_by_ours, point, ids),
        *make_contenders(HALF, find_by_ours, give_by_ours, point, ids, tf.half),
        *make_contenders(STOCK, find_by_stock, give_by_stock, point, ids),
    ]
    if point["threads"] == 2:
        made.append(make_floor(point, ids))
    for contender, result, expected in made:
        np.testing.assert_array_equal(result, expected, err_msg=contender.name)
    bytes_moved = 2 * ids[0].size * WIDTH * 4
    contenders = [contender for contender, _, _ in made]
    return race(contenders, point, rounds, bytes_moved, with_cpu=True)


def judge(measurements: Sequence[Measurement]) -> Sequence[Verdict]:
    """Compares the figures with the targets."""
    return [
        *at_most(measurements, OURS, FLOOR, 1.5),
        *times_faster(measurements, OURS, STOCK, 1),
        *times_faster(measurements, OURS + AND_GRADIENT, STOCK + AND_GRADIENT, 1),
        *_more_threads_than_cores(measurements),
    ]


def _more_threads_than_cores(measurements) -> Sequence[Verdict]:
    """Checks that sharing a lookup and its gradient among many costs nothing."""
    cpu: dict[str, dict[int, float]] = {}
    for m in measurements:
        if m.contender == OURS + AND_GRADIENT:
            of_point = cpu.setdefault(describe({**m.point, "threads": ""}), {})
            of_point[m.point["threads"]] = m.cpu
    return [
        Verdict(
            claim=(
                f"{OURS}{AND_GRADIENT}: within 1.2 times the CPU time of one thread "
                f"on 16 ({point})"
            ),
            value=of[16] / of[1],
            met=of[16] / of[1] <= 1.2,
        )
        for point, of in cpu.items()
        if {1, 16} <= of.keys()
    ]


BENCHMARK = Benchmark(
    title="A worker's part of lookups in 26 tables of rows of 16 floats",
    axes={
        "tables": Axis([26]),
        "rows": Axis([100_000], quick=[1000]),
        "examples": Axis([512, 8192], quick=[64]),
        "ids": Axis(["zipf", "uniform"]),
        "threads": Axis([1, 2, 16], quick=[2]),
    },
    measure=measure,
    judge=judge,
)
