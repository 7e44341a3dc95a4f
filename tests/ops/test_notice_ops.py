"""The ops of notice; tests/cc/notice_test.cc tests the rules themselves."""

import os
import signal

import pytest
import tensorflow as tf
from waiting import in_thread, until

from tf_syncrep.python.ops import notice_ops as ops

DEADLINE_SECS = 30


@pytest.fixture
def listens():
    """This process listens by itself, so that a signal does not end it."""
    ops.begin()
    yield
    ops.end()


def test_a_task_with_notice_is_waited_for(listens):
    waits = in_thread(ops.await_notice, tf.constant(False))
    assert not ops.is_given()
    os.kill(os.getpid(), signal.SIGTERM)
    waits.result(DEADLINE_SECS)
    assert ops.is_given()
    # Who asks later hears of it at once.
    in_thread(ops.await_notice, tf.constant(False)).result(DEADLINE_SECS)


def test_a_step_says_whether_its_task_has_notice(listens):
    assert not ops.note_work()
    os.kill(os.getpid(), signal.SIGTERM)
    until(ops.is_given)
    assert ops.note_work()
    assert ops.end()
    assert ops.had_notice()
    ops.begin()
