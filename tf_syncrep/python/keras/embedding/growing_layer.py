"""A mixin of layers that may have tables that grow."""

from tf_syncrep.python.keras.tables.growing.dynamic_tables import DynamicTables
from tf_syncrep.python.keras.tables.growing.table_stats import with_memory


class GrowingLayer:
    """A layer that may have tables that grow."""

    # The name is not `_dynamic`, which has another meaning in layers of Keras 2.
    _growing: DynamicTables

    def table_stats(self) -> dict[str, dict[str, int]]:
        """Returns what the tables that grow have counted since they were made.

        Returns:
            The counters of each table by name: "rows" (in use) and "capacity" (rows
            that there is room for); "without_row", how often training looked up a key
            that has no row; "admitted", keys to which training gave a row; "evicted"
            (keys); "refused", how often a key got no row because its part of the table
            was full; "dropped", how many gradients came for a row that had been
            removed; "index_bytes", the memory of the indices; "vector_bytes", the
            memory of the rows in use, with their keys; "slot_bytes", that of their
            slots in all optimizers that train them.

        Example:
        >>> items = tfs.keras.TableConfig("items", tfs.keras.Dynamic(1000), 8)
        >>> layer = tfs.keras.DistributedEmbedding(tfs.keras.FeatureConfig("f", items))
        >>> _ = layer(tf.constant([7, -7, 7]), training=True)
        >>> layer.table_stats()["items"]["rows"]
        2
        """
        return with_memory(self._growing)
