"""Results are taken as they come, errors are raised, and silence is said."""

import re
from unittest import mock

import numpy as np
import pytest
import tensorflow as tf

from tf_syncrep.python.keras.fit import departures as departures_module
from tf_syncrep.python.keras.fit import results as results_module
from tf_syncrep.python.keras.fit.batches import Scheduled
from tf_syncrep.python.keras.fit.results import (
    Arrivals,
    Silence,
    StepCancelledError,
)
from tf_syncrep.python.ops import notice_ops

# What an execution returns on a worker with notice.
NOTICE = -1


class Coordinator:
    """Runs closures when it is told to, on the worker that is told."""

    def __init__(self):
        self.closures, self.error, self.worker = [], None, 0
        self._cluster = self.closure_queue = self._cancellation_mgr = self
        self.is_cancelled = False

    def schedule(self, function, args, kwargs):
        del kwargs
        self.closures.append((function, args))

    def get_cancelable_function(self, function):
        return function

    def run(self, i, worker=0):
        self.worker = worker
        function, args = self.closures[i]
        try:
            function(*args)
        except Exception as error:
            self.error = error
            raise

    def done(self):
        if self.error:
            raise self.error


class Execution:
    """Returns its argument, or raises it."""

    @staticmethod
    def traced(what):
        if isinstance(what, Exception):
            raise what
        return np.array(what), []

    def fetched(self, numbers, others):
        if isinstance(numbers[()], Exception):
            raise numbers[()]
        return numbers, others

    @staticmethod
    def has_notice(fetched):
        return fetched[0] == NOTICE

    def take(self, fetched):
        return int(fetched[0])


class Executions:
    @staticmethod
    def traced(size):
        return Execution() if size == 1 else None


class Batches:
    """Batches of the same executions, so many of them for one that is scheduled."""

    def __init__(self, per_call=1, reads_on=False):
        self.per_call = self.left = per_call
        self.reads_on, self.left_by = reads_on, None

    def due(self, size, args, cancelable):
        del cancelable
        return size, args

    def let_leave(self, worker):
        return self.reads_on

    def note_left(self, worker):
        self.left_by = worker

    def note_done(self, num_steps):
        self.left = (self.left - num_steps) or self.per_call
        return self.left < self.per_call


@pytest.fixture
def coordinator(monkeypatch):
    coordinator = Coordinator()
    monkeypatch.setattr(results_module, "worker_index", lambda: coordinator.worker)
    return coordinator


def make(coordinator, batches=None, **options):
    options = {"in_order": False, "runs_again": False, **options}
    return Arrivals(
        coordinator,
        Executions(),
        batches or Batches(),
        lambda: "All 3 tasks answer.",
        **options,
    )


def taken(arrivals):
    result = arrivals.popleft_within(0.001)
    return result and result.take(if_lost="lost")


@pytest.mark.parametrize(
    ("in_order", "expected"), [(False, [2, 0, 1]), (True, [0, 1, 2])]
)
def test_results_are_taken_as_they_come_or_in_order(coordinator, in_order, expected):
    arrivals = make(coordinator, in_order=in_order)
    for i in range(3):
        arrivals.schedule(Scheduled(1, (i,)))
    for i in (2, 0, 1):
        coordinator.run(i, worker=i)
    assert [taken(arrivals) for _ in range(4)] == [*expected, None]


def test_all_steps_for_which_a_worker_has_data_are_done_at_once(coordinator):
    arrivals = make(coordinator, Batches(per_call=3))
    arrivals.schedule(Scheduled(1, (7,)))
    coordinator.run(0)
    results = [arrivals.popleft_within(0.001) for _ in range(3)]
    assert [result.is_last for result in results] == [False, False, True]


def has_left(monkeypatch):
    """Lets a worker with notice leave before it is asked."""
    gone = mock.Mock(side_effect=tf.errors.UnavailableError(None, None, ""))
    monkeypatch.setattr(notice_ops, "had_notice", gone)


@pytest.mark.parametrize(
    ("reads_on", "secs", "num_runs"), [(False, 60, 1), (True, 60, 3), (True, 0, 2)]
)
def test_a_worker_with_notice_reads_on_for_a_time_and_leaves(
    coordinator, monkeypatch, reads_on, secs, num_runs
):
    monkeypatch.setattr(departures_module, "_READ_ON_SECS", secs)
    has_left(monkeypatch)
    batches = Batches(reads_on=reads_on)
    arrivals = make(coordinator, batches)
    for _ in range(4):
        arrivals.schedule(Scheduled(1, (NOTICE,)))
    for i in range(num_runs):
        coordinator.run(i)
    if secs and reads_on:
        coordinator.run(3)
        assert batches.left_by is None
    else:
        with pytest.raises(tf.errors.UnavailableError, match="task:0 has left"):
            coordinator.run(3)
        assert batches.left_by == 0


def test_a_worker_with_notice_leaves_in_the_next_epoch_if_the_first_is_over(
    coordinator, monkeypatch
):
    """An epoch may have one execution for each worker."""
    has_left(monkeypatch)
    arrivals, batches = make(coordinator), Batches()
    arrivals.schedule(Scheduled(1, (NOTICE,)))
    coordinator.run(0, worker=1)
    arrivals = make(coordinator, batches)
    for _ in range(2):
        arrivals.schedule(Scheduled(1, (7,)))
    with pytest.raises(tf.errors.UnavailableError, match="task:1 has left"):
        coordinator.run(1, worker=1)
    assert batches.left_by == 1
    coordinator.run(2, worker=1)  # It is another process.


def test_the_process_that_took_the_place_of_a_worker_with_notice_is_not_waited_for(
    coordinator, monkeypatch
):
    arrivals = make(coordinator)
    for what in (NOTICE, 7, 8):
        arrivals.schedule(Scheduled(1, (what,)))
    coordinator.run(0)
    asked = mock.Mock(side_effect=[tf.constant(True), tf.constant(False)])
    monkeypatch.setattr(notice_ops, "had_notice", asked)
    coordinator.run(1)
    coordinator.run(2)
    assert asked.call_count == 2


def test_function_that_was_not_traced_is_asked_for(coordinator):
    arrivals = make(coordinator)
    arrivals.schedule(Scheduled(4, (7,)))
    coordinator.run(0)
    result = arrivals.popleft_within(0.001)
    assert (result.untraced, result.num_steps, result.is_last) == (4, 0, True)


def test_error_of_a_step_is_raised_and_no_other_step_begins(coordinator):
    arrivals = make(coordinator)
    error = tf.errors.InvalidArgumentError(None, None, "id 7")
    for what in (1, error, 2):
        arrivals.schedule(Scheduled(1, (what,)))
    coordinator.run(0)
    with pytest.raises(tf.errors.InvalidArgumentError, match="id 7"):
        coordinator.run(1)
    coordinator.run(2)
    assert taken(arrivals) == 1
    with pytest.raises(tf.errors.InvalidArgumentError, match="id 7"):
        taken(arrivals)


CANCELLED = tf.errors.CancelledError(None, None, "RecvFromRemoteAsync, /job:ps/task:0")


def test_cancelled_step_of_a_worker_that_lives_is_not_run_again(coordinator):
    """TensorFlow runs again what fails with one of its own errors of this kind."""
    arrivals = make(coordinator)
    arrivals.schedule(Scheduled(1, (CANCELLED,)))
    with pytest.raises(
        StepCancelledError,
        match=r"/job:worker/task:2 was cancelled, though no task was lost: .*"
        r"All 3 tasks answer. TensorFlow reported: RecvFromRemoteAsync",
    ):
        coordinator.run(0, worker=2)


@pytest.mark.parametrize("why", ["others were cancelled", "worker lost", "silent"])
def test_step_that_was_cancelled_for_another_reason_is_tensorflows(
    coordinator, why, monkeypatch
):
    arrivals = make(coordinator)
    lost = tf.errors.UnavailableError(None, None, "/job:worker/task:1 is gone")
    if why == "others were cancelled":
        coordinator.is_cancelled = True
    elif why == "silent":

        def fill(**_):
            raise lost

        monkeypatch.setattr(tf.raw_ops, "Fill", fill)

    class Meanwhile(Execution):
        @staticmethod
        def traced(what):
            if why == "worker lost":
                with pytest.raises(tf.errors.UnavailableError):
                    coordinator.run(1, worker=1)
            raise what

    executions = [Meanwhile(), Execution()]
    monkeypatch.setattr(Executions, "traced", lambda *_: executions.pop(0))
    for what in (CANCELLED, lost):
        arrivals.schedule(Scheduled(1, (what,)))
    with pytest.raises(tf.errors.CancelledError):
        coordinator.run(0)


@pytest.mark.parametrize(
    ("kind", "text", "is_lost"),
    [
        (tf.errors.UnavailableError, "failed to connect", True),
        (tf.errors.CancelledError, "The corresponding function is aborted", True),
        (tf.errors.InvalidArgumentError, "/job:worker/task:1 unknown device", True),
        (tf.errors.InvalidArgumentError, "Cannot convert a Tensor", False),
        (tf.errors.InternalError, "Cannot allocate", False),
    ],
)
@pytest.mark.parametrize("runs_again", [False, True])
def test_numbers_that_are_lost_with_a_worker_are_no_error_of_a_step_that_trained(
    coordinator, kind, text, is_lost, runs_again, monkeypatch, caplog
):
    error = kind(None, None, text)

    class Lost(Execution):
        def fetched(self, numbers, others):
            raise error

    monkeypatch.setattr(Executions, "traced", lambda *_: Lost())
    arrivals = make(coordinator, runs_again=runs_again)
    arrivals.schedule(Scheduled(1, (7,)))
    if is_lost and not runs_again:
        coordinator.run(0)
        assert taken(arrivals) == "lost"
        assert "metrics of 1 steps are not in what is reported: worker 0" in caplog.text
    else:
        with pytest.raises(kind, match=text):
            coordinator.run(0)


def test_execution_that_runs_again_is_said(coordinator, caplog):
    arrivals = make(coordinator)
    arrivals.schedule(Scheduled(1, (7,)))
    coordinator.run(0)
    assert "again" not in caplog.text
    coordinator.run(0, worker=3)
    assert "up to 1 steps runs again, on worker 3" in caplog.text


def told(caplog):
    """For how many seconds, by the log, no step has ended."""
    found = [int(x) for x in re.findall("has ended for (.*) s[.]", caplog.text)]
    caplog.clear()
    return found


def test_silence_is_told_each_time_after_twice_as_long(caplog):
    silence = Silence(lambda: "Nobody answers.")
    for _ in range(500):
        silence.add(1.0)
    assert caplog.text.count("s. Nobody answers. First") == 4
    assert told(caplog) == [60, 120, 240, 480]
    silence.end()
    for secs in (59.0, 0.5, 0.5, 59.0, 0.5):
        silence.add(secs)
    assert told(caplog) == [60]


def test_who_waits_tells_of_silence_until_a_result_arrives(
    coordinator, caplog, monkeypatch
):
    silence = Silence(lambda: "")
    silence.add(59.9995)
    monkeypatch.setattr(results_module, "Silence", lambda _: silence)
    arrivals = make(coordinator)
    arrivals.schedule(Scheduled(1, (7,)))
    assert taken(arrivals) is None
    assert told(caplog) == [60]
    coordinator.run(0)
    assert taken(arrivals) == 7
    silence.add(59.95)
    assert told(caplog) == []
