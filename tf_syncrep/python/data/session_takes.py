"""Work queues in graphs of `tf.compat.v1`, whose datasets cannot call other tasks.

Functions of a dataset run only on the worker there. So a reader asks through one of
TensorFlow's queues on its own task. A queue runner, whose ops are in the graph itself,
takes the item on the task that has the work queue, and answers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tf_syncrep.python.base.session_loop import SessionLoop
from tf_syncrep.python.ops import work_queue_ops

# Takes a stream and the ticket of its last item; returns a ticket and an item. All are
# int64 scalars.
Take = Callable[[Any, Any], tuple[Any, Any]]


def device_of_variables() -> str:
    """Returns the device that a variable would get, as of `replica_device_setter`."""
    return tf.raw_ops.VarHandleOp(dtype=tf.int64, shape=[]).device


def ledger_ops(handle: Any) -> dict[str, tuple[Any, list[Any]]]:
    """Builds the ops of a queue's ledger, before the graph is complete.

    Returns what to fetch, and the placeholders of what to feed, by the ops' names.
    """
    state = tf.compat.v1.placeholder(tf.int64, [None], "work_queue_state")
    return {
        "stats": (list(work_queue_ops.work_queue_stats(handle)), []),
        "recent": (work_queue_ops.work_queue_recent(handle), []),
        "save": (work_queue_ops.work_queue_save(handle), []),
        "restore": (work_queue_ops.work_queue_restore(handle, state), [state]),
    }


def through_session(take: Take, name: str, num_readers: int) -> Take:
    """Makes the takes of one dataset run in the graph around it."""
    types = [tf.int64] * 3
    asked = tf.queue.FIFOQueue(1, types, [[]] * 3, name=f"{name}_asked")
    given = tf.queue.FIFOQueue(1, types, [[]] * 3, name=f"{name}_given")
    tf.compat.v1.train.add_queue_runner(_Answers(take, asked, given, num_readers))

    def ask(stream: Any, last: Any) -> tuple[Any, Any]:
        # The number lets a reader pass over answers to an earlier reader that did not
        # wait.
        number = tf.random.uniform([], maxval=tf.int64.max, dtype=tf.int64)
        with tf.control_dependencies([asked.enqueue([number, stream, last])]):
            first = given.dequeue()
        _, ticket, item = tf.while_loop(
            lambda answered, *_: tf.not_equal(answered, number),
            lambda *_: given.dequeue(),
            first,
        )
        return ticket, item

    def ask_until_the_end(stream: Any, last: Any) -> tuple[Any, Any]:
        no_item = (
            tf.constant(work_queue_ops.NO_TICKET, tf.int64),
            tf.zeros([], tf.int64),
        )
        is_at_end = tf.logical_and(asked.is_closed(), tf.logical_not(given.is_closed()))
        return tf.cond(is_at_end, lambda: no_item, lambda: ask(stream, last))

    return ask_until_the_end


class _Answers(SessionLoop):
    """Answers a dataset's readers until each was told that there are no more items.

    From then on the queue of questions is closed, and readers ask no more. If the queue
    of answers is closed as well, readers get an error, which is not the end of the
    data.
    """

    def __init__(self, take: Take, asked: Any, given: Any, num_readers: int):
        number, stream, last = asked.dequeue()
        self._taken = [stream, number, *take(stream, last)]
        self._answer = [tf.compat.v1.placeholder(tf.int64, []) for _ in range(3)]
        self._num_readers = num_readers
        # A worker's task keeps the queues for longer than a session lasts, and a closed
        # queue stays closed.
        self._reopen_op = tf.group(*(_destroy_if_closed(q) for q in (asked, given)))
        close_answers = given.close(cancel_pending_enqueues=True)
        with tf.control_dependencies([close_answers]):
            cancel_op = asked.close(cancel_pending_enqueues=True)
        super().__init__(
            title="The work queue's part on this worker",
            queue=given,
            enqueue_ops=[given.enqueue(self._answer)],
            close_op=asked.close(),
            cancel_op=cancel_op,
        )

    def begin(self, session):
        """Makes new queues in place of those that an earlier session has closed."""
        session.run(self._reopen_op)

    def loop(self, session, coord):
        """Answers one question after the other."""
        take = session.make_callable(self._taken)
        answer = session.make_callable(self.enqueue_ops[0], self._answer)
        told = set()  # the streams that know of the end
        while len(told) < self._num_readers and not (coord and coord.should_stop()):
            stream, number, ticket, item = take()
            if ticket == work_queue_ops.NO_TICKET:
                told.add(int(stream))
            else:
                told.discard(int(stream))
            if len(told) == self._num_readers:  # before the last one can ask again
                session.run(self.close_op)
            answer(number, ticket, item)


def _destroy_if_closed(queue: Any) -> Any:
    return tf.cond(
        queue.is_closed(),
        lambda: tf.group(
            tf.raw_ops.DestroyResourceOp(
                resource=queue.queue_ref, ignore_lookup_error=True
            )
        ),
        tf.no_op,
    )
