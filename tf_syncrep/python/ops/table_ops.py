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
otherwise, nothing was written then.
"""

import struct
from collections.abc import Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from tf_syncrep.python.ops import op_library

__all__ = [
    "IndexedTable",
    "TableExport",
    "TableStats",
    "key_owner",
    "table_export",
    "table_find",
    "table_gradient",
    "table_import",
    "table_index",
    "table_maintain",
    "table_requests",
    "table_stats",
    "table_zeros",
]

#: In `uses`, the last use of a row that was evicted and is not free yet.
RESTS = -1

_raw_ops: Any = op_library.load()


class IndexedTable(NamedTuple):
    """A table of a part, as `table_index` takes it.

    Attributes:
        name: of the table; its initial vectors depend on it.
        first_row: where its rows begin: where those of the table before end.
        capacity: how many rows it has.
        min_count: how often a key is seen in training before it gets a row, from 1 to
            255.
        seed: of its initial vectors, any int64.
        initializer: how they are distributed: `"zeros"`, `"constant"`, `"uniform"`,
            `"normal"` or `"truncated_normal"`, the last within two standard deviations.
        numbers: the constant, and any other; the ends of the uniform distribution; mean
            and standard deviation of the normal one before it is truncated.
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

    Attributes:
        in_use: rows that have a key.
        capacity: rows.
        without_row: keys that training found without a row, lookup by lookup.
        admitted: keys that got a row.
        evicted: rows that were evicted.
        refused: keys, of those without a row, that got none since no row was free.
        dropped: gradients of keys whose row has gone to another key.
        bytes: that the index takes, beside the variables.
    """

    in_use: Any
    capacity: Any
    without_row: Any
    admitted: Any
    evicted: Any
    refused: Any
    dropped: Any
    bytes: Any


class TableExport(NamedTuple):
    """The keys of a table, ascending.

    Attributes:
        keys: int64 of shape `[n]`.
        rows: int32 of shape `[n]`: where their vectors are.
        last_uses: int32 of shape `[n]`.
        counts: int32 of shape `[n]`.
    """

    keys: Any
    rows: Any
    last_uses: Any
    counts: Any


def table_zeros(shape: Any, dtype: Any, name: str | None = None) -> tf.Tensor:
    """Makes zeros whose memory is not there before they are written.

    A variable that begins with them takes memory for rows that were used, not for all
    that it has.

    Args:
        shape: of the result, known.
        dtype: half, bfloat16, float32, float64, int32 or int64.
        name: name of the op.

    Returns:
        The zeros.

    Raises:
        tf.errors.ResourceExhaustedError: there is no memory, or will be none, as the
            operating system knows.

    Example:
    >>> zeros = table_ops.table_zeros([1 << 20, 64], tf.float32)  # of 256 MB
    >>> float(zeros[-1, -1])
    0.0
    """
    return _raw_ops.syncrep_table_zeros(shape=shape, dtype=dtype, name=name)


def table_index(
    tables: Sequence[IndexedTable],
    *,
    shared_name: str = "",
    container: str = "",
    counted: bool = False,
    name: str | None = None,
) -> tf.Tensor:
    """Makes the index of a part, or finds it by its shared name.

    Args:
        tables: the tables of the part, whose rows come one after the other.
        shared_name: the index's name on its task. A name in use with other tables is
            an error.
        container: where it lives.
        counted: whether it lives as long as its handle, and not as long as its task.
            Without a shared name it is then a new one each time.
        name: name of the op.

    Returns:
        The handle, a resource tensor.

    Raises:
        tf.errors.InvalidArgumentError: rows that do not follow each other, a count, an
            initializer or a number out of its range.

    Example:
    >>> index = table_ops.table_index(
    ...     [table_ops.IndexedTable("items", 0, 1000, initializer="normal",
    ...                             numbers=(0.0, 0.05))],
    ...     counted=True,
    ... )
    """
    numbers = [number for table in tables for number in table.numbers]
    return _raw_ops.syncrep_table_index(
        tables=[table.name for table in tables],
        first_rows=[table.first_row for table in tables],
        capacities=[table.capacity for table in tables],
        min_counts=[table.min_count for table in tables],
        seeds=[table.seed for table in tables],
        initializers=[table.initializer for table in tables],
        # An attribute is a float of 32 bits, or an integer of 64.
        initial_numbers=[struct.unpack("q", struct.pack("d", x))[0] for x in numbers],
        container=container,
        shared_name=shared_name,
        counted=counted,
        name=name,
    )


def key_owner(keys: Any, num_shards: int) -> tf.Tensor:
    """Says which part of a table has each key.

    Part `h(key) mod num_shards`, where `h` is the finalizer of SplitMix64 (Steele, Lea
    and Flood, "Fast splittable pseudorandom number generators", 2014), of unsigned
    numbers. `h(0)` is 0xe220a8397b1dcdaf, `h(1)` 0x910a2dec89025cc1 and `h(-1)`
    0xe4d971771b652c20. Files depend on it.

    Args:
        keys: int64 of any shape.
        num_shards: how many parts there are.

    Returns:
        int64 of the same shape.

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
    name: str | None = None,
) -> tuple[list[tf.Tensor], list[tf.Tensor]]:
    """Finds the different keys that the ids of features are, part by part.

    Args:
        ids: for each feature, int32 or int64 of any shape.
        table_of_feature: for each feature, the number of its table.
        num_tables: how many tables there are.
        num_shards: how many parts there are; `key_owner` says which one has a key.
        name: name of the op.

    Returns:
        requests: for each part an int64 vector: for each table how many of the keys are
            of it, and behind these the keys, table by table, each once, ascending.
        places: for each feature, int32 of the shape of its ids: which of the keys of
            all parts, those of part 0 first, each id is.

    Example:
    >>> requests, places = table_ops.table_requests(
    ...     [tf.constant([[4, -1], [4, 3]])], table_of_feature=[0], num_tables=1,
    ...     num_shards=2,
    ... )
    >>> [x.numpy().tolist() for x in requests]
    [[2, -1, 4], [1, 3]]
    >>> places[0].numpy().tolist()
    [[1, 0], [1, 2]]
    """
    result = _raw_ops.syncrep_table_requests(
        ids=ids,
        num_shards=num_shards,
        num_features=len(ids),
        num_tables=num_tables,
        table_of_feature=list(table_of_feature),
        name=name,
    )
    return list(result.requests), list(result.places)


def table_find(
    index: tf.Tensor,
    vectors: tf.Tensor,
    keys: tf.Tensor,
    uses: tf.Tensor,
    request: Any,
    *,
    insert: bool,
    shape: Any,
    dtype: Any,
    transfer_dtype: Any = None,
    name: str | None = None,
) -> tuple[tf.Tensor, tf.Tensor]:
    """Finds the rows of keys, and reads them.

    The gradient, of the values with respect to `vectors`, is a `tf.IndexedSlices` made
    by `table_gradient`, where this op is.

    Args:
        index: of the part.
        vectors: handle of a resource variable of rank 2.
        keys: handle of one of int64, of shape `[rows]`.
        uses: handle of one of int32, of shape `[rows, 2]`: last use and count.
        request: as `table_requests` gives it.
        insert: whether this is training: keys that have a row are used now, and count;
            others are counted, and get a row and an initial vector once they were seen
            often enough, and a row is free. Without it nothing changes.
        shape: shape of `vectors`.
        dtype: dtype of `vectors`.
        transfer_dtype: dtype of the values: that of the vectors, which is the default,
            or, for float32, half or bfloat16.
        name: name of the op.

    Returns:
        rows: int32 of shape `[n]`: of each key of the request its row, or -1.
        values: of shape `[n, width]`: its vector, or zeros.

    Raises:
        tf.errors.InvalidArgumentError: variables of other shapes than the index wants,
            columns in which a key has two rows, a request of another kind.
        tf.errors.ResourceExhaustedError: there is no memory; keys of the request that
            have a row may have been used.
    """
    result = _raw_ops.syncrep_table_find(
        index,
        vectors,
        keys,
        uses,
        request,
        dtype=dtype,
        Tout=transfer_dtype or dtype,
        insert=insert,
        shape=shape,
        name=name,
    )
    return result.rows, result.values


def table_gradient(
    index: tf.Tensor,
    keys: tf.Tensor,
    uses: tf.Tensor,
    request: Any,
    rows: Any,
    gradient: Any,
    *,
    dtype: Any,
    name: str | None = None,
) -> tuple[tf.Tensor, tf.Tensor]:
    """Makes the gradient of what `table_find` read one of rows.

    Keys without a row are left out, and those whose row has another key by now, which
    `table_stats` counts.

    Args:
        index: of the part.
        keys: as `table_find` had it.
        uses: as it had it.
        request: as it had it.
        rows: as it gave them.
        gradient: of its values, of their shape and dtype.
        dtype: of the vectors.
        name: name of the op.

    Returns:
        values: of `dtype` and shape `[m, width]`.
        rows: int32 of shape `[m]`, each row once, ascending.
    """
    result = _raw_ops.syncrep_table_gradient(
        index, keys, uses, request, rows, gradient, dtype=dtype, name=name
    )
    return result.values, result.kept_rows


def table_maintain(
    index: tf.Tensor,
    vectors: tf.Tensor,
    keys: tf.Tensor,
    uses: tf.Tensor,
    step: Any,
    *,
    slots: Sequence[tf.Tensor],
    slot_initials: Sequence[float],
    evict: Sequence[str | None],
    unused_for: Sequence[int | None],
    dtype: Any,
    name: str | None = None,
) -> tf.Tensor:
    """Sets the clock, frees rows that were evicted last time, and evicts others.

    To be called between two updates. A row that the last call has evicted has rested
    since: its slots get their initial values, and it is free. The vector of a row gets
    its initial value when a key gets the row.

    Args:
        index: of the part.
        vectors: as `table_find` has it.
        keys: as it has it.
        uses: as it has it.
        step: int64 in [0, 2^31), how many updates were made. What is used from now on
            is used at `step + 1`.
        slots: handles of the optimizer's variables with as many rows: half, bfloat16,
            float32 or float64.
        slot_initials: for each slot, the number that is all over it at first.
        evict: for each table `"least_recent"` or `"least_frequent"`: where more than
            95% of its rows are in use, such ones are evicted until 90% are; or None.
            Equally old rows go by their counts, equally frequent ones by their last
            uses, and then by their numbers.
        unused_for: for each table, rows that were not used for more steps than this
            are evicted; 0 or None for no such rows. The first maintenance after the
            last use of a row of such a table counts as that use, since it may have
            been right before.
        dtype: of the vectors.
        name: name of the op.

    Returns:
        int64 of shape `[num_tables]`, how many rows were evicted.

    Raises:
        tf.errors.AbortedError: `keys` or `uses` was assigned meanwhile.
        tf.errors.CancelledError: the step was cancelled; what was done is whole, and
            the next maintenance does the rest.
    """
    return _raw_ops.syncrep_table_maintain(
        index,
        vectors,
        keys,
        uses,
        step,
        list(slots),
        dtype=dtype,
        slot_initials=list(slot_initials),
        evict=[order or "none" for order in evict],
        unused_for=[steps or 0 for steps in unused_for],
        name=name,
    )


def table_stats(index: tf.Tensor, name: str | None = None) -> tf.Tensor:
    """Tells how the tables of a part are.

    Args:
        index: of the part.
        name: name of the op.

    Returns:
        int64 of shape `[num_tables, 8]`, whose columns are those of `TableStats`. Rows
        in use are those since the part was used first.

    Example:
    >>> index = table_ops.table_index(
    ...     [table_ops.IndexedTable("items", 0, 1000)], counted=True
    ... )
    >>> stats = table_ops.TableStats(*table_ops.table_stats(index)[0].numpy())
    >>> int(stats.in_use), int(stats.capacity)
    (0, 1000)
    """
    return _raw_ops.syncrep_table_stats(index, name=name)


def table_export(
    index: tf.Tensor,
    keys: tf.Tensor,
    uses: tf.Tensor,
    table: int,
    name: str | None = None,
) -> TableExport:
    """Lists the keys of a table of a part.

    Args:
        index: of the part.
        keys: as `table_find` has it.
        uses: as it has it.
        table: the number of the table.
        name: name of the op.

    Returns:
        The keys, ascending, and what belongs to them.
    """
    return TableExport(
        *_raw_ops.syncrep_table_export(index, keys, uses, table=table, name=name)
    )


def table_import(
    index: tf.Tensor,
    vectors: tf.Tensor,
    keys: tf.Tensor,
    uses: tf.Tensor,
    table: int,
    row_keys: Any,
    last_uses: Any,
    counts: Any,
    *,
    dtype: Any,
    name: str | None = None,
) -> tf.Tensor:
    """Gives keys rows, seen often enough or not, and sets when they were used.

    Args:
        index: of the part.
        vectors: as `table_find` has it. A row that is new has its initial vector.
        keys: as it has it.
        uses: as it has it.
        table: the number of the table.
        row_keys: int64 of shape `[n]`, different keys.
        last_uses: int32 of shape `[n]`, at least 0.
        counts: int32 of shape `[n]`, at least 1.
        dtype: of the vectors.
        name: name of the op.

    Returns:
        int32 of shape `[n]`, the keys' rows: those that they have, or new ones.

    Raises:
        tf.errors.ResourceExhaustedError: there are fewer free rows than keys without
            one. Nothing was written.
    """
    return _raw_ops.syncrep_table_import(
        index,
        vectors,
        keys,
        uses,
        row_keys,
        last_uses,
        counts,
        dtype=dtype,
        table=table,
        name=name,
    )


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
        values, rows = table_gradient(
            index, keys, uses, request, rows, gradient, dtype=dtype
        )
    size = [dim.size for dim in shape.dim] if hasattr(shape, "dim") else list(shape)
    slices = tf.IndexedSlices(values, rows, tf.constant(size, tf.int64))
    return None, slices, None, None, None
