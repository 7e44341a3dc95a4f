"""The checkpoint ops in one process: the files show the moment, and are read back."""

import contextlib
import ctypes
import itertools
import os
import signal
import time

import numpy as np
import process_threads
import pytest
import tensorflow as tf
from process_threads import asleep_in_handler, threads_named
from waiting import in_thread, until

import tf_syncrep as tfs
from tf_syncrep.python.ops import checkpoint_ops

_names = itertools.count()
_KEPT = 1 << 20


def _parts(values, num_parts):
    """A table and a slot, row r in part r % num_parts; variables by part."""
    return [
        [tf.Variable(values[p::num_parts]), tf.Variable(-values[p::num_parts])]
        for p in range(num_parts)
    ]


def _pieces(values, num_parts):
    vocabulary = len(values)
    return [
        (p, len(values[p::num_parts]), p if num_parts > 1 else 0, num_parts, vocabulary)
        for p in range(num_parts)
    ]


class _Table:
    """A table in parts, a dense variable, and a writer, as on one task."""

    def __init__(self, values, num_parts):
        self.values = values
        self.parts = _parts(values, num_parts)
        self.dense = tf.Variable(np.arange(3.0))
        self.pieces = _pieces(values, num_parts)
        self.names = ["table", "slots/m/table"] * num_parts
        self.writer = _writer()

    @property
    def groups(self):
        return _handles(self.parts)

    def begin(self, prefix, token="", base="", speed=0.0, **options):
        checkpoint_ops.checkpoint_begin(
            *(self.writer, str(prefix), token, base),
            *(self.groups, self.pieces, self.names, [self.dense.handle], ["dense"]),
            *([tf.constant(["some", "strings"])], ["strings"]),
            **{"max_kept_bytes": _KEPT, "patience_secs": 60.0, **options},
            max_bytes_per_sec=speed,
        )

    def write(self, prefix, **kwargs):
        self.begin(prefix, **kwargs)
        return _wait(self.writer)

    def restore(self, *prefixes):
        return checkpoint_ops.checkpoint_restore(
            [str(prefix) for prefix in prefixes],
            *(self.groups, self.pieces, self.names, [self.dense.handle], ["dense"]),
        )

    def read(self, array=0):
        values = np.empty_like(self.values)
        for p, part in enumerate(self.parts):
            values[p :: len(self.parts)] = part[array].numpy()
        return values


def _writer():
    return checkpoint_ops.checkpoint_writer(shared_name=f"w{next(_names)}")


def _handles(groups):
    return [[x.handle for x in group] for group in groups]


def _begin(writer, prefix, groups, pieces, names, token="", base="", **options):
    """Begins to write variables, whose rows alone are in the checkpoint."""
    checkpoint_ops.checkpoint_begin(
        *(writer, str(prefix), token, base, _handles(groups), pieces, names, [], []),
        **{"max_kept_bytes": _KEPT, "patience_secs": 60.0, **options},
    )


def _restore(prefixes, groups, pieces, names):
    """Restores such variables; returns how many bytes were read."""
    prefixes = [str(prefix) for prefix in prefixes]
    return checkpoint_ops.checkpoint_restore(
        prefixes, _handles(groups), pieces, names, [], []
    )


def _ref_begin(writer, prefix, layout, token="", base="", tensors=((), ()), **options):
    """An op that accepts groups, pieces and names, and tensors with their names."""
    return checkpoint_ops.ref_checkpoint_begin(
        *(writer, str(prefix), token, base, *layout, *tensors),
        **{"max_kept_bytes": _KEPT, "patience_secs": 60.0, **options},
    )


def _ended(writer):
    """What is told of a checkpoint when its writing has ended."""
    while True:
        progress = checkpoint_ops.checkpoint_progress(writer)
        if progress.done:
            return progress


def _wait(writer):
    _, code, message, *counts, _ = _ended(writer)
    assert code == 0, message.numpy()
    return tuple(map(int, counts))


def _values(num_rows, width=3, seed=0):
    rng = np.random.default_rng(seed)
    return rng.normal(size=(num_rows, width)).astype(np.float32)


@pytest.mark.parametrize("num_rows", [1, 3, 4, 1000])
@pytest.mark.parametrize("num_parts", [1, 2, 3])
def test_tensorflow_reads_what_is_written(tmp_path, num_parts, num_rows):
    table = _Table(_values(num_rows), num_parts)
    size, rows, _ = table.write(tmp_path / "ckpt")
    reader = tf.train.load_checkpoint(str(tmp_path / "ckpt"))
    for name, expected in [("table", table.values), ("slots/m/table", -table.values)]:
        stored = reader.get_tensor(name)
        if num_parts > 1:
            assert stored.shape == (-(-num_rows // num_parts), num_parts, 3)
        np.testing.assert_array_equal(stored.reshape(-1, 3)[:num_rows], expected)
        assert not stored.reshape(-1, 3)[num_rows:].any()
    np.testing.assert_array_equal(reader.get_tensor("dense"), [0, 1, 2])
    assert list(reader.get_tensor("strings")) == [b"some", b"strings"]
    padding = -num_rows % num_parts
    assert rows == num_rows + padding
    assert size >= rows * 24


@pytest.mark.parametrize(
    ("written", "read"), list(itertools.product([1, 2, 3, 4], repeat=2))
)
def test_number_of_parts_may_differ(tmp_path, written, read):
    table = _Table(_values(101), written)
    table.write(tmp_path / "full", token="a")
    for row in (0, 7, 50, 100):
        part = table.parts[row % written]
        part[0].scatter_nd_update([[row // written]], [[9.0, 8.0, row]])
    table.dense.assign_add([1, 1, 1])
    expected = table.read(), table.read(1), table.dense.numpy()
    _, rows, _ = table.write(tmp_path / "changed", token="b", base="a")
    assert rows == 4
    other = _Table(np.zeros_like(table.values), read)
    other.restore(tmp_path / "full", tmp_path / "changed")
    np.testing.assert_array_equal(other.read(), expected[0])
    np.testing.assert_array_equal(other.read(1), expected[1])
    np.testing.assert_array_equal(other.dense.numpy(), expected[2])


@pytest.mark.parametrize(
    ("written", "read", "times"),
    [(1, 1, 1), (2, 2, 1), (5, 5, 1), (2, 4, 2), (4, 2, 1), (4, 6, 3), (2, 3, 3)],
)
def test_servers_read_changed_rows_of_chunks_that_have_theirs(
    tmp_path, written, read, times
):
    table = _Table(_values(240), written)
    table.write(tmp_path / "full", token="a")
    for part in table.parts:
        part[0].scatter_nd_add([[2], [3], [10]], np.ones([3, 3], np.float32))
    table.write(tmp_path / "changed", token="b", base="a")
    other = _Table(np.zeros_like(table.values), read)

    def restore(p, *files):
        """The checkpoint as the server with part p writes it."""
        piece = [(0, *other.pieces[p][1:])]
        prefixes = [tmp_path / file for file in files]
        return _restore(prefixes, [other.parts[p]], piece, other.names[:2])

    for p in range(read):
        before = restore(p, "full")
        of_changed = restore(p, "full", "changed") - before
        # Each has its share, and 8 bytes for each row's number, and nothing else.
        assert of_changed == times * 3 * written * (2 * 3 * 4 + 8) // read
    np.testing.assert_array_equal(other.read(), table.read())
    np.testing.assert_array_equal(other.read(1), table.read(1))


def test_ranges_of_rows_read_changed_rows_of_their_own(tmp_path):
    values = _values(12)
    halves = [tf.Variable(values[:6]), tf.Variable(values[6:])]
    writer = _writer()
    layout = [[x] for x in halves], [(0, 6, 0, 1, 12), (1, 6, 6, 1, 12)], ["table"] * 2
    prefixes = [tmp_path / "full", tmp_path / "changed"]
    for prefix, token, base in zip(prefixes, "ab", ("", "a"), strict=True):
        _begin(writer, prefix, *layout, token, base)
        _wait(writer)
        for half in halves:
            half.scatter_nd_update([[2]], [[7.0, 8.0, 9.0]])
    for begin, size, of_changed in [(0, 6, 20), (6, 6, 20), (0, 2, 8), (5, 4, 28)]:
        part = tf.Variable(np.zeros([size, 3], np.float32))
        layout = [[part]], [(0, size, begin, 1, 12)], ["table"]
        before = _restore(prefixes[:1], *layout)
        assert _restore(prefixes, *layout) - before == of_changed
        expected = np.concatenate(halves)[begin : begin + size]
        np.testing.assert_array_equal(part, expected)


def test_range_of_rows_is_one_piece(tmp_path):
    """ShardedVariable has such parts: in files it is the whole table."""
    values = _values(10)
    halves = [tf.Variable(values[:6]), tf.Variable(values[6:])]
    writer, prefix = _writer(), tmp_path / "ckpt"
    layout = [(0, 6, 0, 1, 10), (1, 4, 6, 1, 10)], ["table"] * 2
    _begin(writer, prefix, [[half] for half in halves], *layout)
    _wait(writer)
    stored = tf.train.load_checkpoint(str(prefix)).get_tensor("table")
    np.testing.assert_array_equal(stored, values)
    thirds = [tf.Variable(np.zeros([n, 3], np.float32)) for n in (3, 3, 4)]
    pieces = [(0, 3, 0, 1, 10), (1, 3, 3, 1, 10), (2, 4, 6, 1, 10)]
    _restore([prefix], [[third] for third in thirds], pieces, ["table"] * 3)
    np.testing.assert_array_equal(np.concatenate(thirds), values)
    odd = tf.Variable(np.zeros([5, 3], np.float32))
    _restore([prefix], [[odd]], [(0, 5, 1, 2, 10)], ["table"])
    np.testing.assert_array_equal(odd, values[1::2])


def test_rows_that_are_kept_are_written_as_they_were(tmp_path):
    """Tables that are larger than what is read at a time are overwritten meanwhile."""
    values = _values(300_000, width=16)
    table = _Table(values, 2)
    rng = np.random.default_rng(1)
    table.begin(tmp_path / "ckpt")
    updates = 0
    while not checkpoint_ops.checkpoint_progress(table.writer)[0]:
        for part in table.parts:
            rows = rng.integers(part[0].shape[0], size=2000)
            checkpoint_ops.checkpoint_keep(part[0].handle, rows)
            for array in part:
                array.scatter_nd_add(rows[:, None], np.ones([2000, 16], np.float32))
        updates += 1
    _wait(table.writer)
    assert updates > 0
    reader = tf.train.load_checkpoint(str(tmp_path / "ckpt"))
    for name, expected in [("table", values), ("slots/m/table", -values)]:
        stored = reader.get_tensor(name).reshape(-1, 16)
        np.testing.assert_array_equal(stored, expected)
    assert np.any(table.read() != values)


def test_no_row_is_torn_where_updates_keep_nothing(tmp_path):
    """Asynchronous training: a row and its slots belong to one update."""
    rows, width, rate = 100_000, 16, 0.5
    arrays = [tf.Variable(tf.zeros([rows, width])) for _ in range(3)]
    powers = [tf.Variable(0.0) for _ in range(2)]
    writer = _writer()

    def update(number):
        # Without decay m is the last gradient, v its square, and each step moves by one
        # rate.
        tfs.ops.resource_sparse_apply_adam_async(
            *(array.handle for array in arrays),
            *(power.handle for power in powers),
            *(rate, 0.0, 0.0, 0.0),
            tf.fill([rows, width], float(number)),
            tf.range(rows),
        )

    update(1)
    layout = [arrays], [(0, rows, 0, 1, rows)], ["var", "m", "v"]
    _begin(writer, tmp_path / "ckpt", *layout, max_bytes_per_sec=40e6)
    updates = 1
    while not checkpoint_ops.checkpoint_progress(writer)[0]:
        updates += 1
        update(updates)
    _wait(writer)
    reader = tf.train.load_checkpoint(str(tmp_path / "ckpt"))
    var, m, v = (reader.get_tensor(name) for name in ("var", "m", "v"))
    of_update = m[:, :1]
    assert len(np.unique(of_update)) > 2
    np.testing.assert_array_equal(m, np.broadcast_to(of_update, m.shape))
    np.testing.assert_array_equal(v, m**2)
    np.testing.assert_allclose(var, -rate * m, rtol=1e-5)


@pytest.mark.ci
def test_memory_beside_the_tables_is_that_of_a_few_chunks(tmp_path):
    """At most 64 MiB are kept, of a table several times as large."""
    table = _Table(np.ones([400_000, 64], np.float32), 2)  # 2 times 98 MiB
    before = process_threads.resident()
    table.begin(tmp_path / "ckpt")
    most = before
    while not checkpoint_ops.checkpoint_progress(table.writer)[0]:
        most = max(most, process_threads.resident())
    assert _wait(table.writer)[0] > 3 * 64 << 20
    assert most - before < 64 << 20


def test_whole_tables_are_kept_and_wait_for_room(tmp_path):
    values = _values(300_000, width=16)
    table = _Table(values, 1)
    table.begin(tmp_path / "ckpt", max_kept_bytes=1 << 20)
    (part,) = table.parts
    checkpoint_ops.checkpoint_keep(part[0].handle)
    for array in part:
        array.assign(np.zeros_like(values))
    _, _, kept = _wait(table.writer)
    stored = tf.train.load_checkpoint(str(tmp_path / "ckpt")).get_tensor("table")
    np.testing.assert_array_equal(stored, values)
    assert kept <= 1 << 20


def test_when_one_table_gives_a_checkpoint_up_no_update_of_another_waits(tmp_path):
    groups = [[tf.Variable(_values(1000, width=16))] for _ in range(3)]
    pieces = [(group, 1000, 0, 1, 1000) for group in range(3)]
    writer, path = _writer(), tmp_path / "ckpt"
    options = {"max_kept_bytes": 4096, "max_bytes_per_sec": 1.0, "patience_secs": 2.0}
    _begin(writer, path, groups, pieces, ["a", "b", "c"], **options)
    for (table,) in reversed(groups):
        checkpoint_ops.checkpoint_keep(table.handle)
    assert not checkpoint_ops.checkpoint_progress(writer).done
    checkpoint_ops.checkpoint_cancel(writer)
    assert _ended(writer).code == tf.errors.DEADLINE_EXCEEDED


def test_tables_without_rows_may_have_rows_of_any_size(tmp_path):
    large, small = tf.Variable(tf.zeros([0, 1 << 32, 1 << 32])), tf.Variable([1.0])
    path, pieces = tmp_path / "ckpt", [(0, 1, 0, 1, 1)]
    with pytest.raises(tf.errors.InvalidArgumentError, match="overflow"):
        _begin(_writer(), path, [[large]], pieces, ["a"])
    writer = _writer()
    _begin(writer, path, [[small]], pieces, ["a"])
    _wait(writer)
    with pytest.raises(tf.errors.FailedPreconditionError, match="equally many rows"):
        _restore([path], [[small, large]], pieces, ["a", "b"])


def test_handles_are_no_values(tmp_path):
    handle = tf.Variable(1.0).handle
    with pytest.raises(tf.errors.InvalidArgumentError, match="must have values"):
        checkpoint_ops.checkpoint_begin(
            *(_writer(), str(tmp_path / "ckpt"), "", "", [], [], [], [], []),
            *([handle], ["x"]),
            max_kept_bytes=_KEPT,
            patience_secs=60.0,
        )


def test_unknown_base_and_second_writing_are_refused(tmp_path):
    table = _Table(_values(1000), 1)
    with pytest.raises(tf.errors.FailedPreconditionError, match=r"'a'.*last one.*''"):
        table.begin(tmp_path / "ckpt", token="b", base="a")
    table.begin(tmp_path / "ckpt", token="a", speed=100.0)  # this takes minutes
    with pytest.raises(tf.errors.FailedPreconditionError, match="being written"):
        table.begin(tmp_path / "other")
    checkpoint_ops.checkpoint_cancel(table.writer)
    done, code, *_ = checkpoint_ops.checkpoint_progress(table.writer)
    assert done
    assert code == tf.errors.CANCELLED
    # An interrupted checkpoint is no base.
    with pytest.raises(tf.errors.FailedPreconditionError):
        table.begin(tmp_path / "ckpt", token="b", base="a")


def test_files_are_written_no_faster_than_allowed(tmp_path):
    table = _Table(_values(1000), 2)
    begin = time.monotonic()
    size, *_ = table.write(tmp_path / "ckpt", speed=40_000.0)
    # Nobody waits for the rest of the last chunk, which takes a tenth of a second.
    assert time.monotonic() - begin > size / 40_000 - 0.1 > 0.3
    stored = tf.train.load_checkpoint(str(tmp_path / "ckpt")).get_tensor("table")
    np.testing.assert_array_equal(stored.reshape(-1, 3), table.values)


def test_files_that_cannot_be_written_are_told_of(tmp_path):
    blocked = tmp_path / "file"
    blocked.write_text("no folder")
    table = _Table(_values(10), 1)
    table.begin(blocked / "ckpt")
    progress = _ended(table.writer)
    assert progress.code != 0
    assert b"file" in progress.message.numpy()
    table.write(tmp_path / "ckpt")  # the next one is


@pytest.mark.parametrize("damage", ["changed", "truncated", "gone"])
def test_damaged_files_are_told_of(tmp_path, damage):
    table = _Table(_values(1000), 2)
    table.write(tmp_path / "ckpt")
    data = tmp_path / "ckpt.data-00000-of-00001"
    content = bytearray(data.read_bytes())
    content[len(content) // 2] ^= 1
    if damage == "changed":
        data.write_bytes(content)
    elif damage == "truncated":
        data.write_bytes(content[: len(content) // 2])
    else:
        data.unlink()
    with pytest.raises(
        (tf.errors.DataLossError, tf.errors.OutOfRangeError, tf.errors.NotFoundError)
    ):
        table.restore(tmp_path / "ckpt")


def test_what_does_not_fit_is_refused_before_anything_is_written(tmp_path):
    table = _Table(_values(10), 2)
    table.write(tmp_path / "ckpt")
    other = _Table(np.zeros([11, 3], np.float32), 2)
    other.dense.assign([7, 7, 7])
    with pytest.raises(tf.errors.InvalidArgumentError, match="table of 11 rows"):
        other.restore(tmp_path / "ckpt")
    other = _Table(np.zeros([10, 3], np.float32), 2)
    other.names[1] = "slots/v/table"
    with pytest.raises(tf.errors.NotFoundError, match="slots/v/table"):
        other.restore(tmp_path / "ckpt")
    assert not other.read().any()


@pytest.mark.parametrize(
    "pieces",
    [
        [(0, 5, 0, 2, 10)],  # not all groups
        [(0, 4, 0, 2, 10), (1, 5, 1, 2, 10)],  # not all rows
        [(0, 5, 0, 2, 10), (2, 5, 1, 2, 10)],  # no such group
        [(0, 5, 2, 2, 10), (1, 5, 1, 2, 10)],  # no such rows
        [(0, 5, 0, 0, 10), (1, 5, 1, 2, 10)],
        [(0, 5, 0, 2, 10), (1, 5, 1, 2, 10, 2)],  # no such array of uses
    ],
)
def test_pieces_must_cover_the_variables(tmp_path, pieces):
    table = _Table(_values(10), 2)
    table.pieces = pieces
    with pytest.raises(tf.errors.InvalidArgumentError, match="pieces"):
        table.begin(tmp_path / "ckpt")
    with pytest.raises(tf.errors.InvalidArgumentError, match="pieces"):
        table.restore(os.fspath(tmp_path / "ckpt"))


@pytest.mark.parametrize("slot", [[4, 3], [11, 3], []])
def test_arrays_of_a_table_have_equally_many_rows(tmp_path, slot):
    table = _Table(_values(10), 1)
    table.write(tmp_path / "ckpt")
    other = _Table(np.zeros([10, 3], np.float32), 1)
    other.parts[0][1] = tf.Variable(tf.zeros(slot), shape=tf.TensorShape(None))
    match = rf"equally many rows.*slots/m/table of shape \{slot}".replace(", ", ",")
    with pytest.raises(tf.errors.FailedPreconditionError, match=match):
        other.restore(tmp_path / "ckpt")
    assert not other.parts[0][0].numpy().any()
    with pytest.raises(tf.errors.InvalidArgumentError, match="equally many rows"):
        other.begin(tmp_path / "ckpt")


@pytest.mark.parametrize(
    "pieces",
    [
        [(0, 1, 0, 1, 2**62)],
        [(0, 1, 2**63 - 1, 1, 2**63 - 1)],
        [(0, 1, 0, 2**63 - 1, 2**63 - 1)],
        [(0, 2**63 - 1, 0, 1, 2**63 - 1), (0, 2**63 - 1, 0, 1, 2**63 - 1)],
    ],
)
def test_no_piece_is_of_a_table_that_is_too_large_for_tensors(tmp_path, pieces):
    table = _Table(_values(1, width=4), 1)
    table.write(tmp_path / "ckpt")
    table.pieces, table.names = pieces, table.names * len(pieces)
    for use in (table.begin, table.restore):
        with pytest.raises(tf.errors.InvalidArgumentError, match="pieces"):
            use(tmp_path / "ckpt")
    table.pieces = [(0, 1, 0, 2**61, 1)]  # The file need not have as many parts.
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"pieces.*parts"):
        table.begin(tmp_path / "ckpt")
    table.restore(tmp_path / "ckpt")


@pytest.mark.parametrize(
    ("pieces", "names"),
    [
        ([(0, 5, 0, 1, 5), (1, 5, 0, 1, 5)], ["a", "b", "a", "c"]),  # the same rows
        ([(0, 5, 0, 1, 5), (1, 5, 0, 2, 10)], ["a", "b", "a", "c"]),  # other shapes
        ([(0, 5, 0, 1, 5), (1, 5, 0, 1, 5)], ["a", "b", "dense", "c"]),
        ([(0, 5, 0, 1, 5), (1, 5, 0, 1, 5)], ["a", "a", "b", "c"]),
    ],
)
def test_names_of_two_are_refused(pieces, names, tmp_path):
    table = _Table(_values(10), 2)
    table.pieces, table.names = pieces, names
    with pytest.raises(tf.errors.InvalidArgumentError, match="the name of two"):
        table.begin(tmp_path / "ckpt")


def test_of_a_table_that_grows_free_rows_are_left_out(tmp_path):
    rows, growing = 5, (0, 5, 0, 1, 5, 2)
    vectors = tf.Variable(np.arange(rows * 2.0).reshape([rows, 2]))
    keys = tf.Variable(np.arange(rows) * 11)
    uses = tf.Variable(np.array([[3, 0], [3, 1], [0, 2], [9, 0], [0, 5]], np.int32))
    arrays, names = [vectors, keys, uses], ["table", "keys", "uses"]
    writer = _writer()

    def begin(prefix, token="", base="", not_finite=()):
        _begin(writer, tmp_path / prefix, [arrays], [growing], names, token, base)
        assert _ended(writer).not_finite.numpy().tolist() == [*not_finite]
        reader = tf.train.load_checkpoint(str(tmp_path / prefix))
        if not reader.has_tensor("table/changed/0-0/ids"):
            return [], [], []
        return [
            reader.get_tensor(f"{name}/changed/0-0/{of}").tolist()
            for name, of in (("table", "ids"), ("keys", "rows"), ("uses", "rows"))
        ]

    ids, found, counts = begin("alone")
    assert ids == [1, 2, 4]
    assert found == [11, 22, 44]
    assert counts == [[3, 1], [0, 2], [0, 5]]
    assert begin("full", "first") == [ids, found, counts]
    uses[2].assign([0, 0])  # It goes, and another comes.
    uses[0].assign([4, 1])
    vectors[3].assign([np.nan, 7.0])  # A row that is free may hold anything.
    ids, found, counts = begin("changed", "second", "first")
    assert ids == [0, 2]
    assert counts == [[4, 1], [0, 0]]
    assert begin("nothing", "third", "second") == ([], [], [])
    uses[3].assign([9, 1])
    begin("ruined", "fourth", "third", not_finite=[b"table"])


@pytest.mark.parametrize("dtype", [tf.half, tf.bfloat16, tf.float32, tf.float64])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_names_of_what_is_not_finite_are_told(tmp_path, dtype, value):
    """However large a table is; slots are not looked at."""
    rows, writer = 200_000, _writer()
    table = tf.Variable(tf.fill([rows, 4], dtype.max))
    slot = tf.Variable(tf.fill([rows, 4], tf.constant(np.inf, dtype)))
    whole = tf.Variable(tf.fill([3], dtype.min))

    def told(token, base=""):
        checkpoint_ops.checkpoint_begin(
            *(writer, str(tmp_path / token), token, base, _handles([[table, slot]])),
            *([(0, rows, 0, 1, rows)], ["table", "slot"], [whole.handle], ["whole"]),
            max_kept_bytes=_KEPT,
        )
        progress = _ended(writer)
        assert progress.code == 0
        return progress.not_finite.numpy().tolist()

    assert told("first") == []
    table[123_456, 3].assign(tf.constant(value, dtype))
    assert told("second", "first") == told("full") == [b"table"]
    assert told("unchanged", "full") == [b"table"]
    table[123_456, 3].assign(tf.constant(0, dtype))
    whole[2].assign(tf.constant(value, dtype))
    assert told("last", "unchanged") == [b"whole"]


def test_uses_of_rows_must_be_two_numbers_each(tmp_path):
    table = _Table(_values(10), 1)
    table.pieces = [(0, 10, 0, 1, 10, 1)]
    with pytest.raises(tf.errors.InvalidArgumentError, match="uses of the rows of"):
        table.begin(tmp_path / "ckpt")


def test_reference_variables_are_written_as_they_were_and_restored(tmp_path):
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        rows = np.arange(12, dtype=np.float32).reshape(6, 2)
        table = tf.compat.v1.get_variable("t", initializer=rows, use_resource=False)
        other = tf.compat.v1.get_variable("o", initializer=-rows, use_resource=True)
        writer = checkpoint_ops.checkpoint_writer(shared_name="of_references")
        groups = [[other.handle], [table]]
        layout = [(0, 6, 0, 1, 6), (1, 6, 0, 1, 6)], ["o", "t"]
        prefix = str(tmp_path / "a")
        with pytest.raises(ValueError, match="must come after the others"):
            checkpoint_ops.ref_checkpoint_restore([prefix], groups[::-1], *layout)
        saved = [table.read_value()[:1]], ["first"]
        begin = _ref_begin(
            *(writer, prefix, (groups, *layout)), tensors=saved, max_bytes_per_sec=100.0
        )
        write = checkpoint_ops.checkpoint_write(writer)
        keep = checkpoint_ops.ref_checkpoint_keep(table, [5])
        with tf.control_dependencies([keep]):
            overwrite = tf.compat.v1.scatter_update(table, [5], [[70.0, 80.0]])
        restore = checkpoint_ops.ref_checkpoint_restore([prefix], groups, *layout)
        fresh = tf.compat.v1.Variable(rows, use_resource=False, collections=[])
        restore_fresh = checkpoint_ops.ref_checkpoint_restore(
            [prefix], [[fresh]], layout[0][:1], ["t"]
        )
        session.run(tf.compat.v1.global_variables_initializer())
        with pytest.raises(tf.errors.FailedPreconditionError, match="was begun"):
            session.run(write)
        session.run(begin)
        writing = in_thread(session.run, write)
        session.run(overwrite)
        progress = checkpoint_ops.checkpoint_progress(writer)
        until(lambda: session.run(progress).done)
        answer = session.run(progress)
        assert (answer.code, answer.kept_bytes > 0) == (0, True)
        writing.result(60)
        reader = tf.train.load_checkpoint(prefix)
        np.testing.assert_array_equal(reader.get_tensor("t"), rows)
        np.testing.assert_array_equal(reader.get_tensor("o"), -rows)
        np.testing.assert_array_equal(reader.get_tensor("first"), rows[:1])
        assert session.run(table)[5, 0] == 70
        assert session.run(restore) == 2 * rows.nbytes
        np.testing.assert_array_equal(session.run(table), rows)
        with pytest.raises(tf.errors.FailedPreconditionError, match="be initialized"):
            session.run(restore_fresh)


def _overwrite(table):
    """Overwrites all rows of a table and its slot."""
    for part in table.parts:
        checkpoint_ops.checkpoint_keep(part[0].handle)
        for array in part:
            array.assign(tf.zeros_like(array))


@pytest.mark.parametrize("refused", [None, "being written", "last one", "same pieces"])
def test_second_checkpoint_of_a_table_leaves_the_first_as_it_was(tmp_path, refused):
    table = _Table(_values(20_000), 1)
    table.begin(tmp_path / "first", max_kept_bytes=1 << 30, speed=5e5)
    second = _Table(table.values, 1)
    second.parts = table.parts
    if refused is None:
        second.begin(tmp_path / "second", max_kept_bytes=1 << 30, speed=5e5)
    elif refused == "being written":
        with pytest.raises(tf.errors.FailedPreconditionError, match=refused):
            table.begin(tmp_path / "second")
    elif refused == "last one":
        with pytest.raises(tf.errors.FailedPreconditionError, match=refused):
            second.begin(tmp_path / "second", token="b", base="a")
    else:
        second.pieces = []
        with pytest.raises(tf.errors.InvalidArgumentError, match="pieces"):
            second.begin(tmp_path / "second")
    _overwrite(table)
    assert not checkpoint_ops.checkpoint_progress(table.writer)[0]
    for one in (table, second) if refused is None else (table,):
        _, _, kept = _wait(one.writer)
        assert kept > 0
    for path in tmp_path.glob("*.index"):
        stored = tf.train.load_checkpoint(str(path.with_suffix(""))).get_tensor("table")
        np.testing.assert_array_equal(stored, table.values)
    assert not table.read().any()


def test_memory_of_kept_rows_is_within_its_bound(tmp_path):
    """This also holds for narrow rows, whose numbers take as much memory as they do."""
    bound = 32 << 20
    table = _Table(_values(6_000_000, width=1), 1)
    table.begin(tmp_path / "ckpt", max_kept_bytes=bound, speed=1e6)
    before = process_threads.resident()
    (part,) = table.parts
    keeping = in_thread(checkpoint_ops.checkpoint_keep, part[0].handle)
    progress = checkpoint_ops.checkpoint_progress
    until(lambda: progress(table.writer).kept_bytes >= int(0.9 * bound))
    most = process_threads.resident()
    checkpoint_ops.checkpoint_cancel(table.writer)
    keeping.result(60)
    assert most - before < 1.1 * bound + (8 << 20)  # including a chunk of the writer


def test_an_update_goes_on_where_a_variable_got_another_shape(tmp_path):
    variable = tf.Variable(tf.ones([50_000, 3]), shape=[None, 3])
    writer, layout = _writer(), ([[variable]], [(0, 50_000, 0, 1, 50_000)], ["table"])
    _begin(writer, tmp_path / "ckpt", *layout, max_bytes_per_sec=1e4)
    variable.assign(tf.ones([7, 3]))
    checkpoint_ops.checkpoint_keep(variable.handle, [3])
    ended = _ended(writer)
    assert ended.code == tf.errors.FAILED_PRECONDITION
    assert b"got another shape" in ended.message.numpy()


def test_cancelling_forgets_what_rows_are_compared_with(tmp_path):
    table = _Table(_values(10), 1)
    table.write(tmp_path / "a", token="a")
    checkpoint_ops.checkpoint_cancel(table.writer)
    with pytest.raises(tf.errors.FailedPreconditionError, match=r"'a'.*last one.*''"):
        table.begin(tmp_path / "b", token="b", base="a")


def test_owner_that_comes_later_has_others_forget_the_table(tmp_path):
    """Two writers of one owner do not disturb each other; nor do other tables."""
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        tables = [
            tf.compat.v1.get_variable(name, [10, 2], use_resource=False)
            for name in ("t", "u")
        ]
        session.run(tf.compat.v1.global_variables_initializer())

        def write(number, owner, token, base="", table=tables[0]):
            writer = checkpoint_ops.checkpoint_writer(shared_name=f"owner_{number}")
            layout = [[table]], [(0, 10, 0, 1, 10)], [table.op.name]
            begin = _ref_begin(
                writer, tmp_path / token, layout, token, base, owner=owner
            )
            session.run(begin)
            session.run(checkpoint_ops.checkpoint_write(writer))

        write(1, "dead", "a")
        write(2, "dead", "b")
        write(1, "dead", "c", base="a")
        write(3, "dead", "other", table=tables[1])
        write(4, "living", "d")
        for number, base in ((1, "c"), (2, "b")):
            with pytest.raises(tf.errors.FailedPreconditionError, match="last one"):
                write(number, "dead", "e", base=base)
        write(3, "dead", "f", base="other", table=tables[1])


def test_thread_whose_files_hang_is_waited_for_until_a_deadline(tmp_path):
    table = _Table(_values(1000), 1)
    table.begin(tmp_path / "ckpt", speed=100.0, patience_secs=0.2)
    progress = checkpoint_ops.checkpoint_progress
    until(lambda: progress(table.writer).bytes)
    with _hanging("tfs_checkpoint"):
        with pytest.raises(tf.errors.DeadlineExceededError, match="do not answer"):
            checkpoint_ops.checkpoint_cancel(table.writer)
        with pytest.raises(tf.errors.FailedPreconditionError, match="being written"):
            table.begin(tmp_path / "other")
    # The thread has been told to end, which takes a busy machine a while.
    until(lambda: progress(table.writer).done)
    checkpoint_ops.checkpoint_cancel(table.writer)
    table.write(tmp_path / "other")


@contextlib.contextmanager
def _hanging(name):
    """Makes the thread of this name hang, in a signal handler that waits for another.

    It hangs as it would in a call of a file system.
    """
    libc = ctypes.CDLL(None)
    libc.signal.restype = ctypes.c_void_p
    libc.signal(signal.SIGUSR1, ctypes.cast(libc.pause, ctypes.c_void_p))
    libc.signal(signal.SIGUSR2, ctypes.cast(libc.getpid, ctypes.c_void_p))
    hanging = threads_named(name)  # Threads that it has started have its name, too.
    assert hanging
    try:
        for thread in hanging:
            libc.tgkill(os.getpid(), thread, signal.SIGUSR1)
        # One that was woken before it sleeps there would go on to do so.
        until(
            lambda: {*threads_named(name)} <= {*dict(asleep_in_handler(signal.SIGUSR1))}
        )
        yield
    finally:
        for thread in hanging:
            libc.tgkill(os.getpid(), thread, signal.SIGUSR2)


def test_closing_a_session_ends_the_writing_before_its_variables_go(tmp_path):
    with tf.Graph().as_default():
        rows = np.zeros([1000, 2], np.float32)
        table = tf.compat.v1.get_variable("t", initializer=rows, use_resource=False)
        writer = checkpoint_ops.checkpoint_writer(shared_name="of_a_session")
        layout = [[table]], [(0, 1000, 0, 1, 1000)], ["t"]
        begin = _ref_begin(writer, tmp_path / "a", layout, max_bytes_per_sec=100.0)
        write = checkpoint_ops.checkpoint_write(writer)
        progress = checkpoint_ops.checkpoint_progress(writer)
        session = tf.compat.v1.Session()
        session.run(tf.compat.v1.global_variables_initializer())
        session.run(begin)
        writing = in_thread(session.run, write)
        until(lambda: session.run(progress).bytes)
        session.close()
        assert isinstance(writing.exception(60), tf.errors.CancelledError)


@pytest.mark.parametrize(
    ("stored_rows", "message"),
    [
        ([7, 7, 7], r"stored_rows must be a vector of none, or .* 2 pieces.* \[3\]"),
        ([7, 0], r"stored_rows\[1\] must be positive, but is 0"),
        ([9, 9], r"table is float\[4,2,3\] in the checkpoint.* table of 9 rows"),
    ],
)
def test_stored_rows_must_be_those_of_the_pieces(stored_rows, message, tmp_path):
    table = _Table(_values(7), 2)
    table.write(tmp_path / "saved")
    before = table.read()
    with pytest.raises(tf.errors.InvalidArgumentError, match=message):
        checkpoint_ops.checkpoint_restore(
            [str(tmp_path / "saved")],
            *(table.groups, table.pieces, table.names, [], [], stored_rows),
        )
    np.testing.assert_array_equal(table.read(), before)
