"""Calls that may never return end by their deadline."""

import threading

from tf_syncrep.python.base.deadline import within


def test_a_call_that_returns_has_no_error():
    called = []
    assert within(60, called.append, 3) is None
    assert called == [3]


def test_the_error_of_a_call_is_returned():
    error = within(60, int, "x")
    assert isinstance(error, ValueError)


def test_a_call_that_does_not_return_is_left_behind():
    end = threading.Event()
    error = within(0.01, end.wait)
    assert isinstance(error, TimeoutError)
    assert str(error) == "No answer in 0.0 s"
    end.set()
