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
from tf_syncrep.python.sync.session_loop import SessionLoop

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


def through_session(take: Take, name: str, num_readers: int) -> Take:
    """Makes the takes of one dataset run in the graph around it.

    Args:
        take: builds a take.
        name: for the ops.
        num_readers: how many streams ask.

    Returns:
        The same for functions of a dataset whose readers ask one after the other. It
        waits until the graph's queue runners are started.
    """
    types = [tf.int64] * 3
    asked = tf.queue.FIFOQueue(1, types, [[]] * 3, name=f"{name}_asked")
    given = tf.queue.FIFOQueue(1, types, [[]] * 3, name=f"{name}_given")
    tf.compat.v1.train.add_queue_runner(_Answers(take, asked, given, num_readers))

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

    def ask_until_the_end(stream: Any, last: Any) -> tuple[Any, Any]:
        no_item = (
            tf.constant(work_queue_ops.NO_TICKET, tf.int64),
            tf.zeros([], tf.int64),
        )
        is_at_end = tf.logical_and(asked.is_closed(), tf.logical_not(given.is_closed()))
        return tf.cond(is_at_end, lambda: no_item, lambda: ask(stream, last))

    return ask_until_the_end


class _Answers(SessionLoop):
    """Answers a dataset's readers until each of them was told that there is no more.

    From then on the queue of questions is closed, and readers ask no more. Where the
    queue of answers is closed as well, readers have an error: that is not the end.
    """

    def __init__(self, take: Take, asked: Any, given: Any, num_readers: int):
        """Builds the ops.

        Args:
            take: builds a take.
            asked: the queue of questions.
            given: the queue of answers.
            num_readers: how many streams ask.
        """
        number, stream, last = asked.dequeue()
        self._taken = [stream, number, *take(stream, last)]
        self._answer = [tf.compat.v1.placeholder(tf.int64, []) for _ in range(3)]
        self._num_readers = num_readers
        # A worker's task keeps them for longer than a session lasts, and a closed queue
        # stays closed.
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
        """Makes queues anew that an earlier session has closed."""
        session.run(self._reopen_op)

    def loop(self, session, coord):
        """Answers one question after the other."""
        take = session.make_callable(self._taken)
        answer = session.make_callable(self.enqueue_ops[0], self._answer)
        told = set()  # the streams that were told that there is no more
        while len(told) < self._num_readers and not (coord and coord.should_stop()):
            stream, number, ticket, item = take()
            if ticket == work_queue_ops.NO_TICKET:
                told.add(int(stream))
            else:
                told.discard(int(stream))
            if len(told) == self._num_readers:  # Before the last one can ask again.
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
