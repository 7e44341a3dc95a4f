"""The updater's thread, and how it ends, on one task."""

import threading
import time
import types

import pytest
import tensorflow as tf

from tf_syncrep.python.keras.sync_replicas import updater as updaters
from tf_syncrep.python.keras.sync_replicas.cluster_ops import ClusterOps
from tf_syncrep.python.keras.sync_replicas.cluster_rounds import ClusterRounds

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


@pytest.fixture
def updater(rounds):
    return rounds._updater


def test_close_takes_seconds_where_no_task_answers(updater, monkeypatch):
    monkeypatch.setattr(updaters, "_END_SECS", 0.2)
    answer = threading.Event()
    for call in ("_wait_and_apply_fn", "_cancel_fn", "_fail_fn"):
        monkeypatch.setattr(updater, call, lambda *_: answer.wait())
    updater._ops.targets.are_known.set()
    updater.start()
    thread = updater._thread
    begin = time.monotonic()
    updater.close()
    assert time.monotonic() - begin < 5
    assert thread.is_alive()
    answer.set()
    thread.join(timeout=20)
    assert not thread.is_alive()


def test_observer_that_fails_is_called_no_more_and_ends_nothing(
    rounds, updater, caplog
):
    told, is_told = [], threading.Event()

    def fail(step):
        told.append(step)
        raise OSError("disk full")

    updater.observers += [fail, lambda step: is_told.set()]
    for _ in range(2):
        is_told.clear()
        updater.start()
        assert is_told.wait(timeout=20)
        updater.close()
    assert told == [0]
    assert "disk full" in caplog.text
    rounds.remove_observer(fail)  # whoever has added it removes it at the end
    assert updater.cause is None


def test_optimizers_of_one_program_trace_their_functions_once_and_not_again(caplog):
    for _ in range(12):
        made = make_rounds()
        made.start()
        made.drain()
        made.finish(flush=True)
    assert "retracing" not in caplog.text
