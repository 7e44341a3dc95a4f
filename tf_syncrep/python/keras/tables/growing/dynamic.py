"""The settings of a table that grows: its size, admission and eviction."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import tensorflow as tf

from tf_syncrep.python.base.arguments import check_count
from tf_syncrep.python.embedding.layout import MOST_ROWS
from tf_syncrep.python.keras.tables.initial_values import SCALING, seed_of

# The standard deviation of standard normal numbers from which those beyond 2 were cut.
_TRUNCATED_STDDEV = 0.87962566103423978


@dataclasses.dataclass(frozen=True)
class MinCount:
    """Admits a key when it has been looked up often enough.

    Until then the key has no row: its vector is zeros, and its gradient is dropped. The
    lookups are counted in a count-min sketch of a fixed size, which takes one to two
    bytes for each row that the table may have. So a key may be admitted too early,
    because others were counted with it. All counts are halved from time to
    time. So a key that comes rarely may be admitted too late, or never; one that comes
    at least six times among as many keys without a row as the table has rows is
    admitted.

    Example:
    >>> tfs.keras.Dynamic(1_000_000, admit=tfs.keras.MinCount(3)).admit.n
    3

    Attributes:
        n: how many lookups it takes; each lookup of a batch counts a key once.

    Raises:
        ValueError: `n` is not a whole number from 1 to 255.

    Source: Cormode and Muthukrishnan, "An Improved Data Stream Summary", 2005, for the
    sketch; the counter filter of DeepRec's EmbeddingVariable for what it is used for.
    """

    n: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "n", check_count("n", self.n))
        if self.n > 255:
            raise ValueError(f"`n` must be at most 255. Received: n={self.n}")


@dataclasses.dataclass(frozen=True)
class LeastRecent:
    """Removes the rows that were unused for the longest time, in a nearly full table.

    Example:
    >>> tfs.keras.Dynamic(1_000_000, evict=tfs.keras.LeastRecent()).evict
    LeastRecent()
    """


@dataclasses.dataclass(frozen=True)
class LeastFrequent:
    """Removes the rows that were used least often, in a nearly full table.

    Among rows that were used equally often, the least recent ones go first.

    Example:
    >>> tfs.keras.Dynamic(1_000_000, evict=tfs.keras.LeastFrequent()).evict
    LeastFrequent()
    """


_EVICTIONS: dict[str, Any] = {
    "least_recent": LeastRecent(),
    "least_frequent": LeastFrequent(),
}


@dataclasses.dataclass(frozen=True)
class Dynamic:
    """The size of a table that grows: any id gets a row when it comes.

    It stands in the place of `vocabulary_size` in a `tfs.keras.TableConfig`, and of
    `input_dim` in a `tfs.keras.Embedding`. Ids are then any int32 or int64, negative
    ones too, or strings, of which the table knows the 64-bit fingerprints.

    Only training of a trainable layer makes rows. An id without a row, one that is not
    admitted yet or that found the table full, has a vector of zeros in training,
    evaluation, prediction and serving alike, and its gradient is dropped.

    Args:
        max_rows: how many rows there may be, on all parameter servers together. Each of
            several has room for its share, and for four times the square root of that
            in addition. This bounds the memory but takes none: a row takes memory when
            it is first used, and so do its slots that begin at 0 in the optimizers of
            `tfs.keras`. (What takes memory for all rows at once: `tfs.keras.MinCount`,
            slots of Keras' own optimizers, and those of `tfs.keras.Adagrad` and
            `tfs.keras.FTRL` unless `initial_accumulator_value` is 0.)
        admit: None to give a row to each id at once, or a `tfs.keras.MinCount`.
        evict: None to refuse new ids when the table is full, or the rule that chooses
            the rows to remove: `tfs.keras.LeastRecent()` or
            `tfs.keras.LeastFrequent()`. With a rule `max_rows` should be above forty
            times the number of ids that are new from one maintenance to the next.
        unused_for: None, or the number of steps for which a row has to be unused before
            it goes. It goes in the next maintenance after them.

    Raises:
        ValueError: `max_rows` or `unused_for` is not a whole number of at least 1, or
            `admit` or `evict` is none of these.

    Example:
    >>> grows = tfs.keras.Dynamic(50_000_000, admit=tfs.keras.MinCount(3))
    >>> table = tfs.keras.TableConfig("items", grows, embedding_dim=64)
    >>> tfs.keras.TableConfig.from_config(table.get_config()).vocabulary_size == grows
    True

    Source: the EmbeddingVariable of DeepRec, for tables by key with admission and
    eviction.
    """

    max_rows: int
    admit: MinCount | None = None
    evict: LeastRecent | LeastFrequent | None = None
    unused_for: int | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "max_rows", check_count("max_rows", self.max_rows))
        if self.max_rows > MOST_ROWS:
            raise ValueError(
                f"`max_rows` must be at most {MOST_ROWS:,}. Received: "
                f"max_rows={self.max_rows:,}"
            )
        if self.admit is not None and not isinstance(self.admit, MinCount):
            raise ValueError(
                "`admit` must be None or a tfs.keras.MinCount. Received: "
                f"admit={self.admit!r}"
            )
        if self.evict is not None and self.evict not in _EVICTIONS.values():
            raise ValueError(
                "`evict` must be None, tfs.keras.LeastRecent() or "
                f"tfs.keras.LeastFrequent(). Received: evict={self.evict!r}"
            )
        if self.unused_for is not None:
            unused_for = check_count("unused_for", self.unused_for)
            object.__setattr__(self, "unused_for", unused_for)

    @property
    def evicts(self) -> bool:
        """Whether rows may be removed."""
        return self.evict is not None or self.unused_for is not None

    @property
    def eviction(self) -> str | None:
        """`evict` by name: "least_recent", "least_frequent" or None."""
        return next((name for name, x in _EVICTIONS.items() if x == self.evict), None)

    def get_config(self) -> dict[str, Any]:
        """Returns what JSON can hold, and `from_config` makes an equal size of."""
        return {
            "max_rows": self.max_rows,
            "min_count": self.admit and self.admit.n,
            "evict": self.eviction,
            "unused_for": self.unused_for,
        }

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> Dynamic:
        """Makes an equal size from what `get_config` returned."""
        min_count = config["min_count"]
        return cls(
            config["max_rows"],
            None if min_count is None else MinCount(min_count),
            config["evict"] and _EVICTIONS[config["evict"]],
            config["unused_for"],
        )


class RowInitializer(NamedTuple):
    """How the elements of a new row are drawn; the last fields of `IndexedTable`."""

    seed: int
    kind: str
    numbers: tuple[float, float]


def row_initializer(
    initializer: Any, table: str, max_rows: int, width: int
) -> RowInitializer:
    """Translates a Keras initializer into one for a row that is made by itself.

    `max_rows`: how many rows the table may have; some initializers scale by it. Raises
    ValueError: the initializer looks at the whole table.
    """
    keras = tf.keras.initializers
    config = initializer.get_config() if hasattr(initializer, "get_config") else {}
    # The values are the same in each run, even if the user gives no seed.
    seed = seed_of(initializer) or 0
    kind = type(initializer)
    if kind is keras.Zeros:
        return RowInitializer(seed, "constant", (0.0, 0.0))
    if kind is keras.Ones:
        return RowInitializer(seed, "constant", (1.0, 0.0))
    if kind is keras.Constant and isinstance(initializer.value, int | float):
        return RowInitializer(seed, "constant", (float(initializer.value), 0.0))
    if kind is keras.RandomUniform:
        return RowInitializer(seed, "uniform", (config["minval"], config["maxval"]))
    if kind is keras.RandomNormal:
        return RowInitializer(seed, "normal", (config["mean"], config["stddev"]))
    if kind is keras.TruncatedNormal:
        mean, stddev = config["mean"], config["stddev"]
        return RowInitializer(seed, "truncated_normal", (mean, stddev))
    if isinstance(initializer, keras.VarianceScaling) and kind in SCALING:
        sides = {
            "fan_in": max_rows,
            "fan_out": width,
            "fan_avg": (max_rows + width) / 2,
        }
        variance = initializer.scale / max(1.0, sides[initializer.mode])
        if initializer.distribution == "uniform":
            limit = math.sqrt(3.0 * variance)
            return RowInitializer(seed, "uniform", (-limit, limit))
        stddev = math.sqrt(variance)
        if initializer.distribution == "untruncated_normal":
            return RowInitializer(seed, "normal", (0.0, stddev))
        whole = stddev / _TRUNCATED_STDDEV
        return RowInitializer(seed, "truncated_normal", (0.0, whole))
    raise ValueError(
        f"Table {table!r} grows, and so its initializer must be one whose rows can be "
        "drawn one by one: Zeros, Ones, Constant of a number, RandomUniform, "
        "RandomNormal, TruncatedNormal, VarianceScaling, or Keras' Glorot, He or Lecun "
        f"ones. Received: initializer={initializer!r}"
    )
