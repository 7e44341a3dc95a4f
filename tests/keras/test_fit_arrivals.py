"""Results are taken in the order in which they come."""

import threading

from tf_syncrep.python.keras.fit.arrivals import Arrivals

DEADLINE_SECS = 60.0


class Result:
    def __init__(self):
        self.come = threading.Event()
        self.threads = []

    def wait(self):
        self.threads.append(threading.current_thread())
        assert self.come.wait(DEADLINE_SECS)


def test_what_has_come_first_is_taken_first():
    arrivals, results = Arrivals(capacity=3), [Result() for _ in range(3)]
    for number, result in enumerate(results):
        arrivals.append((number, result))
    for number, left in ((2, 2), (0, 1), (1, 0)):
        results[number].come.set()
        assert arrivals.popleft() == (number, results[number])
        assert len(arrivals) == left
    arrivals.close()


def test_threads_end_with_the_queue_and_are_no_more_than_there_is_room_for():
    arrivals, results = Arrivals(capacity=2), [Result() for _ in range(20)]
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
