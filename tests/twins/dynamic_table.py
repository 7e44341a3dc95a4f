"""Tables that grow, as dicts, with vectors in float64: twins of `table_ops`.

Python's 64-bit numbers are cut off as the library's are.
"""

import dataclasses
import math

import numpy as np

_MASK = (1 << 64) - 1
_MOST_STRIPE_BITS = 6
_STRIPE_ROWS = 4096


def hash_key(key):
    """The finalizer of SplitMix64, for a key as an unsigned number."""
    bits = (key + 0x9E3779B97F4A7C15) & _MASK
    bits = ((bits ^ (bits >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    bits = ((bits ^ (bits >> 27)) * 0x94D049BB133111EB) & _MASK
    return bits ^ (bits >> 31)


def owner(key, num_shards):
    return hash_key(key) % num_shards


def philox(counter, stream):
    """Philox-4x32-10, for four counters and a key of 64 bits."""
    a, b, c, d = counter
    low, high = stream & 0xFFFFFFFF, stream >> 32
    for _ in range(10):
        first, second = 0xD2511F53 * a, 0xCD9E8D57 * c
        a, b, c, d = (
            (second >> 32) ^ b ^ low,
            second & 0xFFFFFFFF,
            (first >> 32) ^ d ^ high,
            first & 0xFFFFFFFF,
        )
        low = (low + 0x9E3779B9) & 0xFFFFFFFF
        high = (high + 0xBB67AE85) & 0xFFFFFFFF
    return a, b, c, d


def _hash_name(name):
    bits = 0xCBF29CE484222325
    for byte in name.encode():
        bits = ((bits ^ byte) * 0x100000001B3) & _MASK
    return bits


@dataclasses.dataclass
class Table:
    """The arguments of `table_ops.IndexedTable`, and its maintenance policies."""

    name: str
    capacity: int
    min_count: int = 1
    seed: int = 0
    initializer: str = "zeros"
    numbers: tuple = (0.0, 0.0)
    evict: str | None = None
    unused_for: int | None = None

    def initial_vector(self, key, width):
        """The vector of a key that got its row."""
        first, second = self.numbers
        if self.initializer in ("zeros", "constant"):
            return np.full(width, first if self.initializer == "constant" else 0.0)
        pairs = [self._pair(key, pair) for pair in range((width + 1) // 2)]
        drawn = np.array(pairs).ravel()[:width]
        return first + (second - first if self._is_uniform else second) * drawn

    @property
    def _is_uniform(self):
        return self.initializer == "uniform"

    def _pair(self, key, pair):
        values = self._attempt(key, pair, 0)
        attempt = 1
        while self.initializer == "truncated_normal" and max(map(abs, values)) > 2:
            again = self._attempt(key, pair, attempt)
            values = [
                y if abs(x) > 2 else x for x, y in zip(values, again, strict=True)
            ]
            attempt += 1
        return values

    def _attempt(self, key, pair, attempt):
        stream = hash_key(hash_key(self.seed) ^ _hash_name(self.name))
        counter = (key & 0xFFFFFFFF, (key & _MASK) >> 32, pair, attempt)
        a, b, c, d = philox(counter, stream)
        u, v = ((high << 32 | low) >> 11 for low, high in ((a, b), (c, d)))
        u, v = u * 2.0**-53, v * 2.0**-53
        if self._is_uniform:
            return [u, v]
        radius = math.sqrt(-2 * math.log(1 - u))
        return [
            radius * math.cos(2 * math.pi * v),
            radius * math.sin(2 * math.pi * v),
        ]


class _Sketch:
    """Counts keys as the library does, its errors included."""

    def __init__(self, capacity, min_count):
        bits = max(0, (capacity // _STRIPE_ROWS).bit_length() - 1)
        self._stripe_bits = min(bits, _MOST_STRIPE_BITS)
        stripes = 1 << self._stripe_bits
        lines = 1
        while lines * 64 < max(capacity * 2 // 2, 65536) // stripes:
            lines *= 2
        self._counters = np.zeros([stripes, lines, 4, 16], np.int64)
        self._halves_every = 8 * min_count
        self._counted = [-lines * self._halves_every] * stripes

    def add(self, key):
        bits = hash_key(key)
        stripe = bits >> (64 - self._stripe_bits)
        mixed = ((bits >> 10 & 0xFFFFFFFF) * 0x9E3779B97F4A7C15) & _MASK
        lines = self._counters[stripe]
        line = lines[(mixed >> 32) & (len(lines) - 1)]
        at = [(i, mixed >> (16 + 4 * i) & 15) for i in range(4)]
        count = min(min(line[i] for i in at) + 1, 255)
        for i in at:
            line[i] = max(line[i], count)
        self._counted[stripe] += 1
        halved, rest = divmod(self._counted[stripe], self._halves_every)
        if rest == 0 and halved > 0:
            lines[(halved - 1) % len(lines)] //= 2
        return count


@dataclasses.dataclass
class Row:
    """The row of a key: its number, which the library chose, and its contents."""

    number: int
    last_use: int
    count: int
    vector: np.ndarray


class TableTwin:
    """A table of a part: `rows` by key."""

    def __init__(self, table: Table, width: int):
        self.table = table
        self.rows: dict[int, Row] = {}
        self.clock = 0  # the last use of what is used now
        self.resting: set[int] = set()  # rows' numbers
        self.released: set[int] = set()  # those that rest until the second maintenance
        self.stats = dict.fromkeys(
            ["without_row", "admitted", "evicted", "refused", "dropped"], 0
        )
        self._width = width
        self._sketch = _Sketch(table.capacity, table.min_count)

    @property
    def num_free(self):
        """The rows that a new key may get."""
        return self.table.capacity - len(self._taken())

    def find(self, keys, insert, numbers):
        """The vectors of keys; `numbers` are the rows that the library gave them."""
        new = []
        for key in keys:
            row = self.rows.get(key)
            if not insert:
                continue
            if row is not None:
                row.last_use, row.count = self.clock, row.count + 1
            elif self.table.min_count == 1 or (
                self._sketch.add(key) >= self.table.min_count
            ):
                new.append(key)
        admitted = set(new[: self.num_free])
        for key, number in zip(keys, numbers, strict=True):
            if key in admitted:
                self.put(key, number, self.clock, 1)
        if insert:
            self.stats["refused"] += len(new) - len(admitted)
            self.stats["without_row"] += sum(key not in self.rows for key in keys)
        for key, number in zip(keys, numbers, strict=True):
            assert number == (self.rows[key].number if key in self.rows else -1)
        zeros = np.zeros(self._width)
        vectors = [self.rows[key].vector if key in self.rows else zeros for key in keys]
        return np.array(vectors).reshape(len(keys), self._width)

    def put(self, key, number, last_use, count):
        assert number not in self._taken()
        vector = self.table.initial_vector(key, self._width)
        self.rows[key] = Row(number, last_use, count, vector)
        self.stats["admitted"] += 1

    def _taken(self):
        used = {row.number for row in self.rows.values()}
        return used | self.resting | self.released

    def release(self, keys, rests):
        """Takes their rows from keys; how many have lost one."""
        gone = [key for key in keys if key in self.rows]
        self.released |= {self.rows.pop(key).number for key in gone}
        if not rests:
            self.resting, self.released = set(), set()
        return len(gone)

    def gradient(self, keys, numbers, gradient):
        """The gradient by row number, of keys that still have the row."""
        kept = {}
        for key, number, of_key in zip(keys, numbers, gradient, strict=True):
            if number >= 0:
                if key in self.rows and self.rows[key].number == number:
                    kept[number] = of_key
                else:
                    self.stats["dropped"] += 1
        return kept

    def maintain(self, step):
        """Frees rows and evicts others; the keys that were evicted."""
        capacity, unused_for = self.table.capacity, self.table.unused_for
        for row in self.rows.values():
            # Perhaps it was used right before this, or the clock was set back.
            is_unsettled = unused_for and self.clock == row.last_use < step
            if is_unsettled or row.last_use > step + 1:
                row.last_use = step
        self.clock = step + 1
        self.resting, self.released = self.released, set()
        evicted = [
            key
            for key, row in self.rows.items()
            if unused_for and step - row.last_use > unused_for
        ]
        left = [key for key in self.rows if key not in set(evicted)]
        if self.table.evict and len(left) * 20 > capacity * 19:
            left.sort(key=self._rank)
            evicted += left[: len(left) - capacity * 9 // 10]
        for key in evicted:
            self.resting.add(self.rows.pop(key).number)
        self.stats["evicted"] += len(evicted)
        return evicted

    def _rank(self, key):
        row = self.rows[key]
        use = (row.last_use, row.count)
        return (use if self.table.evict == "least_recent" else use[::-1], row.number)
