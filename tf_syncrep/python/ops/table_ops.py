"""Tables that grow, as ops: any int64 is a key, and rows are given to those that come.

A table is parted among servers by the hashes of its keys. A part, which may hold
several tables, is three variables with equally many rows beside each other, `vectors`,
`keys` and `uses`, and an index, which finds a key's row. Count 0 in `uses` means that a
row is free, or rests if its last use is -1. The variables say it all: whenever one of
`keys` and `uses` was assigned, as by a restore, the index is made anew of them. Nothing
else than these ops may scatter into them.

A lookup of a batch is three kinds of ops. `table_requests` finds, where the batch is,
the different keys that are needed, part by part. `table_find` finds and reads their
rows, where the part is, and in training makes rows for new keys. `embedding_combine`
does the rest, as for tables of fixed size. What is sent to a part names each key once.

A key that has no row is a vector of zeros, and its gradient goes nowhere.
`table_maintain` takes rows away, between two updates: one that was evicted rests until
the next maintenance, so that no gradient that was under way reaches the key that gets
the row next.

**Initial vectors** depend on seed, table, key and element alone: Philox-4x32-10 (Salmon
et al., "Parallel random numbers: as easy as 1, 2, 3", 2011), computed in float64 and
rounded once. So they are the same on any number of servers, and in any order.

**Admission** counts keys without a row in a count-min sketch (Cormode and
Muthukrishnan, 2005) with conservative update, which is halved as it ages: a key may get
its row a little early. A lookup counts each key of its batch once.

**Errors.** `tf.errors.InvalidArgumentError` for what does not belong together;
`tf.errors.ResourceExhaustedError` where there is no memory. Where the text does not say
otherwise, nothing was written then. The Docs of the ops in `cc/ops` say what they do
and take: a function of this module that is not below is the op of its name. None stands
for no eviction, and for the dtype of the vectors.
"""

import struct
from collections.abc import Sequence
from typing import Any, NamedTuple, TypeAlias

import tensorflow as tf

from tf_syncrep.python.ops import op_library

__all__ = [
    "IndexedTable",
    "Part",
    "TableExport",
    "TableStats",
    "key_owner",
    "table_export",
    "table_find",
    "table_import",
    "table_index",
    "table_maintain",
    "table_release",
    "table_requests",
]

#: For `table_import`, the last use of a key that keeps its use or, if it has no row, is
#: used now.
NOW = -1

#: In `uses`, the last use of a row that was evicted and is not free yet.
RESTS = -1

_raw_ops: Any = op_library.load()


def __getattr__(name: str) -> Any:
    return op_library.function(name, ("table_",))


class IndexedTable(NamedTuple):
    """A table of a part, as `table_index` takes it.

    `name`: of the table; its initial vectors depend on it. `numbers`: the constant, and
    any other; the ends of the uniform distribution; mean and standard deviation of the
    normal one before it is truncated.
    """

    name: str
    first_row: int
    capacity: int
    min_count: int = 1
    seed: int = 0
    initializer: str = "zeros"
    numbers: tuple[float, float] = (0.0, 0.0)


class TableStats(NamedTuple):
    """How a table is; the columns of `table_stats`, in their order.

    `admitted`: keys that training gave a row; imported ones do not count.
    """

    rows: Any
    capacity: Any
    without_row: Any
    admitted: Any
    evicted: Any
    refused: Any
    dropped: Any
    index_bytes: Any


class Part(NamedTuple):
    """A part of tables that grow, on one server.

    `uses`: int32, for each row when it was used last, and how often; the latter is 0
    for a row that is free.
    """

    vectors: Any
    keys: Any
    uses: Any
    index: Any


#: Variables beside a part's vectors, and the value with which each begins.
Slots: TypeAlias = Sequence[tuple[Any, float]]


class TableExport(NamedTuple):
    """The keys of a table, ascending.

    `keys`: int64 of shape `[n]`. `rows`: int32 of shape `[n]`: where their vectors are.
    `last_uses`: int32 of shape `[n]`. `counts`: int32 of shape `[n]`.
    """

    keys: Any
    rows: Any
    last_uses: Any
    counts: Any


def table_index(
    tables: Sequence[IndexedTable],
    *,
    shared_name: str = "",
    container: str = "",
    counted: bool = False,
) -> tf.Tensor:
    """Makes or finds the index of a part of tables that grow: Syncrep>TableIndex."""
    numbers = [number for table in tables for number in table.numbers]
    return _raw_ops.syncrep_table_index(
        tables=[table.name for table in tables],
        first_rows=[table.first_row for table in tables],
        capacities=[table.capacity for table in tables],
        min_counts=[table.min_count for table in tables],
        seeds=[table.seed for table in tables],
        initializers=[table.initializer for table in tables],
        initial_numbers=_bits(numbers),
        container=container,
        shared_name=shared_name,
        counted=counted,
    )


def key_owner(keys: Any, num_shards: int) -> tf.Tensor:
    """Says which part of a table has each key.

    Part `h(key) mod num_shards`, where `h` is the finalizer of SplitMix64 (Steele, Lea
    and Flood, "Fast splittable pseudorandom number generators", 2014), of unsigned
    numbers. `h(0)` is 0xe220a8397b1dcdaf, `h(1)` 0x910a2dec89025cc1 and `h(-1)`
    0xe4d971771b652c20. Files depend on it.

    Returns int64 of the keys' shape.

    Example:
    >>> table_ops.key_owner(tf.constant([0, 1, -1], tf.int64), 3).numpy().tolist()
    [1, 2, 2]
    """
    hashes = tf.bitcast(tf.cast(keys, tf.int64), tf.uint64)

    def constant(number):
        return tf.constant(number, tf.uint64)

    def mixed(number, shift):
        return tf.bitwise.bitwise_xor(
            number, tf.bitwise.right_shift(number, constant(shift))
        )

    hashes += constant(0x9E3779B97F4A7C15)
    hashes = mixed(hashes, 30) * constant(0xBF58476D1CE4E5B9)
    hashes = mixed(hashes, 27) * constant(0x94D049BB133111EB)
    return tf.cast(mixed(hashes, 31) % constant(num_shards), tf.int64)


def table_requests(
    ids: Sequence[Any],
    *,
    table_of_feature: Sequence[int],
    num_tables: int,
    num_shards: int,
) -> tuple[list[tf.Tensor], list[tf.Tensor]]:
    """Finds the keys among the ids of features, part by part: Syncrep>TableRequests."""
    result = _raw_ops.syncrep_table_requests(
        ids=ids,
        num_shards=num_shards,
        num_features=len(ids),
        num_tables=num_tables,
        table_of_feature=list(table_of_feature),
    )
    return list(result.requests), list(result.places)


def table_find(
    part: Part, request: Any, *, insert: bool, transfer_dtype: Any = None
) -> tuple[tf.Tensor, tf.Tensor]:
    """Finds the rows of keys, and reads them: Syncrep>TableFind."""
    dtype, shape = part.vectors.dtype, part.vectors.shape
    with tf.device(part.vectors.device):
        result = _raw_ops.syncrep_table_find(
            *_inputs(part),
            request,
            dtype=dtype,
            Tout=transfer_dtype or dtype,
            insert=insert,
            shape=shape,
        )
    return result.rows, result.values


def table_maintain(
    part: Part,
    step: Any,
    *,
    slots: Slots,
    evict: Sequence[str | None],
    unused_for: Sequence[int | None],
) -> tf.Tensor:
    """Sets the clock, frees rows, and evicts others: Syncrep>TableMaintain."""
    with tf.device(part.vectors.device):
        return _raw_ops.syncrep_table_maintain(
            *_inputs(part),
            step,
            [slot.handle for slot, _ in slots],
            dtype=part.vectors.dtype,
            slot_initials=_bits(initial for _, initial in slots),
            evict=[order or "none" for order in evict],
            unused_for=[steps or 0 for steps in unused_for],
        )


def table_release(
    part: Part,
    table: int,
    row_keys: Any,
    *,
    rests: bool,
    sets_back: bool,
    slots: Slots = (),
) -> tf.Tensor:
    """Takes their rows from keys: Syncrep>TableRelease."""
    with tf.device(part.vectors.device):
        return _raw_ops.syncrep_table_release(
            *_inputs(part),
            row_keys,
            [slot.handle for slot, _ in slots],
            dtype=part.vectors.dtype,
            table=table,
            slot_initials=_bits(initial for _, initial in slots),
            rests=rests,
            sets_back=sets_back,
        )


def table_export(part: Part, table: int) -> TableExport:
    """Lists the keys of a table of a part: Syncrep>TableExport."""
    index, _, *columns = _inputs(part)
    with tf.device(part.vectors.device):
        exported = _raw_ops.syncrep_table_export(index, *columns, table=table)
    return TableExport(*exported)


def table_import(
    part: Part, table: int, row_keys: Any, last_uses: Any, counts: Any
) -> tf.Tensor:
    """Gives keys rows, and sets when they were used: Syncrep>TableImport."""
    with tf.device(part.vectors.device):
        return _raw_ops.syncrep_table_import(
            *_inputs(part),
            row_keys,
            last_uses,
            counts,
            dtype=part.vectors.dtype,
            table=table,
        )


def _inputs(part):
    return part.index, part.vectors.handle, part.keys.handle, part.uses.handle


def _bits(numbers):
    # An attribute is a float of 32 bits, or an integer of 64.
    return [struct.unpack("q", struct.pack("d", x))[0] for x in numbers]


tf.no_gradient("Syncrep>TableZeros")
tf.no_gradient("Syncrep>TableRequests")


@tf.RegisterGradient("Syncrep>TableFind")
def _gradient_of_find(op, gradient_of_rows, gradient):
    del gradient_of_rows  # Row numbers have none.
    index, _, keys, uses, request = op.inputs
    rows, values = op.outputs
    dtype, shape = op.get_attr("dtype"), op.get_attr("shape")
    # What travels is as narrow as what came; it is widened beside the variable.
    with tf.device(values.device):
        values, rows = _raw_ops.syncrep_table_gradient(
            index, keys, uses, request, rows, gradient, dtype=dtype
        )
    size = [dim.size for dim in shape.dim] if hasattr(shape, "dim") else list(shape)
    slices = tf.IndexedSlices(values, rows, tf.constant(size, tf.int64))
    return None, slices, None, None, None
