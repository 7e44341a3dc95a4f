"""The context in which an optimizer makes an update of its own."""

from typing import Any

import tensorflow as tf


class UpdateContext(tf.distribute.ReplicaContext):
    """The context in which optimizers expect an update: that of one replica.

    It is a context manager, which is entered in the strategy's scope:

    ```python
    with strategy.scope(), UpdateContext(strategy):
        optimizer.apply_gradients(zip(means, variables))
    ```

    The gradients are already those of the whole step, so values that would be summed
    over the replicas stay as they are. `strategy.run` would send the update to a
    worker, and would end in a context whose sums are those of the workers.

    The class is public, but usually only TensorFlow's own strategies make such contexts
    and enter them.
    """

    def __init__(self, strategy: Any):
        super().__init__(strategy, replica_id_in_sync_group=0)

    def all_reduce(self, reduce_op, value, options=None):
        """Leaves the value as it is."""
        del reduce_op, options
        return value
