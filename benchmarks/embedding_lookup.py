"""What a worker does for a lookup in 26 tables: before its message, and after.

A slab of 26 tables of 100,000 x 16, in two parts; each feature has one id an example. A
worker finds the distinct rows of each part and, when it has them, gives each feature
its vectors. The rows themselves are there from the beginning. This is done by

- this package's `embedding_rows` and `embedding_combine`;
- TensorFlow's own ops: unique and dynamic_partition, dynamic_stitch and gather;
- two threads of plain C++ that only put the ids into a hash table, and copy for each id
  its row from where they are told that it is.

Before, all results are held to NumPy's, exactly.
"""

from __future__ import annotations

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
    times_faster,
)
from harness.timing import Contender, race

import tf_syncrep as tfs

OURS = "embedding_rows, embedding_combine"
STOCK = "TensorFlow's own ops"
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
    """Rows of each part, and what `give_by_ours` is to be told."""
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
    """Rows of each part, and what `give_by_stock` is to be told."""
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


def make_contender(
    name: str, find: Callable, give: Callable, point: Point, ids: np.ndarray
) -> tuple[Contender, np.ndarray]:
    """A contender of TensorFlow, and the vectors of the first batch."""
    config = tf.compat.v1.ConfigProto()
    # Otherwise what nobody reads, or is always the same, would not be computed.
    config.graph_options.rewrite_options.disable_meta_optimizer = True
    config.graph_options.optimizer_options.opt_level = -1
    runs = []
    for batch in ids:
        with tf.Graph().as_default() as graph:
            asked, found = find(list(map(tf.constant, batch)), point["rows"])
            looked_up = [tf.compat.v1.placeholder(tf.float32) for _ in asked]
            kept = [
                tf.compat.v1.Variable(x, validate_shape=False, use_resource=True)
                for x in looked_up
            ]
            values = [tf.ensure_shape(x.read_value(), [None, WIDTH]) for x in kept]
            with tf.control_dependencies(asked):
                vectors = give(values, found)
            done = tf.group(*[x.op for x in vectors])
            initialize = tf.compat.v1.global_variables_initializer()
        session = tf.compat.v1.Session(graph=graph, config=config)
        rows = session.run(asked)
        values = [vectors_of(part * PARTS + i) for i, part in enumerate(rows)]
        session.run(initialize, dict(zip(looked_up, values, strict=True)))
        if not runs:
            result = np.stack(session.run(vectors))
        runs.append(session.make_callable(done))
        runs[-1]()
    return Contender(name, lambda i: runs[i % BATCHES](), list), result


def make_floor(point: Point, ids: np.ndarray) -> tuple[Contender, np.ndarray]:
    """The plain loops, and their vectors of the first batch."""
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
    return Contender(FLOOR, step, list), out.array.copy()


def measure(point: Point, rounds: int) -> Sequence[Measurement]:
    """Times all at one point."""
    ids = draw_ids(point)
    made = [
        make_contender(OURS, find_by_ours, give_by_ours, point, ids),
        make_contender(STOCK, find_by_stock, give_by_stock, point, ids),
        make_floor(point, ids),
    ]
    first_rows = np.arange(point["tables"])[:, None] * point["rows"]
    for contender, vectors in made:
        np.testing.assert_array_equal(
            vectors, vectors_of(ids[0] + first_rows), err_msg=contender.name
        )
    bytes_moved = 2 * ids[0].size * WIDTH * 4
    return race([contender for contender, _ in made], point, rounds, bytes_moved)


def judge(measurements: Sequence[Measurement]) -> Sequence[Verdict]:
    """Holds the figures to the targets."""
    return [
        *at_most(measurements, OURS, FLOOR, 1.5),
        *times_faster(measurements, OURS, STOCK, 1),
    ]


BENCHMARK = Benchmark(
    title="A worker's part of lookups in 26 tables of rows of 16 floats",
    axes={
        "tables": Axis([26]),
        "rows": Axis([100_000], quick=[1000]),
        "examples": Axis([512, 8192], quick=[64]),
        "ids": Axis(["zipf", "uniform"]),
    },
    measure=measure,
    judge=judge,
)
