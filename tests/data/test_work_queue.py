"""WorkQueue and its datasets, in one process and on a cluster whose workers die."""

import collections
import contextlib
import json
import pathlib
import sys
import threading
from unittest import mock

import clusters
import numpy as np
import programs
import pytest
import tensorflow as tf

import tf_syncrep as tfs
from tf_syncrep.python.data import work_queue

tf1 = tf.compat.v1
PROGRAM = pathlib.Path(__file__).with_name("work_queue_program.py")


def lists(dataset):
    elements = dataset.as_numpy_iterator()
    return [x.decode() if isinstance(x, bytes) else int(x) for x in elements]


def test_datasets_share_the_items_and_end_with_the_last_epoch():
    queue = tfs.data.WorkQueue(["a", "b", "c"], num_epochs=2)
    first, second = iter(queue.dataset()), iter(queue.dataset())
    read = [next(x).numpy().decode() for x in (first, second, first, first, second)]
    assert read == ["a", "b", "c", "a", "b"]
    assert queue.stats()["in_flight"] == 2
    assert next(second).numpy() == b"c"
    # The other one still has its last item; a reader that begins its stream anew reads
    # it again.
    assert queue.stats()["done"] == 4


def test_contents_of_items_are_read(tmp_path):
    for name in "ab":
        (tmp_path / name).write_text(f"{name}1\n{name}2\n", encoding="utf-8")
    files = [str(tmp_path / name) for name in "ab"]
    queue = tfs.data.WorkQueue(files)
    lines = queue.dataset(tf.data.TextLineDataset)
    assert lists(lines) == ["a1", "a2", "b1", "b2"]
    assert lists(lines) == []
    assert queue.stats()["done"] == 2


def test_strings_keep_the_zeros_at_their_ends():
    records = [b"\1\0\0", b"", b"\0"]
    found = list(tfs.data.WorkQueue(records).dataset().as_numpy_iterator())
    assert found == records
    assert lists(tfs.data.WorkQueue(["\u00e9\0", "b"]).dataset()) == ["\u00e9\0", "b"]
    assert lists(tfs.data.WorkQueue(np.array(["a", "bc"])).dataset()) == ["a", "bc"]


def test_numbers_are_made_where_they_are_read():
    """A graph with this many items would fit neither into memory nor into a message."""
    many = tfs.data.WorkQueue(np.int64(2**40))
    reader = iter(many.dataset())
    assert [next(reader).numpy() for _ in range(3)] == [0, 1, 2]
    assert many.dataset().element_spec == tf.TensorSpec([], tf.int64)
    assert lists(tfs.data.WorkQueue(range(9, 2**40, 2**38)).dataset()) == [
        *(9, 9 + 2**38, 9 + 2**39, 9 + 3 * 2**38)
    ]


@pytest.mark.parametrize("shuffle", [False, True])
def test_several_readers_read_each_item_once_an_epoch(shuffle):
    queue = tfs.data.WorkQueue(20, num_epochs=3, shuffle=shuffle, seed=4)
    elements = queue.dataset(
        lambda item: tf.data.Dataset.from_tensors(item).repeat(3), num_readers=4
    )
    assert collections.Counter(lists(elements)) == dict.fromkeys(range(20), 9)
    stats = queue.stats()
    assert (stats["done"], stats["handed_out"]) == (60, 60)


def test_saved_queue_goes_on_in_another_one():
    queue = tfs.data.WorkQueue(10, shuffle=True, seed=1)
    reads = iter(queue.dataset())
    read = [int(next(reads)) for _ in range(4)]
    other = tfs.data.WorkQueue(10, shuffle=True, seed=1)
    other.restore(queue.save())
    # The fourth item was not finished.
    assert sorted(read[:3] + lists(other.dataset())) == list(range(10))
    with pytest.raises(
        tf.errors.InvalidArgumentError, match=r"seed=0\. Received.*seed=1"
    ):
        tfs.data.WorkQueue(10, shuffle=True).restore(queue.save())


def test_state_ends_with_the_items_that_wait():
    assert len(tfs.data.WorkQueue(2).save()) == work_queue._ITEMS_OF_STATE


def test_queues_of_one_name_and_of_a_state_have_the_same_items_in_the_same_order():
    files = ["a", "b", "c"]
    queue = tfs.data.WorkQueue(files, name="of files")
    paths = [pathlib.Path(file) for file in files]
    same = tfs.data.WorkQueue(paths, name="of files")
    assert lists(same.dataset()) == files
    assert queue.stats()["done"] == 3
    others = [["b", "a", "c"], ["a", "bc", ""], 3, [0, 1, 2], [0.0, 1.0, 2.0]]
    for items in others:
        with pytest.raises(
            tf.errors.InvalidArgumentError, match="of files exists with"
        ):
            tfs.data.WorkQueue(items, name="of files").stats()
        with pytest.raises(tf.errors.InvalidArgumentError, match="with these items"):
            tfs.data.WorkQueue(items).restore(queue.save())


def test_an_epoch_begins_with_what_readers_had_not_finished():
    queue = tfs.data.WorkQueue(3, num_epochs=2)
    assert queue.begin_epoch() == 0
    reads = iter(queue.dataset())
    assert [int(next(reads)) for _ in range(3)] == [0, 1, 2]
    assert queue.begin_epoch() == 0
    assert lists(queue.dataset()) == [2]
    assert queue.begin_epoch() == 1
    assert lists(queue.dataset()) == [0, 1, 2]
    assert queue.begin_epoch() is None


def test_an_epoch_that_datasets_cut_off_is_told_of_when_it_goes_on(caplog):
    queue = tfs.data.WorkQueue(5, num_epochs=2)
    told = []
    for _ in range(3):
        queue.begin_epoch()
        told.append("take()" in caplog.text)
        lists(queue.dataset().take(2))
    assert told == [False, True, True]
    said = [x.getMessage() for x in caplog.records if "take()" in x.getMessage()]
    assert len(said) == 1
    # The second one was read, and not finished.
    assert "goes on with epoch 0, of which 4 of 5 items are left" in said[0]


def test_epochs_that_were_read_to_their_ends_are_not_told_of(caplog):
    queue = tfs.data.WorkQueue(5, num_epochs=2)
    while queue.begin_epoch() is not None:
        lists(queue.dataset())
    assert not caplog.records


@pytest.mark.parametrize("num_readers", [1, 2])
def test_error_of_a_garbled_line_names_the_files_that_were_being_read(
    tmp_path, caplog, num_readers
):
    files = [str(tmp_path / name) for name in "abcd"]
    for file in files:
        # tf.data reads some lines ahead.
        garbled = "x\n" if file == files[2] else ""
        pathlib.Path(file).write_text("1\n" * 100 + garbled + "1\n" * 100)
    queue = tfs.data.WorkQueue(files)

    @work_queue.naming_items()
    def read():
        lines = queue.dataset(tf.data.TextLineDataset, num_readers)
        lists(lines.map(lambda line: tf.strings.to_number(line, tf.int64)))

    with pytest.raises(tf.errors.InvalidArgumentError, match="StringToNumberOp"):
        read()
    recent = files if num_readers > 1 else files[1:3]
    assert queue.recent_items() == recent
    (said,) = [x.getMessage() for x in caplog.records]
    assert said.endswith(f"had just read: {', '.join(map(repr, recent))}.")


def test_for_ever_has_no_end():
    queue = tfs.data.WorkQueue([7, 8], num_epochs=None)
    assert lists(queue.dataset().take(5)) == [7, 8, 7, 8, 7]


class SessionReads:
    """Reads a queue of six items in sessions of a graph."""

    def __init__(self, num_readers=1):
        with tf.Graph().as_default() as self.graph:
            self.queue = tfs.data.WorkQueue(6, name="q")
            dataset = self.queue.dataset(num_readers=num_readers)
            self._iterator = tf1.data.make_initializable_iterator(dataset)
            self.item = self._iterator.get_next()

    def start(self, session, coord=None):
        with self.graph.as_default():
            return tf1.train.start_queue_runners(session, coord)

    def rest(self, session):
        session.run(self._iterator.initializer)
        items = []
        with contextlib.suppress(tf.errors.OutOfRangeError):
            while True:
                items.append(int(session.run(self.item)))
        return sorted(items)


@pytest.mark.parametrize("num_readers", [1, 3])
def test_thread_of_a_session_ends_with_the_last_epoch(num_readers):
    reads = SessionReads(num_readers)
    target = tf.distribute.Server.create_local_server().target
    for _ in range(2):  # the second session finds the same queues
        with tf1.Session(target, graph=reads.graph) as session:
            (thread,) = reads.start(session)
            state = reads.queue.save(session)
            assert reads.rest(session) == list(range(6))
            thread.join(clusters.DEADLINE_SECS)
            assert not thread.is_alive()
            assert reads.rest(session) == []
            reads.queue.restore(state, session)


def test_session_that_is_closed_is_no_error():
    reads = SessionReads()
    with mock.patch.object(threading, "excepthook") as hook:
        with tf1.Session(graph=reads.graph) as session:
            (thread,) = reads.start(session)
            reads.queue.stats(session)
        thread.join(clusters.DEADLINE_SECS)
    assert not thread.is_alive()
    assert not hook.called


def test_coordinator_that_stops_is_not_the_end_of_a_sessions_items():
    reads = SessionReads()
    with tf1.Session(graph=reads.graph) as session:
        coord = tf1.train.Coordinator()
        threads = reads.start(session, coord)
        coord.request_stop()
        coord.join(threads)
        with pytest.raises(tf.errors.CancelledError):
            reads.rest(session)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"items": []}, "items must be a number, or a sequence of at least one item"),
        ({"items": "file"}, "items must be a number, or a sequence"),
        (
            {"items": [1, "a"]},
            r"numbers, or strings and paths. Received: items=\[1, 'a'",
        ),
        ({"items": [None]}, "numbers, or strings and paths"),
        ({"items": [[1], [2, 3]]}, "numbers, or strings and paths"),
        ({"items": 0}, "`items` must be a whole number of at least 1"),
        ({"items": 2.5}, "`items` must be a whole number"),
        ({"items": 3, "num_epochs": 0}, "`num_epochs` must be a whole number"),
        ({"items": 3, "lease_secs": 0}, "`lease_secs` must be"),
        ({"items": 3, "seed": None}, "`seed` must be a .*number.* seed=None"),
        ({"items": 3, "seed": 2.5}, "`seed` must be a whole number"),
        ({"items": 3, "seed": 2**63}, "`seed` must be a whole number of 64 bits"),
    ],
)
def test_bad_arguments_are_named(arguments, message):
    with pytest.raises(ValueError, match=message):
        tfs.data.WorkQueue(**arguments)


@pytest.mark.ci
def test_items_are_read_once_by_all_workers_and_those_of_the_dead_again(tmp_path):
    with clusters.Cluster(num_workers=3, num_ps=2) as cluster:
        command = [sys.executable, str(PROGRAM), json.dumps(str(tmp_path))]
        cluster.start("chief", command)
        cluster.wait_for_output("chief", "half")
        cluster.kill("worker-1")
        (tmp_path / "killed").touch()
        cluster.restart("worker-1")
        assert cluster.wait("chief") == 0, cluster.output("chief")
        result = programs.result_in(cluster.output("chief"))
    undisturbed, disturbed = result["undisturbed"], result["disturbed"]
    assert undisturbed["read"] == [3] * 30
    assert undisturbed["stats"]["handed_out"] == undisturbed["stats"]["done"] == 90
    stats = disturbed["stats"]
    assert stats["done"] == 90
    assert stats["repeated"] >= 1
    assert stats["handed_out"] == 90 + stats["repeated"]
    assert min(np.array(disturbed["read"])) >= 3
