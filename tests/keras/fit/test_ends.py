"""When a pass of workers over their own data is over, call by call."""

import itertools

import pytest

import tf_syncrep as tfs
from tf_syncrep.python.keras.fit import batches as batches_module
from tf_syncrep.python.keras.fit.batches import WorkersPasses
from tf_syncrep.python.keras.fit.ends import Ends, Window


class Workers:
    """Scheduled steps go in turn to those workers that are free."""

    def __init__(self, steps, window=6):
        self.left = list(steps)
        self.ends = Ends(len(steps), window)
        self.num_scheduled = self.num_without_data = 0

    def run(self, order):
        """Lets workers run all scheduled steps in this order."""
        for worker in itertools.islice(order, self.ends.num_wanted()):
            self.num_scheduled += 1
            has_ended = self.left[worker] == 0
            self.num_without_data += has_ended
            self.left[worker] -= not has_ended
            self.ends.add(worker, has_ended)


def test_pass_is_over_when_all_workers_are_at_their_ends():
    workers = Workers([5, 0, 100])
    order = itertools.cycle(range(3))
    while not workers.ends.is_over:
        workers.run(order)
        assert workers.num_scheduled < 1000
    assert workers.left == [0, 0, 0]
    assert not workers.ends.lost
    # Workers that are at their ends are asked at most once a step of the others.
    assert workers.num_without_data <= 2 * 105


def test_silence_with_something_under_way_is_waited_for():
    ends = Ends(2, window=4)
    assert ends.num_wanted() == 4
    for _ in range(3):
        ends.add(0, has_ended=True)
    for _ in range(1000):
        ends.add_silence(lambda: True)
        assert not ends.is_over
        for _ in range(ends.num_wanted()):  # the other worker is still at its first
            ends.add(0, has_ended=True)
    ends.add(1, has_ended=False)
    assert not ends.is_over
    assert ends.num_wanted() == 2
    ends.add(1, has_ended=True)
    assert not ends.is_over
    ends.add(0, has_ended=True)
    assert ends.is_over
    assert not ends.lost
    assert ends.num_wanted() == 0


def test_worker_that_takes_nothing_is_lost_once_its_data_was_waited_for():
    for absent, patience in ((set(), 1200), ({0}, 1200), ({1, 2}, 20)):
        ends = Ends(3, window=6, absent=absent)
        for silence in itertools.count():
            for _ in range(ends.num_wanted()):
                ends.add(silence % 2, has_ended=True)
            ends.add_silence(lambda waited=silence >= 50: waited)
            if ends.is_over:
                break
            assert silence < 1300
        assert 50 + patience <= silence + 1 <= 55 + patience
        assert ends.lost == {2}


def test_window_is_kept_full_until_there_are_no_more():
    window = Window(3)
    assert window.num_wanted() == 3
    window.add(0, has_ended=False)
    assert window.num_wanted() == 1
    window.add(1, has_ended=False)
    window.add(0, has_ended=False)
    assert window.num_wanted() == 2
    window.note_end(num_missing=1)
    assert window.num_wanted() == 0
    for _ in range(2):
        assert not window.is_over
        window.add(0, has_ended=False)
    assert window.is_over


def test_worker_that_has_data_again_is_at_no_end():
    """A worker that began another life."""
    ends = Ends(1, window=2)
    assert ends.num_wanted() == 2
    ends.add(0, has_ended=True)
    ends.add(0, has_ended=False)
    assert not ends.is_over
    assert ends.num_wanted() == 2
    ends.add(None, has_ended=False)  # lost, and made again by another worker
    ends.add(0, has_ended=True)
    assert ends.is_over


def test_worker_that_never_makes_its_data_is_waited_for_once(monkeypatch):
    monkeypatch.setattr(batches_module, "_PATIENCE", 3)
    monkeypatch.setattr(batches_module, "is_made", lambda _: False)
    hanging = WorkersPasses(Datasets([]))
    assert [hanging.is_made() for _ in range(5)] == [False] * 3 + [True] * 2


class Datasets:
    """Those of workers that are never made."""

    element_spec = iterator = None

    def __init__(self, queues):
        self.queues = queues


def begun(num_read):
    """Passes over a queue of three items, some of which a reader has begun."""
    queue = tfs.data.WorkQueue(3, num_epochs=2)
    passes = WorkersPasses(Datasets([queue]))
    assert passes.begin_epoch(0, resume=False)
    reader = iter(queue.dataset())
    for _ in range(num_read):
        next(reader)
    return queue, passes, reader


@pytest.mark.parametrize("num_read", range(4))
def test_what_a_lost_worker_left_of_an_epoch_has_another_pass(num_read):
    """The item that it was reading, and those nobody had begun: it may be the last."""
    queue, passes, reader = begun(num_read)
    del reader
    assert not passes.has_left(some_are_lost=False)
    assert passes.has_left(some_are_lost=True)
    # This is all but the item that was read to its end, as the next question tells.
    left = [*range(max(0, num_read - 1), 3)]
    assert [int(item) for item in queue.dataset()] == left
    assert not passes.has_left(some_are_lost=True)
    assert queue.stats()["done"] == 3


def test_what_was_given_back_has_another_pass_though_nobody_is_lost():
    queue, passes, _ = begun(3)
    queue.restore(queue.save())
    assert passes.has_left(some_are_lost=False)
    assert [int(item) for item in queue.dataset()] == [2]
    assert not passes.has_left(some_are_lost=False)
