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

    def find(self, request, insert, transfer_dtype=None):
        return table_ops.table_find(
            self, request, insert=insert, transfer_dtype=transfer_dtype
        )

    def maintain(self, step, evict, unused_for, slot_initial=0.0):
        return table_ops.table_maintain(
            self,
            step,
            slots=[(slot, slot_initial) for slot in self.slots],
            evict=evict,
            unused_for=unused_for,
        )

    def release(self, keys, table=0, rests=True, sets_back=False, slot_initial=0.0):
        return table_ops.table_release(
            self,
            table,
            keys,
            rests=rests,
            sets_back=sets_back,
            slots=[(slot, slot_initial) for slot in self.slots],
        )

    def gradient(self, request, rows, gradient):
        inputs = self.index, self.keys.handle, self.uses.handle, request, rows, gradient
        return table_ops.table_gradient(*inputs, dtype=self.dtype)

    def stats(self, table=0):
        return table_ops.table_stats(self.index)[table]

    def export(self, table=0):
        return table_ops.table_export(self, table)
