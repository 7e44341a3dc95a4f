"""SyncReplicasOptimizer in sessions of one process: with its hook, and by hand."""

import contextlib
import itertools
import queue
import threading
import time

import pytest
import sync_replicas_twin as twin
import tensorflow as tf

import tf_syncrep as tfs
from tf_syncrep.python.ops import sync_gate_ops
from tf_syncrep.python.v1.sync_replicas import client, departures

tf1 = tf.compat.v1

# TensorFlow's own class takes 120 seconds.
CLOSE_SECS = 10.0


def _assert_weights(session, replica, batches):
    twin.assert_weights(session.run(replica.weights), [[batch] for batch in batches])


class _ByHand:
    """A chief that runs init ops, queue runner and tokens itself."""

    def __init__(self, replica, target="", initialize=True):
        optimizer = replica.optimizer
        self.coordinator = tf1.train.Coordinator()
        with replica.graph.as_default():
            runner = optimizer.get_chief_queue_runner()
            tokens = optimizer.get_init_tokens_op()
        self.session = tf1.Session(target, graph=replica.graph)
        if initialize:
            self.session.run(replica.init_op)
        assert self.session.run(optimizer.ready_for_local_init_op).size == 0
        self.session.run(optimizer.chief_init_op)
        self.generation = optimizer.stats(self.session)["generation"]
        self.threads = runner.create_threads(
            self.session, coord=self.coordinator, daemon=True, start=True
        )
        self.session.run(tokens)

    def __enter__(self):
        return self.session

    def __exit__(self, *exc_info):
        self.coordinator.request_stop()
        self.coordinator.join(self.threads, stop_grace_period_secs=CLOSE_SECS)
        self.session.close()


def test_coordinator_that_stops_ends_the_training_of_all_at_once():
    replica = twin.Replica()
    batches = twin.batches(3)
    by_hand = _ByHand(replica)
    with by_hand as session:
        assert replica.train(session, batches) == [1, 2, 3]
        _assert_weights(session, replica, batches)
        # The queue runner has not begun it anew.
        assert replica.optimizer.stats(session)["generation"] == by_hand.generation
        started = time.monotonic()
        by_hand.coordinator.request_stop()
        by_hand.coordinator.join(by_hand.threads, stop_grace_period_secs=2 * CLOSE_SECS)
        assert time.monotonic() - started < CLOSE_SECS
        with pytest.raises(tf.errors.OutOfRangeError):
            replica.train(session, batches)


@pytest.mark.parametrize(
    ("use_resource", "local_init"),
    [(False, False), (True, False), (True, True)],
    ids=["bare-ref", "bare-resource", "initialized"],
)
def test_script_that_knows_no_chief_init_op_trains(use_resource, local_init):
    # Scripts of the oldest API start the queue runner and nothing else. With
    # TensorFlow's class they train as soon as the local step is initialized.
    replica = twin.Replica(use_resource=use_resource)
    batches = twin.batches(4)
    coordinator = tf1.train.Coordinator()
    with replica.graph.as_default(), tf1.Session() as session:
        runner = replica.optimizer.get_chief_queue_runner()
        clean_up_op = replica.optimizer.get_clean_up_op()
        tokens_op = replica.optimizer.get_init_tokens_op()
        session.run(replica.init_op)
        if local_init:
            session.run(tf1.local_variables_initializer())
        threads = runner.create_threads(session, coordinator, daemon=True, start=True)
        session.run(tokens_op)
        assert replica.train(session, batches) == [1, 2, 3, 4]
        _assert_weights(session, replica, batches)
        session.run(clean_up_op)
        with pytest.raises(tf.errors.OutOfRangeError):
            replica.train(session, batches)
        coordinator.request_stop()
        coordinator.join(threads)


def test_monitored_training_session_saves_its_last_step_and_closes_at_once(tmp_path):
    replica = twin.Replica()
    batches = twin.batches(3)
    with replica.graph.as_default():
        hooks = [
            replica.optimizer.make_session_run_hook(True),
            tf1.train.StopAtStepHook(last_step=3),
        ]
        with tf1.train.MonitoredTrainingSession(
            checkpoint_dir=str(tmp_path), hooks=hooks
        ) as session:
            for batch in batches:
                assert not session.should_stop()
                replica.train(session, [batch])
            assert session.should_stop()
            started = time.monotonic()
    assert time.monotonic() - started < CLOSE_SECS
    restored = twin.Replica()
    with restored.graph.as_default(), tf1.Session() as session:
        saver = tf1.train.Saver()
        saver.restore(session, tf1.train.latest_checkpoint(str(tmp_path)))
        _assert_weights(session, restored, batches)


def test_hook_may_be_made_before_the_train_op():
    """As for an Estimator that is given the optimizer, and builds the graph itself."""
    with tf.Graph().as_default():
        optimizer = tfs.train.SyncReplicasOptimizer(
            tf1.train.GradientDescentOptimizer(1.0), 1, 1
        )
        hook = optimizer.make_session_run_hook(True)
        weight = tf1.get_variable("weight", initializer=0.0)
        train_op = optimizer.minimize(weight, tf1.train.get_or_create_global_step())
        hooks = [hook, tf1.train.StopAtStepHook(last_step=2)]
        with tf1.train.MonitoredTrainingSession(hooks=hooks) as session:
            while not session.should_stop():
                session.run(train_op)
    assert hook.stats["updates"] == 2


def _invalid():
    return tf.debugging.Assert(False, ["the update failed"])


def _aborted():
    """Fails like a step on a task that was started anew."""
    gate = sync_gate_ops.sync_gate(1, 1)
    generation = sync_gate_ops.sync_gate_open(gate, 0)
    return sync_gate_ops.sync_gate_wait_quorum(gate, generation - 1)[0].op


def _failing_once(fail, at):
    """An optimizer whose update number `at` fails, and no other."""
    updates = itertools.count(1)

    class Failing(tf1.train.GradientDescentOptimizer):
        def apply_gradients(self, *args, **kwargs):
            fails = tf.numpy_function(lambda: next(updates) == at, [], tf.bool)
            failing = tf.cond(tf.ensure_shape(fails, []), fail, tf.no_op)
            with tf.control_dependencies([failing]):
                return super().apply_gradients(*args, **kwargs)

    return lambda: Failing(twin.LEARNING_RATE)


def test_update_that_fails_is_an_error_of_the_chiefs_session_in_seconds():
    replica = twin.Replica(inner=_failing_once(_invalid, 3))
    started = time.monotonic()
    with (
        pytest.raises(tf.errors.InvalidArgumentError, match="the update failed"),
        replica.monitored_session() as session,
    ):
        replica.train(session, twin.batches(3))
    assert time.monotonic() - started < CLOSE_SECS


def test_update_that_fails_with_a_lost_task_is_what_a_session_recovers_from(tmp_path):
    replica = twin.Replica(inner=_failing_once(_aborted, 3))
    batches = twin.batches(5)
    with replica.graph.as_default():
        hooks = [
            replica.optimizer.make_session_run_hook(True),
            tf1.train.CheckpointSaverHook(str(tmp_path), save_steps=1),
        ]
        with tf1.train.MonitoredTrainingSession(
            checkpoint_dir=str(tmp_path), hooks=hooks, save_checkpoint_secs=None
        ) as session:
            replica.train(session, batches)
            _assert_weights(session, replica, batches)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_update_that_fails_ends_a_step_of_a_bare_session():
    replica = twin.Replica(inner=_failing_once(_invalid, 1))
    with replica.graph.as_default():
        runner = replica.optimizer.get_chief_queue_runner()
    with tf1.Session(graph=replica.graph) as session:
        session.run(replica.init_op)
        threads = runner.create_threads(session, daemon=True, start=True)
        with pytest.raises(tf.errors.CancelledError, match="has failed"):
            replica.train(session, twin.batches(1))
        for thread in threads:  # Each ends with the error, late for this test.
            thread.join(CLOSE_SECS)
    (error,) = runner.exceptions_raised
    assert "the update failed" in error.message


def test_with_more_passes_than_replicas_gradients_are_dropped():
    replica = twin.Replica()
    batches = twin.batches(4)
    with replica.monitored_session(num_tokens=2) as session:
        assert replica.train(session, batches) == [0, 0, 1, 2]
        stats = replica.optimizer.stats(session)
        _assert_weights(session, replica, [batches[0], batches[3]])
    # A gradient that comes before the update of its round is applied is late.
    dropped = stats["stale"] + stats["late"]
    assert (stats["updates"], stats["applied"], dropped) == (2, 2, 2)


def test_chief_that_closed_and_came_back_goes_on_with_another_quorum(tmp_path):
    server = tf1.train.Server.create_local_server()
    batches = twin.batches(7)
    alone = [[batch] for batch in batches[:3]]
    generations = []
    for quorum, some, steps, applied in (
        (1, batches[:3], [1, 2, 3], alone),
        (2, batches[3:], [3, 4, 4, 5], [*alone, batches[3:5], batches[5:]]),
    ):
        replica = twin.Replica(quorum, total=1, lease_secs=30.0 * quorum)
        with replica.graph.as_default():
            hook = replica.optimizer.make_session_run_hook(True)
            with tf1.train.MonitoredTrainingSession(
                server.target, checkpoint_dir=str(tmp_path), hooks=[hook]
            ) as session:
                assert replica.train(session, some) == steps
                stats = replica.optimizer.stats(session)
                generations.append(stats["generation"])
                twin.assert_weights(session.run(replica.weights), applied)
    assert (stats["quorum"], stats["updates"], stats["applied"]) == (2, 5, 7)
    assert generations[1] == generations[0] + 1


def test_chief_that_comes_back_after_a_death_goes_on_where_the_weights_are():
    server = tf1.train.Server.create_local_server()
    batches = twin.batches(4)
    dead = twin.Replica()
    died = _ByHand(dead, server.target)
    dead.train(died.session, batches[:2])
    # Its connection is gone before coordinator or hook can end anything.
    died.session.close()
    replica = twin.Replica()
    with _ByHand(replica, server.target, initialize=False) as session:
        assert replica.train(session, batches[2:]) == [3, 4]
        _assert_weights(session, replica, batches)
        stats = replica.optimizer.stats(session)
    assert (stats["generation"], stats["updates"]) == (died.generation + 1, 4)


def test_chief_that_was_replaced_does_not_end_the_training_of_its_successor():
    replica = twin.Replica()
    optimizer = replica.optimizer
    other = ("/job:worker/replica:0/task:7", 77)
    with replica.graph.as_default():
        # The graph of another chief would do this.
        gate = optimizer._built.gate
        successor = sync_gate_ops.sync_gate_open(gate, tf.constant(1, tf.int64))
        acquired = sync_gate_ops.sync_gate_acquire(gate, *other)
    by_hand = _ByHand(replica)
    with by_hand as session:
        replica.train(session, twin.batches(1))
        present = by_hand.generation
        assert session.run(successor) == present + 1
        # Its wait for the next quorum was ended, or had not begun.
        over = f"A new generation|Generation {present} of the gate is over"
        with pytest.raises(tf.errors.AbortedError, match=over):
            by_hand.coordinator.join(by_hand.threads)
        generation, _, step = session.run(acquired)
        assert (generation, step) == (present + 1, 1)
        by_hand.coordinator.clear_stop()


def test_two_optimizers_of_a_graph_take_turns_on_the_same_variables():
    with tf.Graph().as_default():
        step = tf1.train.get_or_create_global_step()
        weight = tf1.get_variable("w", initializer=tf.constant(1.0, tf.float64))
        optimizers = [
            tfs.train.SyncReplicasOptimizer(
                tf1.train.GradientDescentOptimizer(rate), quorum, 1
            )
            for rate, quorum in ((1.0, 1), (10.0, 2))
        ]
        train_ops = [
            optimizer.minimize(weight, global_step=step) for optimizer in optimizers
        ]
        hooks = [optimizer.make_session_run_hook(True) for optimizer in optimizers]
        with tf1.train.SingularMonitoredSession(hooks) as session:
            weights = []
            for train_op in (0, 1, 0, 1):
                session.run(train_ops[train_op])
                weights.append(float(session.run(weight)))
            stats = [optimizer.stats(session) for optimizer in optimizers]
            assert session.run(step) == 3
    # The second one waits for its second gradient.
    assert weights == [0.0, 0.0, -1.0, -11.0]
    assert [one["updates"] for one in stats] == [2, 1]


def _is_live(replica, session):
    (worker,) = replica.optimizer.stats(session)["workers"].values()
    return worker["live"]


@pytest.mark.parametrize(
    "closing",
    [contextlib.nullcontext(), departures._lock],
    ids=["by hand", "by the garbage collector while the lock is held"],
)
def test_replica_leaves_when_the_last_session_in_which_it_trains_is_closed(closing):
    server = tf1.train.Server.create_local_server()
    replica = twin.Replica()
    watching = twin.Replica()  # another graph, with the same gate
    first, second = (tf1.Session(server.target, graph=replica.graph) for _ in range(2))
    with tf1.Session(server.target, graph=watching.graph) as watcher:
        first.run(replica.init_op)
        first.run(replica.optimizer.chief_init_op)
        second.close()
        assert _is_live(watching, watcher)
        with closing:
            first.close()
        assert not _is_live(watching, watcher)


def test_session_that_only_looks_whether_the_model_is_ready_leaves_nothing():
    server = tf1.train.Server.create_local_server()
    replica = twin.Replica(2, 2)
    with tf1.Session(server.target, graph=replica.graph) as session:
        session.run(replica.optimizer.ready_for_local_init_op)
    with tf1.Session(server.target, graph=replica.graph) as session:
        stats = replica.optimizer.stats(session)
    # Both are still to come.
    assert (stats["live"], stats["workers"]) == (2, {})


def test_local_variables_that_another_client_has_left_are_not_taken_for_ones_own(
    monkeypatch,
):
    # A server that outlives its clients has them, whose scripts initialize none of
    # them.
    server = tf1.train.Server.create_local_server()
    first, batches = twin.Replica(), twin.batches(4)
    with _ByHand(first, server.target) as session:
        first.train(session, batches[:2])
    monkeypatch.setattr(client, "_number", client.number() + 1)
    second = twin.Replica()
    coordinator = tf1.train.Coordinator()
    with tf1.Session(server.target, graph=second.graph) as session:
        runner = second.optimizer.get_chief_queue_runner()
        threads = runner.create_threads(session, coordinator, daemon=True, start=True)
        assert second.train(session, batches[2:]) == [3, 4]
        _assert_weights(session, second, batches)
        coordinator.request_stop()
        coordinator.join(threads)


def test_close_and_functions_between_updates_wait_for_the_queue_runners_update():
    replica = twin.Replica()
    optimizer = replica.optimizer
    callers, events = queue.Queue(), []

    def train():
        with contextlib.suppress(tf.errors.OutOfRangeError):
            while True:
                replica.train(session, twin.batches(1))

    def function():
        callers.put(threading.current_thread())
        training.join(CLOSE_SECS)
        events.append("the gate is closed")

    training = threading.Thread(target=train)
    asking = threading.Thread(target=optimizer.between_updates, args=(function,))
    with _ByHand(replica) as session:
        training.start()
        asking.start()
        assert callers.get(timeout=CLOSE_SECS) is not asking
        # The runner's update is not over before the function is.
        optimizer.close(session)
        events.append("close has returned")
        asking.join()
    assert events == ["the gate is closed", "close has returned"]


def test_queue_runner_opens_the_gate_anew_in_another_session_of_its_process():
    server = tf1.train.Server.create_local_server()
    replica, batches = twin.Replica(), twin.batches(4)
    runner = replica.optimizer.get_chief_queue_runner()
    with tf1.Session(server.target, graph=replica.graph) as session:
        session.run(replica.init_op)
    for first, steps in ((0, [1, 2]), (2, [3, 4])):
        coordinator = tf1.train.Coordinator()
        with tf1.Session(server.target, graph=replica.graph) as session:
            threads = runner.create_threads(session, coordinator, start=True)
            assert replica.train(session, batches[first : first + 2]) == steps
            _assert_weights(session, replica, batches[: first + 2])
            coordinator.request_stop()
            coordinator.join(threads)


def test_session_that_is_closed_is_no_error_of_the_queue_runner():
    replica = twin.Replica()
    coordinator = tf1.train.Coordinator()
    with tf1.Session(graph=replica.graph) as session:
        session.run(replica.init_op)
        runner = replica.optimizer.get_chief_queue_runner()
        runner.create_threads(session, coordinator, daemon=True, start=True)
        replica.train(session, twin.batches(2))
    coordinator.request_stop()
    coordinator.join()
