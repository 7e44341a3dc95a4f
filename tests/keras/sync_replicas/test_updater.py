"""The updater's thread, and how it ends, on one task."""

import threading
import time
import types

import pytest
import tensorflow as tf
import waiting

from tf_syncrep.python.base import said_waits
from tf_syncrep.python.keras import cluster
from tf_syncrep.python.keras.sync_replicas.cluster import updater as updaters
from tf_syncrep.python.keras.sync_replicas.cluster.cluster_ops import ClusterOps
from tf_syncrep.python.keras.sync_replicas.cluster.cluster_rounds import ClusterRounds
from tf_syncrep.python.ops import sync_gate_ops

DEVICE = "/job:localhost/replica:0/task:0/device:CPU:0"


def make_rounds():
    ops = ClusterOps(1, 1, 60.0, 600.0, False, True, DEVICE)
    optimizer = types.SimpleNamespace(iterations=tf.Variable(0, dtype=tf.int64))
    strategy = tf.distribute.get_strategy()
    return ClusterRounds(ops, strategy, optimizer, update=None)


@pytest.fixture
def rounds():
    made = make_rounds()
    yield made
    made.close()


def test_close_takes_seconds_where_no_task_answers(rounds, monkeypatch):
    monkeypatch.setattr(updaters, "_END_SECS", 0.2)
    answer = threading.Event()
    for call in ("_wait_and_apply_fn", "_cancel_fn", "_fail_fn"):
        monkeypatch.setattr(rounds, call, lambda *_: answer.wait())
    rounds._ops.targets.are_known.set()
    rounds.start()
    thread = rounds._training.thread
    begin = time.monotonic()
    rounds.close()
    assert time.monotonic() - begin < 5
    assert thread.is_alive()
    answer.set()
    thread.join(timeout=20)
    assert not thread.is_alive()


def test_observer_that_fails_is_called_no_more_and_ends_nothing(rounds, caplog):
    told, is_told = [], threading.Event()

    def fail(step):
        told.append(step)
        raise OSError("disk full")

    rounds.add_observer(fail)
    rounds.add_observer(lambda step: is_told.set())
    for _ in range(2):
        is_told.clear()
        rounds.start()
        assert is_told.wait(timeout=20)
        rounds.close()
    assert told == [0]
    assert "disk full" in caplog.text
    rounds.remove_observer(fail)  # whoever has added it removes it at the end
    assert rounds.cause is None


def test_optimizers_of_one_program_trace_their_functions_once_and_not_again(caplog):
    for _ in range(12):
        made = make_rounds()
        made.start()
        made.drain()
        made.finish(flush=True)
    assert "retracing" not in caplog.text


def test_error_of_a_thread_left_behind_is_none_of_the_next_training(
    rounds, monkeypatch, caplog
):
    monkeypatch.setattr(updaters, "_END_SECS", 0.2)
    answer, open_gate = threading.Event(), rounds._open_fn

    def fail(generation):
        answer.wait()
        raise tf.errors.UnavailableError(None, None, "no answer in time")

    with monkeypatch.context() as patch:
        patch.setattr(rounds, "_wait_and_apply_fn", fail)
        patch.setattr(rounds, "_cancel_fn", lambda generation: None)
        rounds._ops.targets.are_known.set()
        rounds.start()
        first = rounds._training
        rounds.close()
    assert first.thread.is_alive()

    def open_while_the_other_fails(step):
        answer.set()
        waiting.until(lambda: first.error is not None)
        return open_gate(step)

    monkeypatch.setattr(rounds, "_open_fn", open_while_the_other_fails)
    rounds._ops.targets.are_known.clear()
    rounds.start()
    first.thread.join(timeout=20)
    assert isinstance(first.error, tf.errors.UnavailableError)
    assert rounds.cause is None
    assert "an update failed" not in caplog.text


def test_observers_hear_of_a_last_incomplete_round(rounds, monkeypatch):
    told = []
    rounds.add_observer(told.append)
    monkeypatch.setattr(rounds, "_flush_fn", lambda generation: tf.constant([0, 1]))
    monkeypatch.setattr(
        rounds, "_apply_fn", lambda *_: rounds._iterations.assign_add(1)
    )
    rounds.start()
    rounds.finish(flush=True)
    assert told == [0, 1]


def test_training_whose_thread_cannot_start_has_not_begun(rounds, monkeypatch):
    start = threading.Thread.start

    def fail(thread):
        if thread.name == "sync_replicas_updater":
            raise RuntimeError("can't start new thread")
        start(thread)

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", fail)
        with pytest.raises(RuntimeError, match="can't start"):
            rounds.start()
    assert not rounds.is_training
    called = threading.Event()
    asking = threading.Thread(
        target=rounds.between_updates, args=(called.set,), daemon=True
    )
    asking.start()
    assert called.wait(timeout=20)
    rounds.start()
    assert rounds.is_training


def hangs_until_said(patch, caplog, answer):
    """Returns a call that ends once the log says for what it waits."""
    patch.setattr(cluster, "tell_who_answers", lambda strategy: "Nobody answers.")
    patch.setattr(updaters, "_PATIENT_SECS", 0.02)
    patch.setattr(said_waits, "_FIRST_SECS", 0.01)
    patch.setattr(said_waits, "_SECS", 0.01)

    def hang(*_):
        said = "waits for parameter servers, for 0 s. Nobody answers"
        waiting.until(lambda: said in caplog.text, lambda: caplog.text)
        caplog.clear()
        return answer

    return hang


@pytest.mark.parametrize("call", ["_open_fn", "_drain_fn", "_flush_fn", "_apply_fn"])
def test_wait_for_servers_that_hang_says_so(call, rounds, monkeypatch, caplog):
    generation = rounds._open_fn(tf.constant(0, tf.int64))
    answers = {"_open_fn": generation, "_flush_fn": tf.constant([0, 1])}
    monkeypatch.setattr(rounds, "_flush_fn", lambda _: answers["_flush_fn"])
    monkeypatch.setattr(rounds, "_apply_fn", lambda *_: None)
    hang = hangs_until_said(monkeypatch, caplog, answers.get(call))
    monkeypatch.setattr(rounds, call, hang)
    rounds.start()
    rounds.finish(flush=True)


def test_epoch_that_waits_for_servers_that_hang_says_so(rounds, monkeypatch, caplog):
    stats = rounds._ops.at_gate(sync_gate_ops.sync_gate_stats)
    monkeypatch.setattr(
        rounds._ops, "at_gate", hangs_until_said(monkeypatch, caplog, stats)
    )
    rounds.begin_epoch(0)


def test_request_that_waits_for_servers_that_hang_says_so(rounds, monkeypatch, caplog):
    begun = threading.Event()
    hang = hangs_until_said(monkeypatch, caplog, None)

    def wait_and_apply(generation):
        if not begun.is_set():
            begun.set()
            hang()

    monkeypatch.setattr(rounds, "_wait_and_apply_fn", wait_and_apply)
    rounds._ops.targets.are_known.set()
    rounds.start()
    assert begun.wait(timeout=20)
    rounds.between_updates(lambda: rounds._training.stopping.set())
    rounds.close()
    assert rounds.cause is None


@pytest.mark.parametrize("is_running", [True, False])
def test_calls_between_updates_may_be_nested(is_running, rounds):
    called = []
    if is_running:
        rounds.start()
    rounds.between_updates(lambda: rounds.between_updates(lambda: called.append(1)))
    assert called == [1]


def test_call_between_updates_comes_after_the_last_round(rounds, monkeypatch):
    order, other = (
        [],
        threading.Thread(
            target=lambda: rounds.between_updates(lambda: order.append("call"))
        ),
    )

    def apply(*_):
        other.start()
        other.join(timeout=0.2)
        order.append("update")

    monkeypatch.setattr(rounds, "_flush_fn", lambda generation: tf.constant([0, 1]))
    monkeypatch.setattr(rounds, "_apply_fn", apply)
    rounds.start()
    rounds.finish(flush=True)
    other.join(timeout=20)
    assert order == ["update", "call"]


def test_eager_step_that_fails_gives_its_permit_back(rounds):
    rounds.start()
    with pytest.raises(ZeroDivisionError), rounds.step():
        raise ZeroDivisionError
    stats = rounds.stats()
    assert [x["phase"] for x in stats["workers"].values()] == ["idle"]
