"""The queue runner of SyncReplicasOptimizer's chief."""

from __future__ import annotations

import tensorflow as tf


class ChiefQueueRunner(tf.compat.v1.train.QueueRunner):
    """Applies the gradients of each step, in a thread of the chief.

    Scripts of the oldest API know neither hooks nor `chief_init_op`: they start this
    queue runner and expect training to begin. So it opens the gate in a session that
    has not done so itself.
    """

    def __init__(self, *, generation, open_op, **arguments):
        """Creates it.

        Args:
            generation: a local variable, not initialized or 0 before `open_op`.
            open_op: begins the training.
            **arguments: for the base class.
        """
        super().__init__(**arguments)
        self._generation = generation
        self._open_op = open_op

    def create_threads(self, sess, coord=None, daemon=False, start=False):
        """Opens the gate if that is still to be done, then does as the base class.

        Args:
            sess: a session whose global variables are initialized.
            coord: a coordinator, to whom errors are reported.
            daemon: whether the process may end before the threads.
            start: whether to start the threads.

        Returns:
            The threads.
        """
        try:
            generation = sess.run(self._generation)
        except tf.errors.FailedPreconditionError:  # It is not initialized.
            generation = 0
        if not generation:
            sess.run(self._open_op)
        return super().create_threads(sess, coord=coord, daemon=daemon, start=start)
