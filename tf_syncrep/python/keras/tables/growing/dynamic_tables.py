"""The variables that hold a layer's tables that grow, and the tables in them."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from tf_syncrep.python.embedding import dynamic_lookup
from tf_syncrep.python.embedding.layout import DynamicSlab
from tf_syncrep.python.embedding.lookup import Feature, look_up_by_slab
from tf_syncrep.python.keras import compat
from tf_syncrep.python.keras.builds import before_builds
from tf_syncrep.python.keras.placement import each_on_another_server
from tf_syncrep.python.keras.tables.growing.dynamic import Dynamic, RowInitializer
from tf_syncrep.python.keras.tables.row_slots import RowSlot, row_slots
from tf_syncrep.python.keras.tables.setting import being_set, check_numbers, keep
from tf_syncrep.python.keras.tables.stacked_tables import (
    CASTING,
    StackedTables,
    chunks,
    note_made,
    write_rows,
)
from tf_syncrep.python.keras.tables.trainers import (
    give_other_keys,
    note_trainer,
    trainers_of,
)
from tf_syncrep.python.keras.tables.whole_variables import warn_of_whole_variables
from tf_syncrep.python.ops import table_ops
from tf_syncrep.python.ops.table_ops import Part

# An import says so if it needs rows that rest, or that other keys have.
_NO_ROOM = "must be enough for its keys"
# The uses that mark a row which was removed, but is not free yet.
RESTS = (table_ops.RESTS, 0)


class KeysAndVectors(NamedTuple):
    """The rows in use of a table that grows.

    `keys`: int64 of shape `[n]`, ascending. `vectors`: an array of shape `[n,
    embedding_dim]`.
    """

    keys: np.ndarray
    vectors: np.ndarray


class Rows(NamedTuple):
    """The rows in use of a table that grows, with all that is known about them.

    `keys`: int64 of shape `[n]`. `uses`: int32 of shape `[n, 2]`: when each was used
    last, and how often. `part_numbers`: int32 of shape `[n]`: the part that each is in.
    `rows`: int32 of shape `[n]`: the row of that part.
    """

    keys: np.ndarray
    uses: np.ndarray
    part_numbers: np.ndarray
    rows: np.ndarray


class DynamicTables(StackedTables):
    """Tables that grow, stacked into slabs, whose parts are variables of a layer.

    `_parts` has each `Part` with Keras' variables.
    """

    kinds = ("", "_keys", "_uses")

    def __init__(
        self,
        slabs: Sequence[DynamicSlab],
        sizes: Mapping[str, Dynamic],
        layer: Any,
        named_by_layer: bool = False,
    ) -> None:
        """Makes nothing yet."""
        super().__init__(slabs, named_by_layer)
        self.sizes = dict(sizes)
        self.trainers = weakref.WeakSet()
        self._layer = weakref.ref(layer)
        # Whether steps went by, since the last maintenance, in which nothing trained.
        self.has_rested = False
        #: Whether rows rest, or have rested, since a table was set.
        self.has_released = False

    @property
    def are_trainable(self) -> bool:
        """Whether the layer is trainable now, and so those tables that ever are."""
        layer = self._layer()
        return layer is not None and layer.trainable

    def loses_rows(self) -> bool:
        """Returns whether rows have to be maintained now."""
        sizes = self.sizes_in_training().values()
        return self.are_trainable and (
            self.has_released or any(size.evicts for size in sizes)
        )

    def sizes_in_training(self) -> dict[str, Dynamic]:
        """Returns the settings of the tables that train now, by name."""
        return {
            name: size
            for name, size in self.sizes.items()
            if self.are_trainable and self.by_name[name].trainable
        }

    def make(
        self,
        add_weight: Callable[..., Any],
        initializers: Mapping[str, RowInitializer],
    ) -> None:
        """Makes the variables, and beside each part an index that finds rows by key."""
        if not self.slabs:
            return
        _refuse_replicas()
        with compat.variables_at_once():
            for slab in self.slabs:
                self._make_slab(slab, add_weight, initializers)
        note_made(self)
        warn_of_whole_variables()
        before_builds(note_trainer)

    def _make_slab(
        self,
        slab: DynamicSlab,
        add_weight: Callable[..., Any],
        initializers: Mapping[str, RowInitializer],
    ) -> None:
        part_numbers = range(slab.num_parts)
        with each_on_another_server():
            vectors = [
                _variable(add_weight, slab, part_number, "", (slab.width,), slab.dtype)
                for part_number in part_numbers
            ]
        extended = tf.distribute.get_strategy().extended
        parts = []
        for part_number in part_numbers:
            native = compat.native(vectors[part_number])
            with extended.colocate_vars_with(native):
                keys = _variable(add_weight, slab, part_number, "_keys", ())
                uses = _variable(add_weight, slab, part_number, "_uses", (2,), "int32")
            with tf.init_scope(), tf.device(native.device):
                index = self._index(slab, initializers)
            parts.append(Part(vectors[part_number], keys, uses, index))
        self._parts[slab.name] = parts

    def _index(
        self, slab: DynamicSlab, initializers: Mapping[str, RowInitializer]
    ) -> tf.Tensor:
        tables = []
        for table in slab.tables:
            admit = self.sizes[table.name].admit
            tables.append(
                table_ops.IndexedTable(
                    table.name,
                    slab.first_row(table),
                    slab.capacity(table),
                    1 if admit is None else admit.n,
                    *initializers[table.name],
                )
            )
        return table_ops.table_index(tables, counted=True)

    def parts(self, slab: DynamicSlab) -> list[Part]:
        """Returns the variables and the index of each part of a slab."""
        return [
            Part(*map(compat.native, part[:3]), part.index)
            for part in self._parts[slab.name]
        ]

    def trained(self, slab: DynamicSlab) -> list[Any]:
        """Returns the variables with a slab's vectors, as Keras has them."""
        return [part.vectors for part in self._parts[slab.name]]

    def all_variables(self) -> list[Any]:
        """Returns all variables, as Keras has them: parts' vectors, keys and uses."""
        return [
            variable
            for slab in self.slabs
            for part in self._parts[slab.name]
            for variable in part[:3]
        ]

    def look_up(
        self,
        features: Sequence[Feature],
        training: bool,
        transfer_dtype: tf.DType | None = None,
    ) -> Iterator[tuple[int, tf.Tensor]]:
        """Looks up features of these tables; yields their places with their vectors."""

        def look_up_in(slab, of_slab):
            if self.served is not None:
                return [self.served[x.table.name].look_up(x) for x in of_slab]
            if compat.has_default_ids():
                raise ValueError(
                    "Tables that grow are saved for serving as copies: save the model "
                    "within `with tfs.keras.for_serving(model):`. Received: tables "
                    f"{sorted({x.table.name for x in of_slab})}"
                )
            if compat.compiled_by_xla():
                raise ValueError(
                    "Tables that grow cannot be looked up in by XLA: compile the model "
                    "with jit_compile=False. Received: tables "
                    f"{sorted({x.table.name for x in of_slab})}"
                )
            # Keras traces models with tensors in the place of variables to find shapes.
            if not self._parts or compat.in_stateless_scope():
                return dynamic_lookup.empty_vectors(slab, of_slab)
            return dynamic_lookup.look_up(
                slab,
                self.parts(slab),
                of_slab,
                training and slab.trainable and self.are_trainable,
                transfer_dtype,
            )

        return look_up_by_slab(self.slabs, features, look_up_in)

    def row_slots(self) -> dict[int, list[RowSlot]]:
        """Finds the slots of the rows in all optimizers that train them, by part."""
        return row_slots(trainers_of(self), self)

    def reset(self, part: Part, slots: Sequence[RowSlot]) -> None:
        """Frees all rows of a part at once, whatever table they belong to."""
        initials = [
            *((x, 0) for x in (part.vectors, part.keys, part.uses)),
            *((slot.variable, slot.initial) for slot in slots),
        ]

        def assign() -> None:
            keep(part.vectors)
            for variable, initial in initials:
                with tf.device(variable.device):
                    value = (
                        tf.fill(variable.shape, tf.cast(initial, variable.dtype))
                        if initial
                        else table_ops.table_zeros(variable.shape, variable.dtype)
                    )
                    # Since rows of it were read, TensorFlow would copy the value, all
                    # of which would take memory then.
                    tf.raw_ops.DisableCopyOnRead(resource=variable.handle)
                    variable.assign(value)

        with being_set:
            give_other_keys(self, assign)

    def add_rows(
        self, name: str, part: Part, keys: Any, last_use: Any, counts: Any
    ) -> tf.Tensor:
        """Gives keys rows in a part; those that have one keep it.

        `keys`: int64 of shape `[n]`: different keys that belong into this part.
        `last_use`: int32 of shape `[n]`: when each was used last. `counts`: int32 of
        shape `[n]`: how often each was used. Returns int32 of shape `[n]`, the rows.
        """
        number = self._number_of(name)
        return table_ops.table_import(part, number, keys, last_use, counts)

    def stats(self) -> dict[str, dict[str, int]]:
        """Returns the sums of all parts' counters, by names of table and counter."""
        found: dict[str, dict[str, int]] = {}
        for slab in self.slabs:
            of_parts = []
            for part in self.parts(slab):
                with tf.device(part.vectors.device):
                    of_parts.append(table_ops.table_stats(part.index))
            total = np.sum([x.numpy() for x in of_parts], axis=0)
            for table, counts in zip(slab.tables, total, strict=True):
                found[table.name] = table_ops.TableStats(*map(int, counts))._asdict()
        return found

    def holding(self, keys: Sequence[int]) -> dict[str, int]:
        """Returns one of some keys for each table in which it has a row."""
        found: dict[str, int] = {}
        for slab in self.slabs:
            num = len(slab.tables)
            request = np.array([len(keys)] * num + [*keys] * num, np.int64)
            for part in self.parts(slab):
                rows, _ = table_ops.table_find(part, request, insert=False)
                of_tables = rows.numpy().reshape(num, len(keys))
                for table, of_table in zip(slab.tables, of_tables, strict=True):
                    for key in np.asarray(keys)[of_table >= 0]:
                        found[table.name] = int(key)
        return found

    def rows_of(self, name: str) -> Rows:
        """Returns the rows in use of a table, by ascending key."""
        return self.rows_and_resting(name)[0]

    def rows_and_resting(self, name: str) -> tuple[Rows, list[np.ndarray]]:
        """Returns those in use, and those of each part that are removed but not free.

        The latter are int32 of shape `[n]`, ascending.
        """
        of_parts, resting = [], []
        for part_number, part in enumerate(self.parts(self._slab_of[name])):
            found = table_ops.table_export(part, self._number_of(name))
            uses = np.stack([found.last_uses.numpy(), found.counts.numpy()], axis=1)
            part_numbers = np.full(len(uses), part_number, np.int32)
            of_parts.append(
                Rows(found.keys.numpy(), uses, part_numbers, found.rows.numpy())
            )
            resting.append(found.resting.numpy())
        whole = Rows(*map(np.concatenate, zip(*of_parts, strict=True)))
        order = np.argsort(whole.keys, kind="stable")
        return Rows(*(x[order] for x in whole)), resting

    def _number_of(self, name: str) -> int:
        """Returns the number of a table in its slab."""
        return self._slab_of[name].index(self.by_name[name])

    def values_of(
        self, name: str, rows: Rows, variables: Sequence[Any] | None = None
    ) -> np.ndarray:
        """Returns the values of some rows of a table.

        `variables`: the variables to read, one beside each part of the slab, with as
        many rows; None for the parts themselves. Returns an array of shape `[n, ...]`.
        """
        parts = variables or _vectors(self.parts(self._slab_of[name]))
        shape = (len(rows.keys), *parts[0].shape[1:])
        values = np.empty(shape, parts[0].dtype.as_numpy_dtype)
        for part_number, part in enumerate(parts):
            (places,) = np.nonzero(rows.part_numbers == part_number)
            for some in chunks(places, part):
                with tf.device(part.device):
                    values[some] = tf.gather(part, rows.rows[some]).numpy()
        return values

    def read(self, name: str) -> KeysAndVectors:
        """Returns the keys and vectors of a table."""
        rows = self.rows_of(name)
        return KeysAndVectors(rows.keys, self.values_of(name, rows))

    def write(self, name: str, table: Any) -> None:
        """Sets the keys and vectors of a table; other keys lose their rows.

        Keys that stay keep their uses, and new ones are used now.

        `table`: keys and vectors, as `read` returns them, in any order. Raises
        ValueError: a key comes twice, shapes do not fit, or there are more keys than
        there is room for.
        """
        keys, vectors = self.checked(name, table)
        self.restore(name, keys, None, vectors)

    def checked(
        self, name: str, table: Any, uses: np.ndarray | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """Checks keys and vectors as `write` does, and leaves the table as it is.

        `uses`: those of the keys, as `restore` takes them. Raises ValueError, as
        `write` does, or since there are no such uses.
        """
        own = self.by_name[name]
        try:
            keys, vectors = (np.asarray(x) for x in table)
        except (TypeError, ValueError):
            raise ValueError(
                f"Table {name!r} grows, and is set by keys and vectors. Received: "
                f"{type(table).__name__}"
            ) from None
        if keys.dtype not in (np.int32, np.int64) and keys.size:
            raise ValueError(
                f"Keys of table {name!r} must be int32 or int64. Received: keys of "
                f"dtype {keys.dtype}"
            )
        if keys.ndim != 1 or vectors.shape != (len(keys), own.width):
            raise ValueError(
                f"Keys and vectors of table {name!r} must have shapes [n] and [n, "
                f"{own.width}]. Received: keys of shape {list(keys.shape)} and vectors "
                f"of shape {list(vectors.shape)}"
            )
        check_numbers(name, vectors)
        keys = keys.astype(np.int64)
        sorted_keys = np.sort(keys)
        if (twice := sorted_keys[1:][sorted_keys[1:] == sorted_keys[:-1]]).size:
            raise ValueError(
                f"Keys of table {name!r} must differ. Received: key {twice[0]} twice"
            )
        if uses is not None:
            _check_uses(name, uses, len(keys))
        self.owners(name, keys)
        return keys, vectors

    def restore(
        self,
        name: str,
        keys: np.ndarray,
        uses: np.ndarray | None,
        values: np.ndarray,
        variables: Sequence[Any] | None = None,
    ) -> None:
        """Gives a table these keys, and no others, and values of their rows.

        Keys that stay keep their rows, and what other variables have of them. Rows of
        others rest, since gradients that wait or are under way name rows by number. If
        there is no room for that, they are free at once, between two updates, and
        gradients that optimizers have collected are dropped.

        `keys`: int64 of shape `[n]`, all different. `uses`: int32 of shape `[n, 2]`, as
        in `Rows`; None for those that they have, and those of new keys, which are used
        now. `values`: of shape `[n, ...]`. `variables`: those to write, as for
        `values_of`. Raises ValueError: a part has no room for so many; nothing was
        written.
        """
        part_numbers = self.owners(name, keys)
        rows = np.empty(len(keys), np.int32)
        parts = self.parts(self._slab_of[name])
        with being_set:
            for part_number, part in enumerate(parts):
                (here,) = np.nonzero(part_numbers == part_number)
                rows[here] = self._replace(
                    name, part, keys[here], None if uses is None else uses[here]
                )
            for part_number, variable in enumerate(variables or _vectors(parts)):
                here = part_numbers == part_number
                write_rows(variable, rows[here], values[here])

    def _replace(
        self, name: str, part: Part, keys: np.ndarray, uses: np.ndarray | None
    ) -> np.ndarray:
        """Gives a part these keys of a table, and no others; returns their rows."""
        number = self._number_of(name)

        def release(rests: bool, slots: Sequence[RowSlot] = ()) -> None:
            # Training may have made rows for some only now.
            released = table_ops.table_release(
                part,
                number,
                np.setdiff1d(table_ops.table_export(part, number).keys, keys),
                rests=rests,
                sets_back=uses is not None,
                slots=[(slot.variable, slot.initial) for slot in slots],
            )
            self.has_released |= rests and int(released) > 0

        new = np.full([len(keys), 2], [table_ops.NOW, 1], np.int32)
        last_use, counts = (new if uses is None else uses.astype(np.int32)).T
        rows = None
        while rows is None:
            try:
                rows = self.add_rows(name, part, keys, last_use, counts).numpy()
            except tf.errors.ResourceExhaustedError as error:
                if _NO_ROOM not in error.message:
                    raise
                slots = self.row_slots()[id(part.vectors)]
                give_other_keys(self, functools.partial(release, False, slots))
        # A table that is not trained has no gradients, and is never maintained.
        release(rests=self._slab_of[name].trainable)
        return rows

    def owners(self, name: str, keys: np.ndarray) -> np.ndarray:
        """Returns the part of each key; checks that there is room for all."""
        slab, table = self._slab_of[name], self.by_name[name]
        part_numbers = dynamic_lookup.owners(keys, slab.num_parts)
        room = slab.capacity(table)
        most = max(np.bincount(part_numbers, minlength=slab.num_parts))
        if most > room:
            raise ValueError(
                f"Table {name!r} must be given at most {table.vocabulary_size:,} keys, "
                f"and {room:,} of one part. Received: {len(keys):,} keys, {most:,} of "
                "one part; make the table with a larger max_rows"
            )
        return part_numbers


def _check_uses(name: str, uses: np.ndarray, num_keys: int) -> None:
    are_integers = np.issubdtype(uses.dtype, np.integer) or not num_keys
    if not are_integers or uses.shape != (num_keys, 2):
        raise ValueError(
            f"Uses of table {name!r} must be integers of shape [{num_keys}, 2]. "
            f"Received: uses of dtype {uses.dtype} and shape {list(uses.shape)}"
        )
    lowest = [0, 1]
    bad = uses[np.any((uses < lowest) | (uses > np.iinfo(np.int32).max), axis=1)]
    if len(bad):
        raise ValueError(
            f"Uses of table {name!r} must be pairs of a last use of at least 0 and a "
            f"count of at least 1, both below 2^31. Received: {bad[0].tolist()}"
        )


def _vectors(parts: Sequence[Part]) -> list[Any]:
    return [part.vectors for part in parts]


def _variable(add_weight, slab, part_number, kind, shape, dtype="int64"):
    """Makes one of a part's variables, which takes no memory before it is written."""
    return add_weight(
        name=slab.part_name(part_number) + kind,
        shape=(slab.num_rows, *shape),
        dtype=dtype,
        initializer=_zeros,
        trainable=slab.trainable and not kind,
        **CASTING,
    )


def _zeros(shape, dtype=None, **kwargs):
    del kwargs
    return table_ops.table_zeros(shape, dtype)


def _refuse_replicas():
    """Raises if a strategy would make rows in several copies of a table."""
    strategy = tf.distribute.get_strategy()
    fit = (tf.distribute.ParameterServerStrategy, tf.distribute.OneDeviceStrategy)
    if tf.distribute.has_strategy() and not isinstance(strategy, fit):
        raise ValueError(
            "Tables that grow are trained in one process without a strategy, or under "
            f"ParameterServerStrategy. Received: {type(strategy).__name__}"
        )
