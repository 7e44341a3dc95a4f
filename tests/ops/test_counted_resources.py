"""Gates, accumulators, queues, tables and writers live as long as their handles."""

import collections
import gc
from concurrent import futures

import pytest
import tensorflow as tf
from process_threads import threads_named
from waiting import until

import tf_syncrep as tfs
from tf_syncrep.python.ops import (
    checkpoint_ops,
    sync_gate_ops,
    table_ops,
    work_queue_ops,
)
from tf_syncrep.python.sync import gate_stats

DEADLINE = 60.0
WORKER = ("/job:worker/task:0", 1)


# For each kind: the op that makes it, and an op that uses it.
Kind = collections.namedtuple("Kind", ["make", "ask"])

KINDS = {
    "gate": Kind(
        lambda **options: sync_gate_ops.sync_gate(1, 1, **options),
        sync_gate_ops.sync_gate_stats,
    ),
    "dense": Kind(
        lambda **options: tfs.ops.dense_accumulator(tf.float32, [2], **options),
        tfs.ops.accumulator_num_accumulated,
    ),
    "sparse": Kind(
        lambda **options: tfs.ops.sparse_accumulator(tf.float32, [2], **options),
        tfs.ops.accumulator_num_accumulated,
    ),
    "queue": Kind(
        lambda **options: work_queue_ops.work_queue(3, **options),
        work_queue_ops.work_queue_stats,
    ),
    "table": Kind(
        lambda **options: table_ops.table_index(
            [table_ops.IndexedTable("items", 0, 3)], **options
        ),
        table_ops.table_stats,
    ),
    "writer": Kind(
        checkpoint_ops.checkpoint_writer, checkpoint_ops.checkpoint_progress
    ),
}
every_kind = pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)


def copy_of(handle):
    """A handle in the form in which another task gets it, without a reference."""
    return tf.io.parse_tensor(tf.io.serialize_tensor(handle), tf.resource)


def lease_threads():
    return set(threads_named("tfs_leases"))


def counters_of(queue):
    names, values = work_queue_ops.work_queue_stats(queue)
    return dict(zip(names.numpy().astype(str), values.numpy(), strict=True))


def workers_of(gate):
    counters = sync_gate_ops.sync_gate_stats(gate)
    return gate_stats.to_dict(*(x.numpy() for x in counters))["workers"]


@every_kind
def test_it_is_gone_with_its_last_handle_and_so_is_its_thread(kind):
    threads = lease_threads()
    handle = kind.make(counted=True, shared_name="")
    copy = copy_of(handle)
    kind.ask(copy)
    other = tf.identity(handle)
    del handle
    kind.ask(copy)
    del other
    with pytest.raises(tf.errors.NotFoundError):
        kind.ask(copy)
    # Those of other tests may end meanwhile.
    until(lambda: lease_threads() <= threads)


@every_kind
def test_functions_hold_what_they_capture(kind):
    handles = [kind.make(counted=True, shared_name="")]
    copy, ask = copy_of(handles[0]), tf.function(lambda: kind.ask(handles[0]))
    ask()
    handles.clear()
    ask()
    del ask
    gc.collect()
    with pytest.raises(tf.errors.NotFoundError):
        kind.ask(copy)


@every_kind
def test_one_with_a_name_is_found_while_it_lives(kind):
    first = kind.make(counted=True, shared_name="counted")
    copy = copy_of(first)
    second = kind.make(counted=True, shared_name="counted")
    del first
    kind.ask(copy)
    del second
    with pytest.raises(tf.errors.NotFoundError):
        kind.ask(copy)
    kind.make(counted=True, shared_name="counted")


def test_a_found_one_must_be_alike():
    handle = KINDS["dense"].make(counted=True, shared_name="alike")
    with pytest.raises(
        tf.errors.InvalidArgumentError, match="accumulator alike exists with"
    ):
        tfs.ops.dense_accumulator(tf.float64, [2], counted=True, shared_name="alike")
    del handle


def test_waits_of_others_end_with_the_gate():
    handle = KINDS["gate"].make(counted=True)
    copy = copy_of(handle)
    with futures.ThreadPoolExecutor() as pool:
        wait = pool.submit(sync_gate_ops.sync_gate_acquire, copy, *WORKER)
        until(lambda: WORKER[0] in workers_of(copy))
        del handle
        with pytest.raises(tf.errors.AbortedError, match="The gate was deleted"):
            wait.result(DEADLINE)


def test_waits_of_others_end_with_the_queue():
    handle = work_queue_ops.work_queue(1, counted=True)
    copy = copy_of(handle)
    other = ("/job:worker/task:1", 1)
    first = work_queue_ops.NO_TICKET
    work_queue_ops.work_queue_take(handle, *WORKER, 1, first)
    with futures.ThreadPoolExecutor() as pool:
        wait = pool.submit(work_queue_ops.work_queue_take, copy, *other, 1, first)
        until(lambda: counters_of(copy)["waiting"] == 1)
        del handle
        with pytest.raises(tf.errors.CancelledError, match="the work queue is gone"):
            wait.result(DEADLINE)


def test_a_wait_with_a_handle_keeps_the_gate():
    handles = [KINDS["gate"].make(counted=True)]
    copy = copy_of(handles[0])
    with futures.ThreadPoolExecutor() as pool:
        wait = pool.submit(
            lambda: sync_gate_ops.sync_gate_acquire(handles.pop(), *WORKER)
        )
        until(lambda: not handles and WORKER[0] in workers_of(copy))
        generation = sync_gate_ops.sync_gate_open(copy, 5)
        assert [int(x) for x in wait.result(DEADLINE)][::2] == [int(generation), 5]
        with pytest.raises(tf.errors.NotFoundError):
            sync_gate_ops.sync_gate_stats(copy)
