"""`fit` without `steps_per_epoch`, when workers read their own data to its end."""

import itertools
import json
import pathlib
import random
import sys

import clusters
import numpy as np
import programs
import pytest

import tf_syncrep as tfs
from tf_syncrep.python.keras.fit import passes as passes_module
from tf_syncrep.python.keras.fit.ends import _PATIENCE, Ends
from tf_syncrep.python.keras.fit.passes import WorkersPasses

PROGRAM = pathlib.Path(__file__).with_name("fit_passes_program.py")
# The numbers are the same as in the program.
BATCH = 4
WORKERS, ITEMS, PER_ITEM = 3, 20, 3
PER_EXECUTION = 4
KILLS = 8


@pytest.fixture(scope="module")
def undisturbed(request, tmp_path_factory):
    names = [*programs.wanted(request, "name"), "refused", "slow"]
    arguments = [names, str(tmp_path_factory.mktemp("passes"))]
    with clusters.Cluster(num_workers=WORKERS, num_ps=2) as cluster:
        return programs.run(PROGRAM, arguments, env=cluster.environment())


@pytest.mark.ci
@pytest.mark.parametrize(
    "name",
    [
        pytest.param("uneven", marks=pytest.mark.slow),
        "uneven executions",
        "uneven synchronous",
        pytest.param("uneven synchronous executions", marks=pytest.mark.slow),
    ],
)
def test_each_worker_reads_to_its_end(undisturbed, name):
    """One of three workers has no batch, one has 7 and one has 14."""
    result = undisturbed[name]
    expected = np.zeros(400)
    expected[100:128] = expected[200:256] = 2
    np.testing.assert_array_equal(result["seen"], expected)
    assert result["epochs"] == [0, 1]
    assert result["steps"] == [21, 21]
    assert result["examples"] == [21 * BATCH] * 2
    if "synchronous" in name:
        # There are fewer if gradients of a slow worker came late.
        assert 2 * 21 // 6 < result["iterations"] <= 2 * 21 // 3
    else:
        assert result["iterations"] == 2 * 21


@pytest.mark.ci
@pytest.mark.parametrize(
    ("name", "epochs"),
    [
        ("queue", 3),
        ("queue executions", 3),
        ("queue synchronous", 2),
        ("queue ends", 2),
    ],
)
def test_epoch_is_one_of_the_queue(undisturbed, name, epochs):
    result = undisturbed[name]
    assert set(result["seen"]) == {epochs}
    assert result["epochs"] == [*range(epochs)]
    assert result["steps"] == [ITEMS * PER_ITEM] * epochs
    stats = result["stats"]
    assert stats["handed_out"] == stats["done"] == ITEMS * epochs
    assert stats["limit"] == -1


@pytest.mark.ci
@pytest.mark.parametrize(
    "name", ["resumed", pytest.param("resumed executions", marks=pytest.mark.slow)]
)
def test_checkpoint_in_an_epoch_goes_on_with_what_is_left_of_it(undisturbed, name):
    result = undisturbed[name]
    assert result["epochs"] == [1]
    stats = result["stats"]
    assert ITEMS < result["done"] < 2 * ITEMS == stats["done"]
    left = 2 * ITEMS - result["done"]
    assert sum(result["seen"]) == left * PER_ITEM * BATCH
    assert max(result["seen"]) == 1
    assert result["steps"][0] >= left * PER_ITEM
    # A worker may have read these, of items that were done by then, and not trained.
    may_lack = WORKERS * (PER_EXECUTION - 1) if "executions" in name else 0
    trained = np.array(result["trained"]) + result["seen"]
    assert batches_missing(trained, epochs=2) <= may_lack


def batches_missing(seen, epochs):
    """How many batches were not trained in an epoch."""
    return np.sum(np.maximum(0, epochs - np.array(seen))) / BATCH


@pytest.mark.ci
def test_what_has_no_end_and_what_has_nothing_is_refused(undisturbed):
    assert undisturbed["refused"] == {
        "endless": "A function that makes datasets without end needs steps_per_epoch. "
        "Received: steps_per_epoch=None",
        "empty": "`x` must have a batch. Received: an empty dataset",
        "read": "`x` must have a batch. Received: an empty dataset: its work queue has "
        "no epoch left",
    }


@pytest.mark.ci
@pytest.mark.parametrize(
    ("scenario", "comes_back"),
    [
        ("killed", False),
        pytest.param("killed", True, marks=pytest.mark.slow),
        pytest.param("killed executions", True, marks=pytest.mark.slow),
    ],
)
def test_what_a_lost_worker_had_begun_is_read_by_others(tmp_path, scenario, comes_back):
    with clusters.Cluster(num_workers=WORKERS, num_ps=2) as cluster:
        arguments = json.dumps([[scenario], str(tmp_path)])
        cluster.start("chief", [sys.executable, str(PROGRAM), arguments])
        cluster.wait_for_output("chief", "kill 0.")
        cluster.kill("worker-1")
        (tmp_path / "killed-0").touch()
        if comes_back:
            cluster.restart("worker-1")
        assert cluster.wait("chief") == 0, cluster.output("chief")
        result = programs.result_in(cluster.output("chief"))[scenario]
    at_once = PER_EXECUTION if "executions" in scenario else 1
    assert_accounted_for(result, epochs=2, kills=1, per_execution=at_once)


def assert_accounted_for(result, epochs, kills, per_execution=1):
    """Asserts that everything was read, and that repeated reads are counted.

    Of the batches that a killed worker had read for an execution, the last one alone is
    sure to be of an item that is read again.
    """
    missing = batches_missing(result["seen"], epochs)
    assert missing <= (per_execution - 1) * kills
    stats = result["stats"]
    assert stats["done"] == epochs * ITEMS
    assert stats["handed_out"] == stats["done"] + stats["repeated"]
    again = np.sum(np.array(result["seen"]) - epochs) / BATCH + missing
    assert again <= PER_ITEM * stats["repeated"] + kills


@pytest.mark.ci
@pytest.mark.one_version
@pytest.mark.parametrize(
    ("synchronous", "seed"),
    [
        pytest.param(False, 0, marks=pytest.mark.slow),
        *(
            pytest.param(synchronous, seed, marks=pytest.mark.soak)
            for synchronous in (False, True)
            for seed in range(1, 6)
        ),
    ],
)
def test_whatever_workers_die_all_is_read_and_counted(tmp_path, synchronous, seed):
    draw = random.Random(seed)
    name = "killed often synchronous" if synchronous else "killed often"
    with clusters.Cluster(num_workers=WORKERS, num_ps=2) as cluster:
        arguments = json.dumps([[name], str(tmp_path)])
        cluster.start("chief", [sys.executable, str(PROGRAM), arguments])
        for kill in range(KILLS):
            cluster.wait_for_output("chief", f"kill {kill}.")
            worker = f"worker-{draw.randrange(WORKERS)}"
            cluster.kill(worker)
            (tmp_path / f"killed-{kill}").touch()
            cluster.restart(worker)
        assert cluster.wait("chief") == 0, cluster.output("chief")
        result = programs.result_in(cluster.output("chief"))[name]
    assert result["stats"]["repeated"] >= 1
    assert_accounted_for(result, epochs=4, kills=KILLS)


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
    assert workers.ends.num_lost == 0
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
    assert ends.num_lost == 0
    assert ends.num_wanted() == 0


def test_worker_that_takes_nothing_is_lost_once_its_data_was_waited_for():
    ends = Ends(3, window=6)
    for silence in itertools.count():
        for _ in range(ends.num_wanted()):
            ends.add(silence % 2, has_ended=True)
        ends.add_silence(lambda waited=silence >= 50: waited)
        if ends.is_over:
            break
        assert silence < 100
    assert silence > 55
    assert ends.num_lost == 1


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


@pytest.mark.ci
def test_worker_that_takes_long_to_make_its_data_is_waited_for(undisturbed):
    """Longer than others that have nothing left to do are waited for."""
    result = undisturbed["slow"]
    # It is asked again while its data comes, which takes a while on a busy machine.
    assert result["silences"] >= 2 * _PATIENCE
    assert result["steps"] == [21, 21]


def test_worker_that_never_makes_its_data_is_waited_for_once(monkeypatch):
    monkeypatch.setattr(passes_module, "_PATIENCE", 3)
    monkeypatch.setattr(passes_module.compat_datasets, "is_made", lambda _: False)
    hanging = WorkersPasses([], [], None)
    hanging.begin_pass()
    assert [hanging.is_made() for _ in range(5)] == [False] * 3 + [True] * 2
    hanging.begin_pass()
    assert hanging.is_made()


def begun(num_read):
    """Passes over a queue of three items, some of which a reader has begun."""
    queue = tfs.data.WorkQueue(3, num_epochs=2)
    passes = WorkersPasses(None, [queue], None)
    assert passes.begin_epoch(resume=False)
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
