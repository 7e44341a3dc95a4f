"""Takes that wait, in real threads: who ends them, once each, and with which result."""

from concurrent import futures

import numpy as np
import pytest
import tensorflow as tf

import tf_syncrep as tfs

pytestmark = pytest.mark.usefixtures("on_device")

DEADLINE = 60.0

both_kinds = pytest.mark.parametrize("sparse", [False, True], ids=["dense", "sparse"])


class Accumulator:
    """A dense or sparse accumulator of shape [4, 2], with the same interface."""

    def __init__(self, sparse, **options):
        make = tfs.ops.sparse_accumulator if sparse else tfs.ops.dense_accumulator
        if tf.executing_eagerly():
            options["counted"] = True
        self.sparse = sparse
        self.handle = make(tf.float32, [4, 2], **options)

    def push(self, value, step=0):
        gradient = tf.fill([4, 2], tf.cast(value, tf.float32))
        if self.sparse:
            return tfs.ops.accumulator_apply_sparse(
                self.handle, step, tf.range(4), gradient
            )
        return tfs.ops.accumulator_apply_dense(self.handle, step, gradient)

    def take(self, num_required):
        """The reduced gradient's values."""
        if self.sparse:
            return tfs.ops.accumulator_take_sparse(
                self.handle, num_required, tf.float32
            ).values
        return tfs.ops.accumulator_take_dense(self.handle, num_required, tf.float32)

    def held(self):
        return tfs.ops.accumulator_num_accumulated(self.handle)


@pytest.fixture
def pool():
    with futures.ThreadPoolExecutor(64) as executor:
        yield executor


@both_kinds
@pytest.mark.parametrize("in_function", [False, True])
def test_a_take_waits_for_the_last_gradient(sparse, in_function, pool):
    accumulator = Accumulator(sparse)
    call = tf.function(accumulator.take) if in_function else accumulator.take
    take = pool.submit(lambda: call(3).numpy())
    for value in [1.0, 2.0]:
        accumulator.push(value)
    # It may have begun or not: in both cases it must not end now.
    assert not futures.wait([take], timeout=0.3).done
    accumulator.push(6.0)
    np.testing.assert_array_equal(take.result(DEADLINE), np.full([4, 2], 3.0))


@both_kinds
def test_closing_the_session_ends_the_wait(sparse, pool):
    with tf.Graph().as_default():
        accumulator = Accumulator(sparse)
        take, push, held = (
            accumulator.take(2),
            accumulator.push(1.0),
            accumulator.held(),
        )
    session = tf.compat.v1.Session(graph=take.graph)
    assert session.run(held) == 0
    waiting = [pool.submit(session.run, take) for _ in range(5)]
    session.run(push)
    session.close()
    for one in waiting:
        error = one.exception(DEADLINE)
        # A run that had not begun is told that the session is closed.
        assert isinstance(error, (tf.errors.CancelledError, RuntimeError))


@both_kinds
def test_a_timeout_ends_the_wait_and_loses_nothing(sparse):
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        accumulator = Accumulator(sparse)
        take = accumulator.take(2)
        session.run(accumulator.push(1.0))
        with pytest.raises((tf.errors.DeadlineExceededError, tf.errors.CancelledError)):
            session.run(take, options=tf.compat.v1.RunOptions(timeout_in_ms=200))
        assert session.run(accumulator.held()) == 1
        session.run(accumulator.push(3.0))
        # The cancelled take does not block this one.
        np.testing.assert_array_equal(session.run(take), np.full([4, 2], 2.0))


@both_kinds
def test_an_error_elsewhere_in_the_function_ends_the_wait(sparse):
    accumulator = Accumulator(sparse)

    @tf.function
    def function(x):
        taken = accumulator.take(2)
        tf.debugging.assert_less(x, 0.0, "this fails")
        return taken

    accumulator.push(1.0)
    with pytest.raises(tf.errors.InvalidArgumentError, match="this fails"):
        function(tf.constant(1.0))
    assert int(accumulator.held()) == 1
    accumulator.push(3.0)
    np.testing.assert_array_equal(accumulator.take(2), np.full([4, 2], 2.0))


@both_kinds
def test_an_accumulator_with_a_waiting_take_outlives_its_handle(sparse, pool):
    accumulator = Accumulator(sparse)
    take = pool.submit(lambda: accumulator.take(1).numpy())
    handle = accumulator.handle
    accumulator.push(5.0)
    del accumulator.handle
    np.testing.assert_array_equal(take.result(DEADLINE), np.full([4, 2], 5.0))
    assert int(tfs.ops.accumulator_num_accumulated(handle)) == 0
