"""Many threads updating one variable at once: no update is lost or torn.

The updates are ops of one graph that do not wait for each other. A session runs them
again and again, so that its threads meet in the kernels. The formulas are chosen so
that each number is an integer or a power of two, with which floating point arithmetic
is exact, and so that the order of the updates does not matter. So each final state has
one right value, to the bit. A gradient of ones, beta2 = 0 and epsilon = 0 make v = 1:

- Adam with beta1 = 0 subtracts exactly lr at each step;
- as many steps with lr = 1 as with lr = -1, or with betas of 0.5 as with 2, end where
  they began, however many there are.
"""

import contextlib
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import tensorflow as tf
from combinations import thinned
from rule_steps import DTYPES, AdamAsync

pytestmark = pytest.mark.usefixtures("device")

tf1 = tf.compat.v1

# Few and long rows, so that threads are at the same row much of the time.
ROWS = 12
COLUMNS = 1500

KINDS = ("dense", "both")
# Whether variables are resources, and whether updates lock them as wholes.
HOW = ((True, False), (True, True), (False, False), (False, True))


def zeros(dtype=tf.float32, power=0.0, shape=(ROWS, COLUMNS)):
    state = AdamAsync("adam_async", shape, dtype)
    for values in state.values.values():
        values[...] = 0
    for name in ("beta1_power", "beta2_power"):
        state.values[name][...] = power
    state.numbers.update(lr=1.0, beta1=0.0, beta2=0.0, epsilon=0.0)
    return state


@contextlib.contextmanager
def many_threads():
    """A session whose graph may run eight ops at the same time."""
    config = tf1.ConfigProto(
        inter_op_parallelism_threads=8, use_per_session_threads=True
    )
    with tf.Graph().as_default(), tf1.Session(config=config) as session:
        yield session


def run_together(*tasks):
    """Runs all tasks at once, each in a thread; raises the first error of any."""
    start = threading.Barrier(len(tasks))

    def run(task):
        start.wait(timeout=60)
        task()

    with ThreadPoolExecutor(len(tasks)) as pool:
        for future in [pool.submit(run, task) for task in tasks]:
            future.result(120)


def train(session, variables, updates, runs):
    """Three threads run all updates in each of their runs; returns the last state."""
    # The ref ops return a tensor; fetching it would cost a copy.
    train_op = tf.group(*[getattr(update, "op", update) for update in updates])
    session.run(tf1.global_variables_initializer())

    def task():
        for _ in range(runs):
            session.run(train_op)

    run_together(task, task, task)
    return session.run(variables)


def is_dense(kinds, i):
    """Whether the i-th update is dense; pairs of updates are of one kind."""
    return kinds == "dense" or (kinds == "both" and i // 2 % 2 == 0)


@thinned("kinds, dtype, how", KINDS, DTYPES, HOW)
def test_steps_there_and_back_end_where_they_began(kinds, dtype, how):
    use_resource, use_locking = how
    rows = np.array([7, 0, 11])
    with many_threads() as session:
        state = zeros(dtype)
        variables, updates = state.make(use_resource), []
        for i in range(40):
            state.numbers["lr"] = 1.0 if i % 2 == 0 else -1.0
            if is_dense(kinds, i):
                updates.append(state.apply(variables, tf.ones([ROWS, COLUMNS], dtype)))
            else:
                grad = tf.ones([3, COLUMNS], dtype)
                updates.append(
                    state.apply(variables, grad, rows, use_locking=use_locking)
                )
        after = train(session, variables, updates, runs=6)

    np.testing.assert_array_equal(after["var"], np.zeros([ROWS, COLUMNS]))
    np.testing.assert_array_equal(after["m"][rows], np.ones([3, COLUMNS]))


@thinned("kinds, how", KINDS, HOW)
def test_no_advance_of_the_powers_is_lost(kinds, how):
    """With one element to update, threads are at the powers most of the time."""
    use_resource, use_locking = how
    # Up to three runs at a time may do all halvings before all doublings: 2^-80 is
    # still exact in float32.
    power = 2.0**-20
    with many_threads() as session:
        state = zeros(power=power, shape=[1, 1])
        variables, updates = state.make(use_resource), []
        for i in range(40):
            beta = 0.5 if i % 2 == 0 else 2.0
            state.numbers.update(beta1=beta, beta2=beta)
            indices = None if is_dense(kinds, i) else [0]
            grad = np.zeros([1, 1], np.float32)
            updates.append(
                state.apply(variables, grad, indices, use_locking=use_locking)
            )
        after = train(session, variables, updates, runs=300)

    assert after["beta1_power"] == power
    assert after["beta2_power"] == power


@pytest.mark.parametrize("kind", ["dense", "sparse"])
def test_whole_updates_are_exclusive_where_they_say_so(kind):
    """Dense updates, and sparse ones with use_locking: no read sees half an update."""
    rows = 100
    indices = np.arange(rows) if kind == "sparse" else None
    state = zeros(shape=[rows, COLUMNS])
    variables = state.make()
    done = threading.Event()

    def write():
        for _ in range(100):
            state.apply(variables, tf.ones([rows, COLUMNS]), indices, use_locking=True)

    def write_all():
        try:
            run_together(write, write)
        finally:
            done.set()

    def read():
        while not done.is_set():
            value = variables["var"].numpy()
            assert np.all(value == value[0, 0]), np.unique(value)

    run_together(write_all, read)
    np.testing.assert_array_equal(variables["var"], np.full([rows, COLUMNS], -200.0))


@pytest.mark.parametrize("use_resource", [True, False])
def test_variables_given_in_different_orders_do_not_deadlock(use_resource):
    """Two ops use the same two variables, each as the other's first moment."""
    with many_threads() as session:
        state = zeros(shape=[4])
        variables = state.make(use_resource)
        swapped = {**variables, "var": variables["m"], "m": variables["var"]}
        updates = [
            state.apply([variables, swapped][i % 2], tf.ones([4])) for i in range(100)
        ]
        after = train(session, variables, updates, runs=20)
    # Whatever the order: steps of 1 down, and back to 1 as a moment.
    for name in ("var", "m"):
        np.testing.assert_array_equal(after[name], np.round(after[name]))
