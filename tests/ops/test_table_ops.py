"""Tables that grow, by their ops, compared with a twin that is a dict."""

import dataclasses
import threading

import dynamic_table as twin
import numpy as np
import pytest
import tensorflow as tf
from table_parts import TablePart
from waiting import in_thread

import tf_syncrep as tfs
from tf_syncrep.python.embedding import compat
from tf_syncrep.python.ops import embedding_ops, table_ops

WIDTH = 5
INT64 = np.iinfo(np.int64)


class Part(TablePart):
    """A part with a slot, and the twins of its tables."""

    def __init__(self, tables, width=WIDTH, dtype=tf.float32):
        indexed, rows = [], 0
        for table in tables:
            own = {
                field.name: getattr(table, field.name)
                for field in dataclasses.fields(table)
                if field.name not in ("evict", "unused_for")
            }
            indexed.append(table_ops.IndexedTable(first_row=rows, **own))
            rows += table.capacity
        super().__init__(indexed, width, dtype, num_slots=1)
        (self.slot,) = self.slots
        self.tables = tables
        self.twins = [twin.TableTwin(table, width) for table in tables]

    def request(self, keys_of_tables):
        sizes = [len(keys) for keys in keys_of_tables]
        flat = [key for keys in keys_of_tables for key in keys]
        return tf.constant(sizes + flat, tf.int64)

    def check_find(self, keys_of_tables, insert):
        """Looks keys up here and in the twins; returns the rows."""
        rows, values = self.find(self.request(keys_of_tables), insert)
        begin = 0
        for table, keys in zip(self.twins, keys_of_tables, strict=True):
            own = slice(begin, begin + len(keys))
            expected = table.find(keys, insert, rows[own].numpy())
            expected = tf.cast(expected, self.dtype).numpy()
            np.testing.assert_array_equal(values[own], expected)
            begin += len(keys)
        return rows

    def maintain(self, step, slot_initial=0.0):
        evict = [table.evict for table in self.tables]
        unused_for = [table.unused_for for table in self.tables]
        return super().maintain(step, evict, unused_for, slot_initial)

    def check_maintain(self, step):
        expected = [len(table.maintain(step)) for table in self.twins]
        np.testing.assert_array_equal(self.maintain(step), expected)

    def check_release(self, keys, table=0, rests=True):
        expected = self.twins[table].release(keys, rests)
        assert self.release(keys, table, rests).numpy() == expected

    def stats(self, table=0):
        return table_ops.TableStats(*super().stats(table).numpy())

    def import_(self, keys, last_uses, counts, table=0):
        return table_ops.table_import(self, table, keys, last_uses, counts)

    def check(self):
        """Compares everything with the twins."""
        keys, uses = self.keys.numpy(), self.uses.numpy()
        begin = 0
        for number, table in enumerate(self.twins):
            exported = self.export(number)
            expected = sorted(table.rows.items())
            np.testing.assert_array_equal(exported.keys, [key for key, _ in expected])
            for name, field in (
                ("rows", "number"), ("last_uses", "last_use"), ("counts", "count")
            ):  # fmt: skip
                np.testing.assert_array_equal(
                    getattr(exported, name),
                    [getattr(row, field) for _, row in expected],
                )
            for key, row in expected:
                assert keys[row.number] == key
                np.testing.assert_array_equal(
                    uses[row.number], [row.last_use, row.count]
                )
            own = slice(begin, begin + table.table.capacity)
            assert np.sum(uses[own, 1] > 0) == len(expected)
            resting = np.flatnonzero(uses[own, 0] == table_ops.RESTS) + begin
            assert set(resting) == table.resting | table.released
            assert not keys[resting].any()
            stats = self.stats(number)
            assert stats.rows == len(expected)
            assert stats.capacity == table.table.capacity
            for name, value in table.stats.items():
                assert getattr(stats, name) == value, name
            begin += table.table.capacity


def normal(name="items", capacity=100, **options):
    options = {"initializer": "normal", "numbers": (0.5, 0.25), **options}
    return twin.Table(name, capacity, **options)


def some_keys(draw, size):
    """Distinct keys: mostly small ones, and those at the ends of the range."""
    keys = set(draw.integers(-50, 50, size).tolist())
    return sorted(keys | set(draw.choice([INT64.min, INT64.max, 1 << 40], 1).tolist()))


# --- Initial vectors ---


def test_philox_of_the_twin_is_the_published_one():
    assert twin.philox((0, 0, 0, 0), 0) == (
        0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8
    )  # fmt: skip
    ones = 0xFFFFFFFF
    assert twin.philox((ones,) * 4, ones << 32 | ones) == (
        0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD
    )  # fmt: skip


@pytest.mark.parametrize("dtype", [tf.half, tf.bfloat16, tf.float32, tf.float64])
@pytest.mark.parametrize(
    ("initializer", "numbers"),
    [
        ("zeros", (3.0, 0.0)),
        ("constant", (0.1, 0.0)),
        ("uniform", (-0.3, 0.7)),
        ("normal", (0.1, 1e-3)),
        ("truncated_normal", (0.1, 0.7)),
    ],
)
def test_initial_vectors_are_those_of_the_twin(initializer, numbers, dtype):
    table = normal(initializer=initializer, numbers=numbers, seed=-3, capacity=300)
    part = Part([table], 7, dtype)
    keys = [INT64.min, *range(-100, 100), 1 << 33, INT64.max]
    _, values = part.find(part.request([keys]), True)
    expected = np.array([table.initial_vector(key, 7) for key in keys])
    if dtype == tf.float64:
        np.testing.assert_allclose(values, expected, rtol=1e-14)
        return
    # NumPy rounds once to half, and to bfloat16 by way of float.
    rounded = tf.cast(expected, dtype).numpy()
    if dtype == tf.half:
        rounded = expected.astype(np.float16)
    np.testing.assert_array_equal(values, rounded)


def test_initial_vectors_are_distributed_as_they_should():
    for initializer, numbers, mean, stddev, bounds in (
        ("uniform", (-1.0, 3.0), 1.0, 4 / 12**0.5, (-1, 3)),
        ("normal", (2.0, 0.5), 2.0, 0.5, (-1, 5)),
        ("truncated_normal", (2.0, 0.5), 2.0, 0.5 * 0.8796, (1, 3)),
    ):
        part = Part([normal(initializer=initializer, numbers=numbers, capacity=4000)])
        _, values = part.find(part.request([range(4000)]), True)
        assert abs(np.mean(values) - mean) < 5 * stddev / 20000**0.5
        assert abs(np.std(values) - stddev) < 0.02 * stddev
        assert bounds[0] <= np.min(values)
        assert np.max(values) <= bounds[1]
        correlation = np.corrcoef(values.numpy().T) - np.eye(WIDTH)
        assert np.abs(correlation).max() < 0.1


def test_initial_vectors_depend_on_seed_and_name():
    values = []
    for options in ({}, {"seed": 1}, {"name": "others"}, {"seed": 0}):
        part = Part([normal(**options)])
        values.append(part.find(part.request([[1, 2]]), True)[1].numpy())
    np.testing.assert_array_equal(values[0], values[3])
    assert not np.intersect1d(values[0], values[1]).size
    assert not np.intersect1d(values[0], values[2]).size


# --- Requests ---


@pytest.mark.parametrize("num_shards", [1, 3])
def test_requests_have_each_key_once_at_its_owner(num_shards):
    draw = np.random.default_rng(0)
    ids = [
        draw.integers(-20, 20, [7, 3]).astype(np.int32),
        draw.choice([INT64.min, -1, 0, 1, INT64.max], [30]),
        draw.integers(INT64.min, INT64.max, [5]),
        np.zeros([0, 2], np.int64),
    ]
    tables = [1, 0, 1, 0]
    requests, places = table_ops.table_requests(
        ids, table_of_feature=tables, num_tables=3, num_shards=num_shards
    )
    found = []
    for shard, request in enumerate(requests):
        sizes, keys = np.split(request.numpy(), [3])
        assert sizes.sum() == len(keys)
        for table, own in enumerate(np.split(keys, np.cumsum(sizes)[:-1])):
            assert all(twin.owner(int(key), num_shards) == shard for key in own)
            found += [(table, key) for key in own]
    expected = {
        (table, key) for table, own in zip(tables, ids, strict=True) for key in own.flat
    }
    assert set(found) == expected
    assert len(found) == len(expected)
    for table, own, place in zip(tables, ids, places, strict=True):
        assert place.shape == own.shape
        for key, at in zip(own.flat, place.numpy().flat, strict=True):
            assert found[at] == (table, key)


def test_owners_are_the_documented_ones():
    assert [twin.hash_key(key) for key in (0, 1, -1)] == [
        0xE220A8397B1DCDAF, 0x910A2DEC89025CC1, 0xE4D971771B652C20
    ]  # fmt: skip
    keys = [0, 1, -1, INT64.min, INT64.max, 12345]
    for num_shards in (1, 3, 8):
        expected = [twin.owner(key, num_shards) for key in keys]
        owners = table_ops.key_owner(tf.constant(keys, tf.int64), num_shards)
        np.testing.assert_array_equal(owners, expected)


# --- Lookups ---


@pytest.mark.parametrize("seed", range(6))
def test_lookups_releases_and_maintenance_do_what_the_twin_does(seed):
    draw = np.random.default_rng(seed)
    part = Part(
        [
            normal(capacity=60, evict="least_recent"),
            normal("few", 20, initializer="uniform", min_count=2, unused_for=3),
            normal("full", 10, seed=5),
            normal("often", 40, evict="least_frequent", unused_for=20, min_count=3),
        ]
    )
    late = []
    for step in range(40):
        keys = [some_keys(draw, draw.integers(0, 30)) for _ in part.tables]
        part.check_find(keys, insert=False)
        rows = part.check_find(keys, insert=True)
        late.append((keys, rows))
        # The keys are of this step, or of one a while ago.
        keys, rows = late[draw.integers(max(0, step - 5), step + 1)]
        gradient = draw.normal(size=[len(rows), WIDTH]).astype(np.float32)
        values, kept = part.gradient(part.request(keys), rows, gradient)
        expected, begin = {}, 0
        for table, own in zip(part.twins, keys, strict=True):
            at = slice(begin, begin + len(own))
            expected |= table.gradient(own, rows[at].numpy(), gradient[at])
            begin += len(own)
        assert kept.numpy().tolist() == list(expected)
        for row, value in zip(kept.numpy(), values.numpy(), strict=True):
            np.testing.assert_array_equal(value, expected[row])
        if step % 3 == 0:
            part.check_maintain(step)
        if step % 4 == 0:
            table = draw.integers(len(keys))
            part.check_release(keys[table], table, rests=step % 8 == 0)
        part.check()
    assert all(table.stats["admitted"] for table in part.twins)
    assert part.stats(2).refused
    assert part.stats(0).evicted
    assert part.stats(1).evicted
    assert part.stats(3).evicted
    assert sum(x.stats["dropped"] for x in part.twins)


@pytest.mark.parametrize("in_graph", [False, True])
@pytest.mark.parametrize("num_shards", [1, 3])
def test_gradients_flow_to_the_rows_of_the_keys(num_shards, in_graph):
    table = normal(capacity=50)
    parts = [Part([table, normal("others")]) for _ in range(num_shards)]
    ids = [tf.constant([[3, -4], [3, 7]]), tf.constant([1 << 50, 3], tf.int64)]
    factors = [
        np.arange(10, dtype=np.float32).reshape(2, 5) + 1,
        np.ones([2, 5], np.float32),
    ]

    def step():
        requests, places = table_ops.table_requests(
            ids, table_of_feature=[0, 1], num_tables=2, num_shards=num_shards
        )
        with tf.GradientTape() as tape:
            for part in parts:
                compat.tell_tapes(part.vectors)
            found = [
                part.find(request, True)[1]
                for part, request in zip(parts, requests, strict=True)
            ]
            results = embedding_ops.embedding_combine(found, places, ["sum", None])
            pairs = zip(results, factors, strict=True)
            loss = tf.add_n([tf.reduce_sum(x * y) for x, y in pairs])
        gradients = tape.gradient(loss, [part.vectors for part in parts])
        if in_graph:
            assert all(embedding_ops.are_embedding_rows(x.indices) for x in gradients)
        return results, gradients

    results, gradients = (tf.function(step) if in_graph else step)()
    vectors = {key: table.initial_vector(key, WIDTH) for key in (3, -4, 7)}
    np.testing.assert_allclose(
        results[0], [vectors[3] + vectors[-4], vectors[3] + vectors[7]], rtol=1e-6
    )
    by_key = {}
    for part, gradient in zip(parts, gradients, strict=True):
        assert gradient.dense_shape.numpy().tolist() == [150, WIDTH]
        keys = part.keys.numpy()[gradient.indices]
        by_key |= {
            (row >= 50, key): value
            for row, key, value in zip(
                gradient.indices.numpy(), keys, gradient.values.numpy(), strict=True
            )
        }
    np.testing.assert_array_equal(by_key[False, 3], factors[0][0] + factors[0][1])
    np.testing.assert_array_equal(by_key[False, 7], factors[0][1])
    np.testing.assert_array_equal(by_key[True, 1 << 50], np.ones(WIDTH))
    assert len(by_key) == 5


def test_a_key_that_a_request_has_twice_is_clipped_as_the_sum_of_its_gradients():
    part = Part([normal()])
    part.find(part.request([[3, 7]]), True)
    before = part.vectors.numpy()
    optimizer = tfs.keras.SGD(1.0, clipnorm=1.0)
    optimizer.build([part.vectors])

    @tf.function
    def step(request):
        with tf.GradientTape() as tape:
            compat.tell_tapes(part.vectors)
            _, values = part.find(request, True)
            loss = tf.reduce_sum(values)
        optimizer.apply_gradients([(tape.gradient(loss, part.vectors), part.vectors)])

    step(part.request([[3, 7, 3]]))
    moved = before - part.vectors.numpy()
    np.testing.assert_allclose(np.linalg.norm(moved), 1, rtol=1e-5)
    np.testing.assert_allclose(moved[0], 2 * moved[1], rtol=1e-5)


@pytest.mark.parametrize("transfer_dtype", [tf.half, tf.bfloat16])
def test_vectors_and_gradients_travel_in_fewer_bits(transfer_dtype):
    part = Part([normal()])
    request = part.request([[5, 6]])
    rows, values = part.find(request, True, transfer_dtype)
    expected = tf.cast(part.find(request, False)[1], transfer_dtype)
    assert values.dtype == transfer_dtype
    np.testing.assert_array_equal(values, expected)
    gradient, kept = part.gradient(request, rows, tf.ones_like(values))
    assert gradient.dtype == tf.float32
    assert kept.numpy().tolist() == [0, 1]


def test_lookups_of_nothing_and_without_a_key_find_nothing():
    part = Part([normal(), normal("others")])
    rows, values = part.find(part.request([[], []]), True)
    assert rows.shape == (0,)
    assert values.shape == (0, WIDTH)
    values, kept = part.gradient(part.request([[], []]), rows, values)
    assert values.shape == (0, WIDTH)
    assert kept.shape == (0,)
    rows, values = part.find(part.request([[1], []]), False)
    assert rows.numpy() == [-1]
    assert not values.numpy().any()


def test_ops_work_in_a_session():
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        part = Part([normal()])
        rows, values = part.find(part.request([[3, 8]]), True)
        session.run(tf.compat.v1.global_variables_initializer())
        # A session gets the handle anew in each run, and so an index that is made anew.
        found = [session.run([rows, values]) for _ in range(2)]
        np.testing.assert_array_equal(found[0][1], found[1][1])
        assert session.run(part.uses)[:2].tolist() == [[0, 2], [0, 2]]


def test_counts_saturate():
    part = Part([normal(capacity=3)])
    part.keys.assign([7, 0, 0])
    part.uses.assign([[0, 2**31 - 2], [0, 0], [0, 0]])
    for _ in range(3):
        part.find(part.request([[7]]), True)
    assert part.uses[0].numpy().tolist() == [0, 2**31 - 1]


# --- Maintenance ---


@pytest.mark.parametrize("dtype", [tf.half, tf.bfloat16, tf.float32, tf.float64])
def test_rows_rest_and_have_initial_slots_when_they_are_handed_out_again(dtype):
    part = Part([normal(capacity=2, unused_for=1)], dtype=dtype)
    first = part.find(part.request([[10, 11]]), True)[0]
    part.slot.assign(tf.ones_like(part.slot))
    part.maintain(3)
    assert part.maintain(5, 0.25).numpy() == [2]
    assert part.find(part.request([[12]]), True)[0].numpy() == [-1]
    assert part.stats().refused == 1
    assert part.slot.numpy().all()
    assert part.maintain(6, 0.25).numpy() == [0]
    np.testing.assert_array_equal(part.slot, tf.fill([2, WIDTH], tf.cast(0.25, dtype)))
    rows, values = part.find(part.request([[10, 12]]), True)
    assert set(rows.numpy()) == set(first.numpy())
    expected = [part.tables[0].initial_vector(key, WIDTH) for key in (10, 12)]
    np.testing.assert_array_equal(values, tf.cast(np.array(expected), dtype))


def test_rows_that_are_released_to_be_free_have_initial_slots():
    part = Part([normal(capacity=4), normal("others")])
    part.check_find([[1, 2, 3, 4], [7]], insert=True)
    part.check_release([1])
    part.maintain(1)
    part.check_release([2])
    part.slot.assign(tf.ones_like(part.slot))
    assert part.release([3], rests=False, slot_initial=0.25).numpy() == 1
    slots = np.ones([part.slot.shape[0], WIDTH])
    slots[:3] = 0.25
    np.testing.assert_array_equal(part.slot, slots)
    rows, _ = part.find(part.request([[5, 6, 8, 9], []]), True)
    assert sorted(rows.numpy()) == [-1, 0, 1, 2]


def test_keys_that_others_get_meanwhile_stay():
    part = Part([normal(capacity=50), normal("others", capacity=5000)])
    is_over = threading.Event()

    def release():
        while not is_over.is_set():
            part.import_([1, 2], [1, 1], [1, 1])
            part.release([1, 2], rests=False)

    releases = in_thread(release)
    for key in range(5000):
        part.find(part.request([[], [key]]), True)
    is_over.set()
    releases.result(60)
    np.testing.assert_array_equal(part.export(1).keys, np.arange(5000))


def test_last_uses_of_an_earlier_state_are_moved_when_the_clock_was_set_back():
    for sets_back in (False, True):
        part = Part([normal(unused_for=10)])
        part.maintain(100)
        part.find(part.request([[1, 2, 3]]), True)
        part.import_([1, 2], [20, 15], [1, 1])
        part.release([3], sets_back=sets_back)
        part.maintain(101)
        uses = part.export().last_uses.numpy().tolist()
        assert uses == ([101, 96] if sets_back else [])


def test_a_row_that_rests_does_so_after_a_restore():
    part = Part([normal(capacity=2, unused_for=1)])
    part.find(part.request([[10, 11]]), True)
    part.maintain(3)
    part.maintain(5)
    other = Part([normal(capacity=2, unused_for=1)])
    for of, value in ((other.keys, part.keys), (other.uses, part.uses)):
        of.assign(value)
    other.slot.assign(tf.ones_like(other.slot))
    assert other.find(other.request([[12]]), True)[0].numpy() == [-1]
    other.maintain(6)
    assert not other.slot.numpy().any()
    assert other.find(other.request([[12]]), True)[0].numpy() >= 0


@pytest.mark.parametrize("restored", [False, True])
def test_a_row_goes_when_it_was_unused_for_more_steps_than_that(restored):
    part = Part([normal("all", 9, unused_for=10), normal("never", 9)])

    def keys_after(step):
        nonlocal part
        if restored:
            old, part = part, Part(part.tables)
            for of in ("keys", "uses"):
                getattr(part, of).assign(getattr(old, of))
        part.maintain(step)
        return part.export().keys.numpy().tolist()

    part.find(part.request([[1, 2, 3], [5]]), True)
    assert keys_after(100) == [1, 2, 3]  # Perhaps they were used in step 100.
    part.find(part.request([[2], []]), True)
    assert keys_after(110) == [1, 2, 3]
    part.find(part.request([[], [5]]), True)  # Step 111.
    assert keys_after(111) == [2]
    # After step 111 it was unused for one step more.
    part.find(part.request([[3], []]), True)
    assert keys_after(120) == [2, 3]
    part.find(part.request([[3], []]), True)
    assert keys_after(121) == [3]
    assert keys_after(1000) == ([3] if restored else [])
    assert part.export(1).keys.numpy().tolist() == [5]


@pytest.mark.parametrize("how", ["assigned", "imported", "in_use"])
def test_rows_of_a_clock_that_was_set_back_count_as_used_now(how):
    options = {"initializer": "zeros", "capacity": 20}
    tables = [
        normal("unused", unused_for=10, **options),
        normal("recent", evict="least_recent", **options),
    ]
    part, keys = Part(tables), list(range(18))
    part.maintain(10**6 - 1)
    part.find(part.request([keys, keys]), True)
    if how == "assigned":
        old, part = part, Part(tables)
        part.keys.assign(old.keys)
        part.uses.assign(old.uses)
    elif how == "imported":
        old, part = part, Part(tables)
        for table in range(2):
            part.import_(keys, [10**6] * 18, [1] * 18, table)
    part.maintain(99)
    assert set(part.uses.numpy()[:, 0]) == {0, 99}
    for step in range(104, 120, 5):
        # The last ones of the four find no place before another key has gone.
        for _ in range(5):
            part.find(part.request([[0], [500, 501, 502, 503]]), True)
        part.maintain(step)
    assert part.export(0).keys.numpy().tolist() == [0]
    assert {500, 501, 502, 503} < set(part.export(1).keys.numpy())


@pytest.mark.parametrize("go_on", [True, False])
def test_rows_of_an_earlier_state_grow_older_from_then_on(go_on):
    part = Part([normal(unused_for=10), normal("never")])
    part.find(part.request([[1, 2, 3], [5]]), True)
    part.maintain(100)
    part.find(part.request([[2], []]), True)
    part.maintain(104)
    part.find(part.request([[3], []]), True)
    uses = part.uses.read_value()
    for step in (108, 150):
        part.find(part.request([[1, 2, 3], [5]]), True)
        part.maintain(step)
    part.uses.assign(uses)
    # Either steps go on, or they were set back, too.
    now = 155 if go_on else 105
    part.maintain(now)
    assert part.export().last_uses.numpy().tolist() == [now - 5, now - 1, now]
    assert part.export(1).last_uses.numpy().tolist() == [0]
    for later, left in ((5, [1, 2, 3]), (6, [2, 3]), (10, [3]), (11, [])):
        part.maintain(now + later)
        assert part.export().keys.numpy().tolist() == left


def test_rows_are_used_at_the_last_use_of_imported_rows():
    part = Part([normal(evict="least_recent")])
    part.import_([1, 2], [70, 50], [1, 1])
    part.find(part.request([[2, 3]]), True)
    assert part.export().last_uses.numpy().tolist() == [70, 70, 70]
    # These had not been through a maintenance either, where they come from.
    other = Part([normal(unused_for=10)])
    other.import_([1, 2], [70, 50], [1, 1])
    other.maintain(79)
    assert other.export().keys.numpy().tolist() == [1]
    other.maintain(89)
    assert other.export().keys.numpy().tolist() == [1]
    other.maintain(90)
    assert not other.export().keys.numpy().tolist()


def test_imported_rows_without_a_last_use_keep_theirs_or_are_used_now():
    part = Part([normal(unused_for=10)])
    part.import_([1, 2], [-1, -1], [1, 1])
    part.maintain(99)
    assert part.export().last_uses.numpy().tolist() == [99, 99]
    part.find(part.request([[2]]), True)
    part.import_([1, 2, 3], [-1, -1, -1], [9, 9, 9])
    exported = part.export()
    assert exported.last_uses.numpy().tolist() == [99, 100, 100]
    assert exported.counts.numpy().tolist() == [1, 2, 1]
    # Now is the time of the latest that comes with it.
    part.import_([4, 5, 6], [-1, 200, -1], [1, 7, 1])
    assert part.export().last_uses.numpy().tolist() == [99, 100, 100, 200, 200, 200]
    part.maintain(205)
    assert part.export().keys.numpy().tolist() == [4, 5, 6]


def test_slots_of_freed_rows_have_the_initial_value_to_the_last_bit():
    part = Part([normal(capacity=2, unused_for=1)], dtype=tf.float64)
    part.find(part.request([[10, 11]]), True)
    for step in (3, 5, 6):
        part.maintain(step, 0.1)
    np.testing.assert_array_equal(part.slot, np.full([2, WIDTH], 0.1))


# --- Restores, exports, imports ---


@pytest.mark.parametrize("how", ["both", "keys_again"])
def test_an_index_follows_variables_that_are_assigned(how):
    part, other = Part([normal()]), Part([normal()])
    part.maintain(3)
    part.find(part.request([[5, 9, -7]]), True)
    other.find(other.request([[1, 2]]), True)
    other.keys.assign(part.keys)
    other.uses.assign(part.uses)
    other.vectors.assign(part.vectors)
    if how == "keys_again":
        other.keys.assign(other.keys.read_value())
    keys = [[-7, 1, 2, 5, 9]]
    rows, values = other.find(other.request(keys), False)
    expected_rows, expected = part.find(part.request(keys), False)
    np.testing.assert_array_equal(rows, expected_rows)
    np.testing.assert_array_equal(values, expected)
    assert other.stats().rows == 3
    # The clock continues from its value.
    rows, _ = other.find(other.request([[100]]), True)
    assert other.uses[rows[0]].numpy().tolist() == [4, 1]
    assert rows.numpy() == [3]


def test_after_a_lookup_for_evaluation_vectors_are_read_without_a_copy():
    part = Part([normal()])
    before = np.asarray(part.vectors.read_value())
    part.check_find([[1]], False)
    assert np.shares_memory(before, np.asarray(part.vectors.read_value()))


def test_what_a_saver_has_read_stays_as_it_was_and_the_index_goes_on():
    part = Part([normal()])
    part.check_find([[5, 9, -7]], True)
    columns = (part.keys, part.uses)
    # As TensorFlow's saver does it, which shares the buffers.
    tensors = [column.read_value_no_copy() for column in columns]
    before = [column.numpy() for column in columns]
    part.check_find([[1, 9]], True)
    for tensor, value in zip(tensors, before, strict=True):
        np.testing.assert_array_equal(tensor, value)
    part.check()


def test_columns_of_no_table_are_refused_and_can_be_repaired():
    part = Part([normal(capacity=3)])
    part.keys.assign([4, 4, 0])
    part.uses.assign([[0, 1], [0, 1], [0, 0]])
    message = (
        "keys and uses must be those of a table: .* Received: row 1 of table items, "
        "the second one, with key 4, last use 0 and count 1"
    )
    for insert in (False, True):
        with pytest.raises(tf.errors.InvalidArgumentError, match=message):
            part.find(part.request([[4]]), insert)
    part.uses.assign([[0, 1], [0, -1], [0, 0]])
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"row 1 .* count -1"):
        part.export()
    part.uses.assign([[0, 1], [0, 0], [0, 0]])
    assert part.find(part.request([[4]]), False)[0].numpy() == [0]


def test_what_is_exported_can_be_imported():
    part = Part([normal("others"), normal()])
    part.maintain(7)
    part.check_find([[3], [-5, 1, 2**40]], True)
    part.find(part.request([[], [1]]), True)
    exported = part.export(1)
    assert exported.keys.numpy().tolist() == [-5, 1, 2**40]
    assert exported.last_uses.numpy().tolist() == [8, 8, 8]
    assert exported.counts.numpy().tolist() == [1, 2, 1]
    other = Part([normal("others"), normal(min_count=9)])
    other.import_([1, 100], [2, 3], [4, 5], 1)
    rows = other.import_(exported.keys, exported.last_uses, exported.counts, 1)
    again = other.export(1)
    assert again.keys.numpy().tolist() == [-5, 1, 100, 2**40]
    assert again.last_uses.numpy().tolist() == [8, 8, 3, 8]
    assert again.counts.numpy().tolist() == [1, 2, 5, 1]
    np.testing.assert_array_equal(rows, again.rows.numpy()[[0, 1, 3]])
    expected = [other.tables[1].initial_vector(key, WIDTH) for key in (-5, 1, 2**40)]
    np.testing.assert_array_equal(other.vectors.numpy()[rows], np.float32(expected))


def test_imported_keys_do_not_count_as_admitted():
    part = Part([normal()])
    part.import_([1, 2], [0, 0], [1, 1])
    assert part.stats()[:4] == (2, 100, 0, 0)
    part.find(part.request([[2, 3]]), True)
    assert part.stats()[:4] == (3, 100, 0, 1)


def test_an_import_that_does_not_fit_writes_nothing():
    part = Part([normal(capacity=3)])
    part.import_([1, 2], [0, 0], [1, 1])
    with pytest.raises(
        tf.errors.ResourceExhaustedError,
        match=r"the rows of table items must be enough for its keys. Received: 2 new "
        r"keys, where 1 of 3 rows are free",
    ):
        part.import_([1, 3, 4], [5, 5, 5], [5, 5, 5])
    assert part.export().counts.numpy().tolist() == [1, 1]
    part.import_([1, 3], [5, 5], [5, 5])
    assert part.export().keys.numpy().tolist() == [1, 2, 3]


# --- Errors ---


def error(part, call):
    """The error of a call that has changed nothing."""
    before = [x.numpy() for x in (part.vectors, part.keys, part.uses)]
    with pytest.raises(tf.errors.InvalidArgumentError) as caught:
        call(part)
    for was, variable in zip(before, (part.vectors, part.keys, part.uses), strict=True):
        np.testing.assert_array_equal(variable, was)
    return caught.value.message


def looked_up(*request):
    return lambda part: part.find(tf.constant(request, tf.int64), True)


def trained(rows, num_gradients=1):
    return lambda part: part.gradient(
        part.request([[5]]), tf.constant(rows), tf.ones([num_gradients, WIDTH])
    )


def imported(*columns):
    return lambda part: part.import_(*columns)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        *(
            (
                looked_up(size, 5),
                f"request[0] must say how many of 1 keys are of table 0, but is {size}",
            )
            for size in (2, -1)
        ),
        (looked_up(0, 5), "request must say of which tables its 1 keys are, but does"),
        (looked_up(), "request must be a vector that begins with the numbers of keys"),
        *(
            (
                trained([row]),
                "rows[0] must be a row of table items, in [0, 100), or -1, "
                f"but is {row}",
            )
            for row in (100, -2)
        ),
        (trained([1, 2]), "rows must be a vector of 1 elements, the keys of the"),
        (trained([1], 2), "gradient must be a matrix of 1 rows, the keys of the"),
        (lambda part: part.maintain(-1), "step must be in [0, 2^31), but is -1"),
        (lambda part: part.maintain(2**31), "step must be in [0, 2^31), but is 214748"),
        (lambda part: part.export(1), "table must be in [0, 1), but is 1"),
        (
            imported([1, 1], [0, 0], [1, 1]),
            "row_keys must be different keys. Received: 1 of table items more than",
        ),
        (
            imported([1], [-2], [1]),
            "last_uses must be at least -1 and counts at least 1. Received: last use "
            "-2 and count 1 of key 1 of table items",
        ),
        (imported([1], [0], [1, 2]), "counts must be a vector of 1 elements, as"),
        (lambda part: part.release([1], 1), "table must be in [0, 1), but is 1"),
        (lambda part: part.release([[1]]), "row_keys must be a vector, but has shape"),
    ],
)
def test_errors_name_argument_rule_and_value(call, message):
    assert message in error(Part([normal()]), call)


def test_a_gradient_is_not_copied_unless_rows_are_dropped():
    part = Part([normal()])
    request = part.request([[8, 9, 7]])
    rows, _ = part.find(request, True)
    gradient = tf.random.normal([3, WIDTH])
    memory = [np.asarray(memoryview(x)) for x in (gradient, rows)]
    values, kept = part.gradient(request, rows, gradient)
    assert np.shares_memory(memoryview(values), memory[0])
    np.testing.assert_array_equal(kept, rows)
    values, kept = part.gradient(request, tf.stack([rows[0], -1, rows[2]]), gradient)
    np.testing.assert_array_equal(kept, memory[1][[0, 2]])
    np.testing.assert_array_equal(values, memory[0][[0, 2]])


def test_variables_of_other_shapes_are_refused():
    other = Part([normal(capacity=99)])
    for name, shape in (
        ("keys", "[100]"),
        ("uses", "[100, 2]"),
        ("vectors", "[100, ."),
    ):
        mixed = Part([normal()])
        setattr(mixed, name, getattr(other, name))
        message = error(mixed, lambda part: part.find(part.request([[1]]), True))
        assert f"{name} must have shape {shape}" in message
    mixed = Part([normal()])
    mixed.keys = tf.Variable(tf.zeros([100]))
    message = error(mixed, lambda part: part.find(part.request([[1]]), True))
    assert "keys must be a variable of dtype int64, but has dtype float" in message


@pytest.mark.parametrize(
    ("tables", "message"),
    [
        ([("a", 0, 0)], "table a with 0 rows from row 0"),
        ([("a", 1, 5)], "table a with 5 rows from row 1, where row 0 is the next"),
        ([("a", 0, 5), ("b", 6, 1)], "table b with 1 rows from row 6, where row 5 is"),
        ([("a", 0, 1 << 31)], "fewer than 2^31 rows together"),
        (
            [("a", 0, 5, 0)],
            "min_counts must be from 1 to 255, but that of table a is 0",
        ),
        ([("a", 0, 5, 256)], "min_counts must be from 1 to 255"),
        (
            [("a", 0, 5, 1, 0, "normal", (float("nan"), 1.0))],
            "the numbers of the initializer of table a must be finite, but are nan and",
        ),
        ([("a", 0, 5, 1, 0, "other")], "other"),
    ],
)
def test_bad_tables_are_refused(tables, message):
    with pytest.raises((tf.errors.InvalidArgumentError, ValueError)) as caught:
        table_ops.table_index([table_ops.IndexedTable(*x) for x in tables])
    assert message in str(caught.value)


def test_a_shared_name_is_of_one_index():
    table = table_ops.IndexedTable("a", 0, 5)
    first = table_ops.table_index([table], shared_name="shared")
    second = table_ops.table_index([table], shared_name="shared")
    del first
    assert table_ops.table_stats(second).shape == (1, 8)
    with pytest.raises(
        tf.errors.InvalidArgumentError,
        match=r"The table index shared exists with a: rows 0 to 5.* rows 0 to 6",
    ):
        table_ops.table_index([table._replace(capacity=6)], shared_name="shared")


def test_zeros_beyond_memory_are_refused():
    with pytest.raises(
        tf.errors.ResourceExhaustedError, match=r"There is no memory for zeros of shape"
    ):
        table_ops.table_zeros([1 << 40, 64], tf.float32)
    for too_many in (1 << 61, (1 << 61) + 1):  # whose bytes no int64 counts
        with pytest.raises(tf.errors.ResourceExhaustedError, match="of shape"):
            table_ops.table_zeros([too_many], tf.int64)
    assert table_ops.table_zeros([0, 3], tf.half).shape == (0, 3)
