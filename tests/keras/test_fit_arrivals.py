"""Results are taken in the order in which they come, and none for long is said."""

import re
import threading

from tf_syncrep.python.keras.fit import arrivals as arrivals_module
from tf_syncrep.python.keras.fit.arrivals import Arrivals
from tf_syncrep.python.keras.fit.silence import Silence

DEADLINE_SECS = 60.0


class Result:
    def __init__(self):
        self.come = threading.Event()
        self.threads = []

    def wait(self):
        self.threads.append(threading.current_thread())
        assert self.come.wait(DEADLINE_SECS)


def make(capacity):
    return Arrivals(capacity, Silence(lambda: ""))


def test_what_has_come_first_is_taken_first():
    arrivals, results = make(capacity=3), [Result() for _ in range(3)]
    for number, result in enumerate(results):
        arrivals.append((number, result))
    for number, left in ((2, 2), (0, 1), (1, 0)):
        results[number].come.set()
        assert arrivals.popleft() == (number, results[number])
        assert len(arrivals) == left
    arrivals.close()


def test_what_one_thread_waits_for_is_taken_in_order():
    arrivals, results = make(capacity=1), [Result() for _ in range(3)]
    for number, result in enumerate(results):
        arrivals.append((number, result))
    for result in reversed(results):
        result.come.set()
    assert [arrivals.popleft()[0] for _ in results] == [0, 1, 2]
    arrivals.close()


def test_threads_end_with_the_queue_and_are_no_more_than_there_is_room_for():
    arrivals, results = make(capacity=2), [Result() for _ in range(20)]
    for number, result in enumerate(results):
        arrivals.append((number, result))
        result.come.set()
        if len(arrivals) == 2:
            arrivals.popleft()
    arrivals.close()
    threads = {thread for result in results for thread in result.threads}
    for thread in threads:
        thread.join(DEADLINE_SECS)
        assert not thread.is_alive()
    assert 1 <= len(threads) <= 2
    assert [len(result.threads) for result in results] == [1] * 20


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


def test_who_waits_tells_of_silence_until_a_result_arrives(caplog, monkeypatch):
    monkeypatch.setattr(arrivals_module, "_WAIT_SECS", 0.01)
    result = Result()

    def answers():
        result.come.set()
        return ""

    silence = Silence(answers)
    silence.add(59.95)
    arrivals = Arrivals(1, silence)
    arrivals.append((7, result))
    # The result is to come when the log has said something, so this would never end.
    assert arrivals.popleft() == (7, result)
    silence.add(59.95)
    assert told(caplog) == [60]
    arrivals.close()
