"""Work queues in graphs of `tf.compat.v1`, whose datasets cannot call another task.

Functions of a dataset run on the worker alone there. So a reader asks through a queue
of TensorFlow's on its own task, and a queue runner, whose ops lie in the graph itself,
takes the item on the task of the ledger and answers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from tf_syncrep.python.ops import work_queue_ops

# Of a stream and the ticket of its last item: a ticket and an item; int64 scalars.
Take = Callable[[Any, Any], tuple[Any, Any]]


def device_of_variables() -> str:
    """The device of a variable made here, as of `replica_device_setter`."""
    return tf.raw_ops.VarHandleOp(dtype=tf.int64, shape=[]).device


class SessionLedger:
    """A queue's ledger, by ops in a graph that was not complete when this was made."""

    def __init__(self, handle: Any):
        """Builds the ops, on the device of the context.

        Args:
            handle: of the queue.
        """
        self._stats = list(work_queue_ops.work_queue_stats(handle))
        self._saved = work_queue_ops.work_queue_save(handle)
        self._state = tf.compat.v1.placeholder(tf.int64, [None], "work_queue_state")
        self._restore = work_queue_ops.work_queue_restore(handle, self._state)

    def stats(self, session: Any) -> Sequence[Any]:
        """The names of the counters, and their values."""
        return session.run(self._stats)

    def save(self, session: Any) -> Any:
        """The state."""
        return session.run(self._saved)

    def restore(self, session: Any, state: Any) -> None:
        """Sets the state."""
        session.run(self._restore, {self._state: state})


def through_session(take: Take, name: str) -> Take:
    """Makes the takes of one dataset run in the graph around it.

    Args:
        take: builds a take.
        name: for the ops.

    Returns:
        The same for functions of a dataset whose readers ask one after the other. It
        waits until the graph's queue runners are started.
    """
    types = [tf.int64] * 3
    asked = tf.queue.FIFOQueue(1, types, [[]] * 3, name=f"{name}_asked")
    given = tf.queue.FIFOQueue(1, types, [[]] * 3, name=f"{name}_given")
    number, stream, last = asked.dequeue()
    answer = given.enqueue([number, *take(stream, last)])
    tf.compat.v1.train.add_queue_runner(
        tf.compat.v1.train.QueueRunner(given, [answer], *[_close([asked, given])] * 2)
    )

    def ask(stream: Any, last: Any) -> tuple[Any, Any]:
        # An answer to an earlier reader, which did not wait for it, is not ours.
        number = tf.random.uniform([], maxval=tf.int64.max, dtype=tf.int64)
        with tf.control_dependencies([asked.enqueue([number, stream, last])]):
            first = given.dequeue()
        _, ticket, item = tf.while_loop(
            lambda answered, *_: tf.not_equal(answered, number),
            lambda *_: given.dequeue(),
            first,
        )
        return ticket, item

    return ask


def _close(queues: Sequence[Any]) -> Any:
    """Ends the waits at queues, and lets the next session make them anew.

    A worker's task keeps them for longer than a session lasts, and a closed queue stays
    closed.
    """
    with tf.control_dependencies(
        [q.close(cancel_pending_enqueues=True) for q in queues]
    ):
        return tf.group(
            *(
                tf.raw_ops.DestroyResourceOp(
                    resource=q.queue_ref, ignore_lookup_error=True
                )
                for q in queues
            )
        )
