"""The work queue's ops: its rules through TensorFlow, its errors, and ends of waits.

tests/cc/work_queue_test.cc tests the rules themselves.
"""

import itertools

import pytest
import tensorflow as tf
from waiting import in_thread, until

from tf_syncrep.python.ops import work_queue_ops as ops

DEADLINE_SECS = 30
A = ("/job:worker/task:0", 11)
B = ("/job:worker/task:1", 12)

_numbers = itertools.count()


def queue(num_items=2, **options):
    name = options.pop("shared_name", f"test_queue_{next(_numbers)}")
    return ops.work_queue(num_items, shared_name=name, **options)


def take(handle, worker, last=ops.NO_TICKET, stream=0):
    results = ops.work_queue_take(handle, *worker, stream, last)
    return tuple(int(x) for x in results)


def stats(handle):
    names, values = (x.numpy() for x in ops.work_queue_stats(handle))
    return {
        name.decode(): int(value) for name, value in zip(names, values, strict=True)
    }


def test_items_of_all_epochs_are_taken_and_their_ends_counted():
    handle = queue(num_epochs=2)
    first, epoch, item = take(handle, A)
    assert (epoch, item) == (0, 0)
    second, *place = take(handle, B)
    assert place == [0, 1]
    ops.work_queue_limit(handle, 0)
    assert take(handle, A, first) == (ops.NO_TICKET, 0, 0)
    ops.work_queue_limit(handle, ops.NO_LIMIT)
    first, *place = take(handle, A)
    assert place == [1, 0]
    assert take(handle, B, second)[1:] == (1, 1)
    counted = stats(handle)
    assert (counted["handed_out"], counted["done"]) == (4, 2)
    assert (counted["in_flight"], counted["epoch"]) == (2, 2)


def test_last_taker_waits_for_items_that_may_come_back():
    handle = queue(lease_secs=600.0)
    first, *_ = take(handle, A)
    second, *_ = take(handle, B)
    waits = in_thread(take, handle, A, first)
    until(lambda: stats(handle)["waiting"] == 1, secs=DEADLINE_SECS)
    # Another life of the other worker begins, so the waiting worker gets the item.
    reborn = in_thread(take, handle, (B[0], 13))
    ticket, *place = waits.result(DEADLINE_SECS)
    assert place == [0, 1]
    assert stats(handle)["repeated"] == 1
    assert take(handle, A, ticket) == (ops.NO_TICKET, 0, 0)
    reborn.result(DEADLINE_SECS)
    assert stats(handle)["done"] == 2
    with pytest.raises(tf.errors.AbortedError, match=r"this life of .* is over"):
        take(handle, B, second)


def test_item_comes_back_when_its_lease_ends():
    handle = queue(1, lease_secs=0.05)
    take(handle, A)
    assert take(handle, B)[1:] == (0, 0)


def test_wait_ends_with_its_step():
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        handle = queue(1)
        session.run(ops.work_queue_take(handle, *A, 0, 0))
        taken = ops.work_queue_take(handle, *B, 0, 0)
        options = tf.compat.v1.RunOptions(timeout_in_ms=200)
        with pytest.raises(tf.errors.DeadlineExceededError):
            session.run(taken, options=options)
        names, values = session.run(ops.work_queue_stats(handle))
        assert dict(zip(names, values, strict=True))[b"waiting"] == 0


def test_recent_items_are_those_of_readers_and_the_ones_before():
    handle = queue(5)
    assert ops.work_queue_recent(handle).numpy().tolist() == []
    first, *_ = take(handle, A)
    take(handle, A, first)
    take(handle, B)
    assert sorted(ops.work_queue_recent(handle).numpy()) == [0, 1, 2]


def test_restored_queue_goes_on_and_others_states_are_refused():
    handle = queue(3, shuffle=True, seed=5)
    first, *_ = take(handle, A)
    take(handle, A, first)
    state = ops.work_queue_save(handle)
    other = queue(3, shuffle=True, seed=5)
    ops.work_queue_restore(other, state)
    counted = stats(other)
    assert (counted["done"], counted["waiting_items"]) == (1, 1)
    last, left = ops.NO_TICKET, []
    while (got := take(other, B, last))[0] != ops.NO_TICKET:
        last = got[0]
        left.append(got[1:])
    assert len(set(left)) == 2
    assert stats(other)["done"] == 3
    for handle in (queue(4, shuffle=True, seed=5), queue(3)):
        with pytest.raises(tf.errors.InvalidArgumentError, match="these items, epochs"):
            ops.work_queue_restore(handle, state)
    changed = tf.tensor_scatter_nd_update(state, [[5]], [-1])
    for bad in (state[:-1], tf.zeros([2, 2], tf.int64), changed):
        with pytest.raises(tf.errors.InvalidArgumentError, match="state"):
            ops.work_queue_restore(other, bad)
    assert stats(other)["done"] == 3


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_items": 0}, "num_items must be at least 1. Received: 0"),
        ({"num_epochs": -1}, "num_epochs must not be negative. Received: -1"),
        ({"lease_secs": float("nan")}, "lease_secs must be positive, but is nan"),
        ({"lease_secs": 0.0}, "lease_secs must be positive, but is 0"),
    ],
)
def test_queues_that_make_no_sense_are_refused(options, message):
    with pytest.raises(tf.errors.InvalidArgumentError, match=message):
        queue(**options)


def test_name_in_use_with_other_arguments_is_refused():
    queue(shared_name="queue_of_two")
    queue(shared_name="queue_of_two")
    with pytest.raises(
        tf.errors.InvalidArgumentError, match=r"exists with num_items=2.*Received: num"
    ):
        queue(3, shared_name="queue_of_two")


def test_limits_that_are_none_are_refused():
    with pytest.raises(tf.errors.InvalidArgumentError, match="epoch"):
        ops.work_queue_limit(queue(), -2)


def test_a_worker_that_leaves_gets_no_more_and_gives_back_what_it_has():
    handle = queue(num_items=3)
    first, *_ = take(handle, A)
    ops.work_queue_leave(handle, A[0], False)
    assert take(handle, A, first) == (ops.NO_TICKET, 0, 0)
    assert take(handle, B)[2] == 1
    ops.work_queue_leave(handle, B[0], True)
    counted = stats(handle)
    assert (counted["done"], counted["waiting_items"]) == (1, 1)
