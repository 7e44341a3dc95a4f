"""Many workers at one gate, in steps that may time out anywhere."""

import random
import threading
import time

import sync_accounting
import tensorflow as tf
from sync_gate_sessions import GateSession

DEADLINE_SECS = 60
WORKERS, QUORUM, STEPS = 50, 40, 10

TIMED_OUT = (tf.errors.DeadlineExceededError, tf.errors.CancelledError)


class _Training:
    """Workers that contribute, and one updater, in a thread each."""

    def __init__(self, gate):
        self._gate = gate
        self._generation = gate.open(0)
        self._lock = threading.Lock()
        self.errors = []
        self.timed_out = 0
        self.done = threading.Event()
        calls = [self._update] + [self._work] * WORKERS
        self.threads = [
            threading.Thread(target=self._run, args=(call, number), daemon=True)
            for number, call in enumerate(calls)
        ]
        for thread in self.threads:
            thread.start()

    def _run(self, call, number):
        try:
            call(number)
        except tf.errors.OutOfRangeError:  # the gate was closed
            pass
        except Exception as error:
            self.errors.append(error)

    def _work(self, number):
        gate, worker = self._gate, f"/job:worker/task:{number}"
        draw = random.Random(number)

        def timeout(share):
            """Options of a call; this share of calls has little time."""
            short = draw.random() < share
            return {"timeout_in_ms": draw.choice([1, 2, 5, 20]) if short else 10_000}

        while True:  # until the gate is closed
            try:
                permit = gate.acquire(worker, **timeout(0.7))
                # If these time out, the round may be void. Rounds must fill on a slow
                # machine, too, where all calls with little time time out.
                if gate.admit(permit, worker, **timeout(0.02)):
                    gate.commit(permit, worker, **timeout(0.02))
            except TIMED_OUT:
                with self._lock:
                    self.timed_out += 1

    def _update(self, _):
        for step in range(1, STEPS + 1):
            full, num_gradients = self._gate.wait_quorum(self._generation)
            assert num_gradients == QUORUM
            assert self._gate.advance(self._generation, full, step)
        self.done.set()


def test_steps_that_time_out_anywhere_leave_no_hang_and_a_right_ledger():
    with GateSession(QUORUM, WORKERS, shared_name="gate") as gate:
        training = _Training(gate)
        deadline = time.monotonic() + DEADLINE_SECS
        while not training.done.wait(0.02):  # at any time
            sync_accounting.assert_identities(gate.stats())
            assert training.errors == []
            assert time.monotonic() < deadline, gate.stats()
        gate.close()
        for thread in training.threads:
            thread.join(max(0.0, deadline - time.monotonic()))
            assert not thread.is_alive(), "a call has not ended"
        stats = gate.stats()
    assert training.errors == []
    assert training.timed_out > 0
    sync_accounting.assert_identities(stats)
    assert (stats["step"], stats["updates"]) == (STEPS, STEPS)
    assert stats["applied"] == STEPS * QUORUM
    assert stats["expired"] == 0  # those that timed out came again, and held nobody up
