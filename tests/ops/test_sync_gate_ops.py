"""The gate's ops: the protocol through TensorFlow, its errors, and the ends of waits.

tests/cc/sync_gate*_test.cc tests the rules of the protocol themselves.
"""

import functools
import itertools
import re
import threading

import pytest
import sync_accounting
import tensorflow as tf
from waiting import in_thread, until

from tf_syncrep.python.ops import sync_gate_ops as ops
from tf_syncrep.python.sync import gate_stats

tf1 = tf.compat.v1

DEADLINE_SECS = 30
# So long that it does not end while a busy machine holds up the test for a moment.
SHORT_LEASE_SECS = 0.5
A = ("/job:worker/task:0", 11)
B = ("/job:worker/task:1", 12)

_numbers = itertools.count()


def _gate(quorum=2, total=2, **kwargs):
    name = kwargs.pop("shared_name", f"test_gate_{next(_numbers)}")
    return ops.sync_gate(quorum, total, shared_name=name, **kwargs)


def _stats(handle):
    """The gate's counters, and those of its workers."""
    gate = gate_stats.to_dict(*(x.numpy() for x in ops.sync_gate_stats(handle)))
    return gate, gate.pop("workers")


def _contribute(handle, worker, first=False):
    generation, round_number, step = ops.sync_gate_acquire(handle, *worker, first=first)
    assert ops.sync_gate_admit(handle, generation, round_number, *worker, True)
    assert ops.sync_gate_commit(handle, generation, round_number, *worker)
    return int(round_number), int(step)


def _train(handle, worker, generation, step):
    """A step of a worker, and the update of a round that needs no other."""
    permit = ops.sync_gate_acquire(handle, *worker)
    with tf.control_dependencies(permit):
        admitted = ops.sync_gate_admit(handle, *permit[:2], *worker, True)
    with tf.control_dependencies([admitted]):
        committed = ops.sync_gate_commit(handle, *permit[:2], *worker)
    with tf.control_dependencies([committed]):
        full, _ = ops.sync_gate_wait_quorum(handle, generation)
    return ops.sync_gate_advance(handle, generation, full, step)


def _until(condition):
    until(condition, secs=DEADLINE_SECS)


def test_rounds_follow_each_other_when_all_have_contributed():
    handle = _gate()
    generation = ops.sync_gate_open(handle, 5)
    rounds = []
    for update in range(3):
        steps = [_contribute(handle, worker) for worker in (A, B)]
        full, num_gradients = ops.sync_gate_wait_quorum(handle, generation)
        assert steps == [(int(full), 5 + update)] * 2
        assert int(num_gradients) == 2
        assert ops.sync_gate_advance(handle, generation, full, 6 + update)
        rounds.append(int(full))
    assert rounds == [rounds[0], rounds[0] + 1, rounds[0] + 2]
    gate, workers = _stats(handle)
    assert gate["updates"] == gate["rounds"] == 3
    assert gate["applied"] == gate["committed"] == gate["admitted"] == 6
    assert workers[A[0]]["contributed"] == workers[B[0]]["contributed"] == 3
    # Both have waited for answers, and rounds for the second one.
    assert workers[A[0]]["held_up_secs"] == 0 < workers[B[0]]["held_up_secs"]


def test_acquire_waits_until_the_gate_is_opened():
    handle = _gate()
    wait = in_thread(ops.sync_gate_acquire, handle, *A, first=True)
    _until(lambda: A[0] in _stats(handle)[1])
    assert not wait.done()
    generation = ops.sync_gate_open(handle, 7)
    acquired = wait.result(DEADLINE_SECS)
    assert int(acquired[0]) == int(generation)
    assert int(acquired[2]) == 7


def test_unfit_gradient_is_not_admitted():
    handle = _gate()
    ops.sync_gate_open(handle, 0)
    generation, round_number, _ = ops.sync_gate_acquire(handle, *A)
    assert not ops.sync_gate_admit(handle, generation, round_number, *A, False)
    assert _stats(handle)[0]["rejected"] == 1


def test_abort_of_an_admitted_gradient_voids_the_round():
    handle = _gate()
    ops.sync_gate_open(handle, 0)
    generation, round_number, _ = ops.sync_gate_acquire(handle, *A)
    assert ops.sync_gate_admit(handle, generation, round_number, *A, True)
    ops.sync_gate_abort(handle, generation, round_number, *A)
    assert not ops.sync_gate_commit(handle, generation, round_number, *A)
    gate, _ = _stats(handle)
    assert (gate["aborted"], gate["voids"]) == (1, 1)
    assert gate["round"] == int(round_number) + 1


def test_leave_hands_the_share_over():
    handle = _gate()
    ops.sync_gate_open(handle, 0)
    _contribute(handle, B)
    wait = in_thread(ops.sync_gate_acquire, handle, *B)
    ops.sync_gate_acquire(handle, *A)
    _until(lambda: _phases(handle) == ["computing", "waiting"])
    ops.sync_gate_leave(handle, *A)
    wait.result(DEADLINE_SECS)
    assert _stats(handle)[0]["live"] == 1


def test_pass_is_taken_instead_of_waiting():
    handle = _gate()
    ops.sync_gate_open(handle, 3)
    ops.sync_gate_add_passes(handle, 1)
    _contribute(handle, A, first=True)
    generation, round_number, step = ops.sync_gate_acquire(handle, *A)
    assert int(step) == 3
    assert not ops.sync_gate_admit(handle, generation, round_number, *A, True)
    assert _stats(handle)[0]["stale"] == 1


def test_flush_ends_a_round_that_will_not_fill():
    handle = _gate()
    generation = ops.sync_gate_open(handle, 0)
    round_number, _ = _contribute(handle, A)
    flushed, num_gradients = ops.sync_gate_flush(handle, generation)
    assert (int(flushed), int(num_gradients)) == (round_number, 1)
    assert ops.sync_gate_advance(handle, generation, flushed, 1)
    assert int(ops.sync_gate_flush(handle, generation)[1]) == 0
    ops.sync_gate_drain(handle, generation)


def test_close_ends_waits_as_end_of_input_and_open_begins_anew():
    handle = _gate()
    generation = ops.sync_gate_open(handle, 0)
    _contribute(handle, A)
    waits = [
        in_thread(ops.sync_gate_acquire, handle, *A),
        in_thread(ops.sync_gate_wait_quorum, handle, generation),
    ]
    ops.sync_gate_close(handle, ops.ANY_GENERATION)
    for wait in waits:
        assert isinstance(wait.exception(DEADLINE_SECS), tf.errors.OutOfRangeError)
    with pytest.raises(tf.errors.OutOfRangeError, match="the chief has ended"):
        ops.sync_gate_acquire(handle, *A)
    ops.sync_gate_open(handle, 9)
    assert int(ops.sync_gate_acquire(handle, *A)[2]) == 9


def test_generations_of_a_new_gate_come_after_those_of_an_old_one():
    old = ops.sync_gate_open(_gate(), 0)
    assert int(ops.sync_gate_open(_gate(), 0)) > int(old)


def test_chief_may_change_the_terms_when_it_opens():
    handle = _gate(quorum=2, total=2)
    ops.sync_gate_open(handle, 0)
    generation = ops.sync_gate_open(
        handle,
        0,
        quorum=1,
        total=3,
        lease_secs=SHORT_LEASE_SECS,
        start_secs=SHORT_LEASE_SECS,
    )
    gate, _ = _stats(handle)
    assert (gate["quorum"], gate["total"]) == (1, 3)
    round_number, _ = _contribute(handle, A)
    assert ops.sync_gate_advance(handle, generation, round_number, 1)
    _until(lambda: _stats(handle)[0]["live"] == 0)


def test_worker_with_other_terms_than_the_chiefs_is_told_so():
    handle = _gate(quorum=2, total=2, lease_secs=0.05)
    ops.sync_gate_open(handle, 0)
    for first in (False, True):
        with pytest.raises(tf.errors.InvalidArgumentError) as caught:
            ops.sync_gate_acquire(handle, *A, first=first, quorum=2, total=3)
        assert (
            "the chief opened the gate with replicas_to_aggregate=2, "
            "total_num_replicas=2. Received: replicas_to_aggregate=2, "
            "total_num_replicas=3"
        ) in str(caught.value)
    ops.sync_gate_acquire(handle, *A, quorum=2, total=2)


def test_open_ends_the_waits_of_the_generation_before():
    handle = _gate()
    old = ops.sync_gate_open(handle, 0)
    wait = in_thread(ops.sync_gate_wait_quorum, handle, old)
    ops.sync_gate_open(handle, 0)
    assert isinstance(wait.exception(DEADLINE_SECS), tf.errors.AbortedError)
    with pytest.raises(
        tf.errors.AbortedError, match=f"Generation {int(old)} of the gate is over"
    ):
        ops.sync_gate_wait_quorum(handle, old)


def test_cancel_updater_ends_the_updaters_waits_alone():
    handle = _gate()
    generation = ops.sync_gate_open(handle, 0)
    _contribute(handle, A)
    acquire = in_thread(ops.sync_gate_acquire, handle, *A)
    _until(lambda: _stats(handle)[1][A[0]]["phase"] == "waiting")
    waits_for_quorum = threading.Event()

    def wait_quorum():
        waits_for_quorum.set()
        return ops.sync_gate_wait_quorum(handle, generation)

    updater = in_thread(wait_quorum)
    waits_for_quorum.wait(DEADLINE_SECS)
    cancel = functools.partial(ops.sync_gate_cancel_updater, **ops.NO_WORKER)
    _until(lambda: cancel(handle, generation) or updater.done())
    assert isinstance(updater.exception(DEADLINE_SECS), tf.errors.CancelledError)
    assert not acquire.done()
    round_number, _ = _contribute(handle, B)
    assert ops.sync_gate_advance(handle, generation, round_number, 1)
    assert int(acquire.result(DEADLINE_SECS)[2]) == 1


def test_fail_ends_all_with_its_error():
    handle = _gate()
    ops.sync_gate_open(handle, 0)
    error = tf.errors.DATA_LOSS, "the update went wrong"
    ops.sync_gate_fail(handle, *error, ops.ANY_GENERATION)
    with pytest.raises(tf.errors.DataLossError, match="the update went wrong"):
        ops.sync_gate_acquire(handle, *A)


def test_silent_updater_fails_the_waits():
    handle = _gate(updater_lease_secs=SHORT_LEASE_SECS)
    generation = ops.sync_gate_open(handle, 0)
    _contribute(handle, A)
    with pytest.raises(tf.errors.DeadlineExceededError, match="No full round"):
        ops.sync_gate_wait_quorum(handle, generation, timeout_secs=0.01)
    with pytest.raises(tf.errors.DeadlineExceededError, match="has not called"):
        ops.sync_gate_acquire(handle, *A)


def test_function_runs_the_protocol():
    handle = _gate(quorum=1, total=1)
    generation = ops.sync_gate_open(handle, 0)

    @tf.function
    def train_step(step):
        return _train(handle, ops.task_id(), generation, step)

    for step in range(1, 4):
        assert train_step(tf.constant(step, tf.int64))
    assert _stats(handle)[0]["updates"] == 3


def test_closed_session_ends_its_wait_for_a_quorum():
    with tf.Graph().as_default(), tf1.Session() as session:
        handle = _gate()
        generation = ops.sync_gate_open(handle, tf.constant(0, tf.int64))
        wait_op = ops.sync_gate_wait_quorum(handle, generation)
        wait = in_thread(session.run, wait_op)
        stats = ops.sync_gate_stats(handle)
        _until(lambda: session.run(stats)[1][0] > 0)
        session.close()
        assert isinstance(wait.exception(DEADLINE_SECS), tf.errors.CancelledError)


@pytest.mark.parametrize("is_closed", [False, True])
def test_acquire_whose_step_or_session_ends_keeps_no_permit(is_closed):
    server = tf1.train.Server.create_local_server()
    with tf.Graph().as_default():
        handle = _gate(quorum=1, total=1)
        opened = ops.sync_gate_open(handle, tf.constant(0, tf.int64))
        acquired = {worker: ops.sync_gate_acquire(handle, *worker) for worker in (A, B)}
        generation, step = (tf1.placeholder(tf.int64, []) for _ in range(2))
        updated = _train(handle, A, generation, step)
        stats = ops.sync_gate_stats(handle)
        session, leaving = (tf1.Session(server.target) for _ in range(2))
    with session, leaving:
        feed = {generation: session.run(opened)}
        session.run(acquired[A])
        limit = None if is_closed else tf1.RunOptions(timeout_in_ms=500)
        wait = in_thread(leaving.run, acquired[B], options=limit)
        _until(lambda: B[0] in gate_stats.to_dict(*session.run(stats))["workers"])
        if is_closed:
            assert not wait.done()
            leaving.close()
        ends = (tf.errors.DeadlineExceededError, tf.errors.CancelledError)
        assert isinstance(wait.exception(DEADLINE_SECS), ends)
        # If B still waited, it would get the places that A gives up here.
        for update in (1, 2):
            train = in_thread(session.run, updated, {**feed, step: update})
            assert train.result(DEADLINE_SECS)
        counters = gate_stats.to_dict(*session.run(stats))
    sync_accounting.assert_identities(counters)
    assert (counters["in_flight"], counters["expired"]) == (0, 0)
    assert counters["rounds"] == counters["updates"] == counters["applied"] == 2


def test_failure_elsewhere_in_the_step_ends_its_wait():
    handle = _gate()
    ops.sync_gate_open(handle, 0)
    _contribute(handle, A)

    @tf.function
    def train_step(divisor):
        # The two run side by side; the first would wait for a second worker.
        return ops.sync_gate_acquire(handle, *A)[0], tf.math.floordiv(1, divisor)

    with pytest.raises(tf.errors.InvalidArgumentError, match="zero"):
        train_step(tf.constant(0))
    _contribute(handle, B)  # nothing of A blocks it


def test_task_id_is_the_same_on_each_call_and_names_no_device():
    first, second = ops.task_id(), ops.task_id()
    assert first[0] == second[0]
    assert first[1] == second[1]
    assert b"device" not in first[0].numpy()


def test_shared_name_with_another_mode_is_an_error():
    _gate(quorum=2, shared_name="test_gate_shared")
    _gate(quorum=3, shared_name="test_gate_shared")  # the chief may choose these
    modes = {"strict": "true", "spares": "true", "gathers": "false"}
    for mode, text in modes.items():
        with pytest.raises(tf.errors.InvalidArgumentError) as caught:
            _gate(shared_name="test_gate_shared", **{mode: text == "false"})
        _, existing, received = re.split("exists with|Received:", str(caught.value))
        assert f"{mode}={text}" in existing
        assert f"{mode}={text}" not in received


@pytest.mark.parametrize("argument", ["lease_secs", "start_secs"])
@pytest.mark.parametrize("value", [0.0, -1.0, float("nan")])
def test_leases_must_be_positive(argument, value):
    with pytest.raises(tf.errors.InvalidArgumentError, match=f"{argument} must be"):
        _gate(**{argument: value})
    if value == 0:
        return  # An opening leaves the lease as it is.
    with pytest.raises(tf.errors.InvalidArgumentError, match=f"{argument} must be"):
        ops.sync_gate_open(_gate(), 0, **{argument: value})


@pytest.mark.parametrize("value", [-1.0, float("nan")])
def test_bounds_of_waits_must_not_be_negative(value):
    with pytest.raises(tf.errors.InvalidArgumentError, match="updater_lease_secs must"):
        _gate(updater_lease_secs=value)
    handle = _gate()
    generation = ops.sync_gate_open(handle, 0)
    with pytest.raises(tf.errors.InvalidArgumentError, match="timeout_secs must"):
        ops.sync_gate_wait_quorum(handle, generation, timeout_secs=value)


def test_leases_and_bounds_may_be_infinite():
    endless = float("inf")
    handle = _gate(
        quorum=1, lease_secs=endless, start_secs=1e30, updater_lease_secs=endless
    )
    generation = ops.sync_gate_open(handle, 0)
    _contribute(handle, A)
    assert ops.sync_gate_wait_quorum(handle, generation, timeout_secs=endless)


def test_stats_say_what_each_worker_does():
    handle = _gate()
    ops.sync_gate_open(handle, 0)
    generation, round_number, _ = ops.sync_gate_acquire(handle, *A)
    ops.sync_gate_acquire(handle, *B)
    assert ops.sync_gate_admit(handle, generation, round_number, *B, True)
    assert _phases(handle) == ["computing", "pushing"]
    assert ops.sync_gate_commit(handle, generation, round_number, *B)
    assert _phases(handle) == ["computing", "idle"]
    wait = in_thread(ops.sync_gate_acquire, handle, *B)
    _until(lambda: _phases(handle) == ["computing", "waiting"])
    ops.sync_gate_close(handle, ops.ANY_GENERATION)
    assert isinstance(wait.exception(DEADLINE_SECS), tf.errors.OutOfRangeError)


def _phases(handle):
    _, workers = _stats(handle)
    assert all(worker["phase_secs"] >= 0 for worker in workers.values())
    return [workers[device]["phase"] for device, _ in (A, B)]


def test_events_are_written_where_the_environment_says(tmp_path, monkeypatch):
    monkeypatch.setenv("TF_SYNCREP_GATE_EVENTS", str(tmp_path))
    handle = _gate(quorum=1)
    generation = int(ops.sync_gate_open(handle, 7))
    round_number, _ = _contribute(handle, A)
    (log,) = tmp_path.iterdir()
    of = f"generation={generation} round={round_number}"
    device, incarnation = A
    worker = f"incarnation={incarnation} device={device}"
    lines = log.read_text().splitlines()
    assert lines[0] == f"opened {of} value=7"
    assert lines[1].startswith(f"permitted {of} value=")
    assert lines[2:] == [
        f"{what} {of} value=0 {worker}" for what in ("admitted", "committed")
    ]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda h: ops.sync_gate_configure(h, 0, 2),
            "replicas_to_aggregate must be at least 1. Received: 0",
        ),
        (
            lambda h: ops.sync_gate_configure(h, 1, -2),
            "total_num_replicas must be at least 1. Received: -2",
        ),
        (
            lambda h: ops.sync_gate_fail(h, 0, "fine", ops.ANY_GENERATION),
            r"code must be a canonical error code in \[1, 16\], but is 0",
        ),
    ],
)
def test_arguments_out_of_range_are_named(call, message):
    with pytest.raises(tf.errors.InvalidArgumentError, match=message):
        call(_gate())


def test_round_that_is_not_full_cannot_end():
    handle = _gate()
    generation = ops.sync_gate_open(handle, 0)
    round_number, _ = _contribute(handle, A)
    with pytest.raises(
        tf.errors.FailedPreconditionError, match="1 of 2 gradients are committed"
    ):
        ops.sync_gate_advance(handle, generation, round_number, 1)
    assert not ops.sync_gate_advance(handle, generation, round_number - 1, 1)
