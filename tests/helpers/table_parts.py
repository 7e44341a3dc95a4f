"""Parts of tables that grow: their variables and index, and calls of `table_ops`."""

import tensorflow as tf

from tf_syncrep.python.ops import table_ops


class TablePart:
    """A part that has these tables, one after the other."""

    def __init__(self, tables, width, dtype=tf.float32, num_slots=0, **index):
        """Makes the part; `index` has options for the index."""
        rows = sum(table.capacity for table in tables)
        self.dtype = dtype
        self.index = table_ops.table_index(tables, **(index or {"counted": True}))
        self.vectors, *self.slots = (
            tf.Variable(table_ops.table_zeros([rows, width], dtype))
            for _ in range(1 + num_slots)
        )
        self.keys = tf.Variable(table_ops.table_zeros([rows], tf.int64))
        self.uses = tf.Variable(table_ops.table_zeros([rows, 2], tf.int32))

    @property
    def columns(self):
        return self.keys.handle, self.uses.handle

    def find(self, request, insert, transfer_dtype=None):
        return table_ops.table_find(
            *(self.index, self.vectors.handle, *self.columns, request),
            insert=insert,
            shape=self.vectors.shape,
            dtype=self.dtype,
            transfer_dtype=transfer_dtype,
        )

    def maintain(self, step, evict, unused_for, slot_initial=0.0):
        return table_ops.table_maintain(
            *(self.index, self.vectors.handle, *self.columns, step),
            slots=[slot.handle for slot in self.slots],
            slot_initials=[slot_initial] * len(self.slots),
            evict=evict,
            unused_for=unused_for,
            dtype=self.dtype,
        )

    def release(self, keys, table=0, rests=True, sets_back=False, slot_initial=0.0):
        return table_ops.table_release(
            *(self.index, self.vectors.handle, *self.columns, table, keys),
            rests=rests,
            sets_back=sets_back,
            slots=[slot.handle for slot in self.slots],
            slot_initials=[slot_initial] * len(self.slots),
            dtype=self.dtype,
        )

    def gradient(self, request, rows, gradient):
        return table_ops.table_gradient(
            self.index, *self.columns, request, rows, gradient, dtype=self.dtype
        )

    def stats(self, table=0):
        return table_ops.table_stats(self.index)[table]

    def export(self, table=0):
        return table_ops.table_export(self.index, *self.columns, table)
