"""The variables that hold a layer's tables, and the tables in them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tf_syncrep.python.embedding import layout, lookup
from tf_syncrep.python.keras import compat
from tf_syncrep.python.keras.placement import each_on_another_server
from tf_syncrep.python.keras.tables.initial_values import initial_rows
from tf_syncrep.python.keras.tables.setting import (
    being_set,
    check_numbers,
    copies_of,
    keep,
)
from tf_syncrep.python.keras.tables.stacked_tables import (
    CASTING,
    StackedTables,
    chunks,
    note_made,
    write_rows,
)
from tf_syncrep.python.keras.tables.whole_variables import warn_of_whole_variables


class Tables(StackedTables):
    """Tables of fixed size, in slabs whose parts are variables of a layer."""

    def make(
        self,
        add_weight: Callable[..., Any],
        initializers: Mapping[str, Any],
        **options: Any,
    ) -> None:
        """Makes the variables.

        Each part of a slab is on another parameter server.
        """
        for slab in self.slabs:
            with compat.variables_at_once(), each_on_another_server():
                self._parts[slab.name] = [
                    _part(slab, part_number, add_weight, initializers, options)
                    for part_number in range(slab.num_parts)
                ]
        note_made(self)
        warn_of_whole_variables()

    def parts(self, slab: layout.Slab) -> list[tf.Variable]:
        """Returns the variables that hold a slab."""
        return [compat.native(part) for part in self._parts[slab.name]]

    def trained(self, slab: layout.Slab) -> list[Any]:
        """Returns the variables that hold a slab, as Keras has them."""
        return list(self._parts[slab.name])

    @property
    def num_parts(self) -> int:
        """How many variables there are."""
        return sum(slab.num_parts for slab in self.slabs)

    def look_up(
        self,
        features: Sequence[lookup.Feature],
        training: bool,
        transfer_dtype: tf.DType | None = None,
    ) -> Iterator[tuple[int, tf.Tensor]]:
        """Looks up features of these tables; yields their places with their vectors."""

        def look_up_in(slab, of_slab):
            if self.served is not None:
                return [self.served[x.table.name].look_up(x) for x in of_slab]
            parts = self.parts(slab)
            if _are_for_our_ops(parts, training):
                return lookup.look_up(slab, parts, of_slab, transfer_dtype)
            return lookup.look_up_with_stock_ops(slab, parts, of_slab)

        return lookup.look_up_by_slab(self.slabs, features, look_up_in)

    def as_tensor(self, slab: layout.Slab) -> tf.Tensor:
        """Returns all rows of a slab, through which gradients flow to its parts.

        Returns a tensor of shape `[num_rows, width]`, cast as Keras casts variables.
        """
        part_numbers = range(slab.num_parts)
        rows = [tf.range(i, slab.num_rows, slab.num_parts) for i in part_numbers]
        parts = [tf.convert_to_tensor(part) for part in self._parts[slab.name]]
        return tf.reshape(tf.dynamic_stitch(rows, parts), [slab.num_rows, slab.width])

    def read(self, name: str, slots: Sequence[tf.Variable] | None = None) -> np.ndarray:
        """Returns the values of a table.

        `slots`: the variables to read, one beside each part of the table's slab, of its
        shape or with one number for each row; None for the parts. Returns an array of
        shape `[vocabulary_size, width]`, or `[vocabulary_size, 1]`.
        """
        table, slab = self.by_name[name], self._slab_of[name]
        parts = slots or self.parts(slab)
        dtype = parts[0].dtype.as_numpy_dtype
        row_shape: Any = parts[0].shape[1:].as_list()
        values = np.empty([table.vocabulary_size, *row_shape], dtype)
        for part_number, part in enumerate(parts):
            own = slab.part(table, part_number)
            of_part = values[own.first_id :: slab.num_parts]
            for some in chunks(range(own.num_rows), part):
                rows = tf.range(own.begin + some.start, own.begin + some.stop)
                of_part[some.start : some.stop] = tf.gather(part, rows).numpy()
        return values

    def write(
        self, name: str, values: Any, slots: Sequence[tf.Variable] | None = None
    ) -> None:
        """Sets the values of a table; `slots`: those to write, as for `read`."""
        with being_set:
            self.write_rows(name, self.checked(name, values, slots), 0, 1, slots)

    def checked(
        self, name: str, values: Any, slots: Sequence[tf.Variable] | None = None
    ) -> np.ndarray:
        """Checks values as `write` does, and leaves the table as it is."""
        try:
            array = np.asarray(values)
        except (TypeError, ValueError):  # of rows that differ in length
            raise ValueError(
                f"Values of table {name!r} must be an array. Received: "
                f"{type(values).__name__}"
            ) from None
        self.check_shape(name, array, slots)
        check_numbers(name, array)
        return array

    def check_shape(
        self, name: str, values: Any, slots: Sequence[tf.Variable] | None = None
    ) -> None:
        """Does the same with an array that need not be in memory."""
        table = self.by_name[name]
        (part, *_) = slots or self.parts(self._slab_of[name])
        shape = (table.vocabulary_size, *part.shape[1:])
        if tuple(values.shape) != shape:
            raise ValueError(
                f"Values of table {name!r} must have shape {shape}. Received: values "
                f"of shape {tuple(values.shape)}"
            )

    def write_rows(
        self,
        name: str,
        values: Any,
        first_id: int,
        step: int,
        slots: Sequence[tf.Variable] | None = None,
    ) -> None:
        """Sets some rows of a table, wherever they are.

        `values`: an array of shape `[num_rows, width]`. `slots`: the variables to
        write, as for `read`.
        """
        slab, table = self._slab_of[name], self.by_name[name]
        parts = slots or self.parts(slab)
        values = np.asarray(values)
        first = slab.first_row(table) + first_id
        if slab.num_parts == 1 and copies_of(parts[0]):
            # Strategies that keep copies of a variable can only assign all of it.
            # Elsewhere that would undo updates of other tables in the slab.
            (part,) = parts
            all_rows = part.numpy()
            all_rows[first : first + step * len(values) : step] = values
            keep(part)
            part.assign(all_rows)
            return
        for some in chunks(range(len(values)), parts[0]):
            rows = first + step * np.arange(some.start, some.stop)
            for part_number, part in enumerate(parts):
                (here,) = np.nonzero(rows % slab.num_parts == part_number)
                write_rows(
                    part, rows[here] // slab.num_parts, values[some.start + here]
                )


def _part(slab, part_number, add_weight, initializers, options):
    part = add_weight(
        name=slab.part_name(part_number),
        shape=(slab.part_rows(part_number), slab.width),
        dtype=slab.dtype,
        initializer=_initializer(slab, part_number, initializers),
        trainable=slab.trainable,
        **CASTING,
        **options,
    )
    if getattr(compat.native(part), "variables", None) is not None:
        raise ValueError(
            "Tables are spread over the parameter servers by the layer: make the "
            "strategy without variable_partitioner. Received: a variable in parts, "
            f"{slab.name}"
        )
    return part


def _initializer(slab, part_number, initializers):
    """Returns an initializer of a part, which is called where the part is."""

    def initialize(shape, dtype=None, **kwargs):
        del shape, kwargs
        values = [
            initial_rows(
                initializers[part.table.name],
                part.table,
                part.num_rows,
                part.first_id,
                slab.num_parts,
                dtype or slab.dtype,
            )
            for part in slab.parts(part_number)
            if part.num_rows
        ]
        if not values:  # There are more parts than rows.
            return tf.zeros((0, slab.width), dtype or slab.dtype)
        return values[0] if len(values) == 1 else tf.concat(values, axis=0)

    return initialize


def _are_for_our_ops(parts, training):
    """Returns whether our ops can look up in these variables, and are worth it.

    An exported model is traced without training and outside replicas, and is served by
    programs that may not have our ops. Neither XLA nor GPUs have them. In one process a
    plain gather is as good if no gradient is asked for. Steps of a loop of one's own
    may be scheduled without `strategy.run`, outside of replicas.
    """
    strategy = tf.distribute.get_strategy()
    is_replica = not tf.distribute.in_cross_replica_context()
    on_servers = isinstance(strategy, tf.distribute.ParameterServerStrategy)
    if not (training or (on_servers and is_replica)) or compat.compiled_by_xla():
        return False
    if tf.distribute.has_strategy() and not (is_replica or on_servers):
        return False
    # Keras traces models with tensors in the place of variables to find shapes.
    are_variables = all(isinstance(part, tf.Variable) for part in parts)
    return are_variables and all("GPU" not in x.device.upper() for x in parts)
