"""SyncReplicasOptimizer in each style of session: hook, Supervisor, by hand."""

import time

import numpy as np
import pytest
import sync_replicas_graphs as graphs
import sync_replicas_twin as twin
import tensorflow as tf

import tf_syncrep as tfs
from tf_syncrep.python.ops import sync_gate_ops

tf1 = tf.compat.v1

# TensorFlow's own class takes 120 seconds.
CLOSE_SECS = 10.0


def _assert_weights(session, replica, batches):
    weights = session.run(replica.weights)
    expected = twin.train([[batch] for batch in batches])
    for actual, wanted in zip(weights, expected, strict=True):
        np.testing.assert_allclose(actual, wanted, rtol=1e-12)


class _ByHand:
    """A chief that runs init ops, queue runner and tokens itself."""

    def __init__(self, replica, target="", num_tokens=-1, initialize=True):
        optimizer = replica.optimizer
        self.coordinator = tf1.train.Coordinator()
        with replica.graph.as_default():
            runner = optimizer.get_chief_queue_runner()
            tokens = optimizer.get_init_tokens_op(num_tokens)
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


def test_bare_session_trains_with_a_coordinator():
    replica = graphs.Replica()
    batches = graphs.batches(3)
    with _ByHand(replica) as session:
        assert replica.train(session, batches) == [1, 2, 3]
        _assert_weights(session, replica, batches)


def test_coordinator_that_stops_ends_the_training_of_all_at_once():
    replica = graphs.Replica()
    by_hand = _ByHand(replica)
    with by_hand as session:
        replica.train(session, graphs.batches(1))
        started = time.monotonic()
        by_hand.coordinator.request_stop()
        by_hand.coordinator.join(by_hand.threads, stop_grace_period_secs=2 * CLOSE_SECS)
        assert time.monotonic() - started < CLOSE_SECS
        with pytest.raises(tf.errors.OutOfRangeError):
            replica.train(session, graphs.batches(1))


def test_supervisor_runs_a_script_that_starts_the_queue_runner_itself():
    replica = graphs.Replica()
    optimizer = replica.optimizer
    batches = graphs.batches(3)
    with replica.graph.as_default():
        runner = optimizer.get_chief_queue_runner()
        tokens = optimizer.get_init_tokens_op()
        supervisor = tf1.train.Supervisor(
            is_chief=True,
            init_op=replica.init_op,
            local_init_op=optimizer.chief_init_op,
            ready_for_local_init_op=optimizer.ready_for_local_init_op,
            saver=None,
            summary_op=None,
            global_step=replica.global_step,
        )
        session = supervisor.prepare_or_wait_for_session()
        supervisor.start_queue_runners(session, [runner])
        session.run(tokens)
        assert replica.train(session, batches) == [1, 2, 3]
        _assert_weights(session, replica, batches)
        started = time.monotonic()
        supervisor.stop()
        assert time.monotonic() - started < CLOSE_SECS
        with pytest.raises(tf.errors.OutOfRangeError):
            replica.train(session, batches)
        session.close()


@pytest.mark.parametrize("use_resource", [False, True], ids=["ref", "resource"])
@pytest.mark.parametrize("local_init", [False, True], ids=["bare", "initialized"])
def test_script_that_knows_no_chief_init_op_trains(use_resource, local_init):
    # Scripts of the oldest API start the queue runner and nothing else. On
    # TensorFlow's class they train as soon as the local step is initialized.
    replica = graphs.Replica(use_resource=use_resource)
    batches = graphs.batches(4)
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


def test_queue_runner_does_not_begin_a_training_anew():
    replica = graphs.Replica()
    by_hand = _ByHand(replica)
    with by_hand as session:
        replica.train(session, graphs.batches(2))
        stats = replica.optimizer.stats(session)
        assert stats["generation"] == by_hand.generation


def test_session_with_the_hook_closes_at_once():
    replica = graphs.Replica()
    with replica.monitored_session() as session:
        replica.train(session, graphs.batches(1))
        started = time.monotonic()
    assert time.monotonic() - started < CLOSE_SECS


def test_monitored_training_session_reaches_its_last_step(tmp_path):
    replica = graphs.Replica()
    batches = graphs.batches(3)
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
    restored = graphs.Replica()
    with restored.graph.as_default(), tf1.Session() as session:
        saver = tf1.train.Saver()
        saver.restore(session, tf1.train.latest_checkpoint(str(tmp_path)))
        _assert_weights(session, restored, batches)


def test_with_as_many_passes_as_replicas_the_second_gradient_is_stale():
    replica = graphs.Replica()
    batches = graphs.batches(4)
    with replica.monitored_session(num_tokens=1) as session:
        assert replica.train(session, batches) == [0, 1, 2, 3]
        stats = replica.optimizer.stats(session)
        _assert_weights(session, replica, [batches[0], *batches[2:]])
    assert (stats["updates"], stats["applied"], stats["stale"]) == (3, 3, 1)


def test_without_a_number_of_tokens_no_gradient_is_stale():
    replica = graphs.Replica()
    batches = graphs.batches(3)
    with replica.monitored_session(num_tokens=-1) as session:
        assert replica.train(session, batches) == [1, 2, 3]
        assert replica.optimizer.stats(session)["stale"] == 0


def test_tokens_by_hand_are_passes_too():
    replica = graphs.Replica()
    with _ByHand(replica, num_tokens=2) as session:
        assert replica.train(session, graphs.batches(4)) == [0, 0, 1, 2]
        assert replica.optimizer.stats(session)["stale"] == 2


def test_chief_that_closed_and_came_back_to_the_same_server_goes_on(tmp_path):
    server = tf1.train.Server.create_local_server()
    batches = graphs.batches(5)
    generations = []
    for first, last in ((0, 3), (3, 5)):
        replica = graphs.Replica()
        with replica.graph.as_default():
            hook = replica.optimizer.make_session_run_hook(True)
            with tf1.train.MonitoredTrainingSession(
                server.target, checkpoint_dir=str(tmp_path), hooks=[hook]
            ) as session:
                steps = replica.train(session, batches[first:last])
                assert steps == list(range(first + 1, last + 1))
                stats = replica.optimizer.stats(session)
                generations.append(stats["generation"])
                _assert_weights(session, replica, batches[:last])
    assert stats["updates"] == 5
    assert generations[1] == generations[0] + 1


def test_chief_that_comes_back_may_aggregate_another_number_of_replicas(tmp_path):
    server = tf1.train.Server.create_local_server()
    for quorum, steps in ((1, [1, 2]), (2, [2, 3])):
        replica = graphs.Replica(quorum, total=1, lease_secs=30.0 * quorum)
        with replica.graph.as_default():
            hook = replica.optimizer.make_session_run_hook(True)
            with tf1.train.MonitoredTrainingSession(
                server.target, checkpoint_dir=str(tmp_path), hooks=[hook]
            ) as session:
                assert replica.train(session, graphs.batches(2)) == steps
                stats = replica.optimizer.stats(session)
    assert (stats["quorum"], stats["updates"], stats["applied"]) == (2, 3, 4)


def test_chief_that_comes_back_after_a_death_goes_on_where_the_weights_are():
    server = tf1.train.Server.create_local_server()
    batches = graphs.batches(4)
    dead = graphs.Replica()
    died = _ByHand(dead, server.target)
    dead.train(died.session, batches[:2])
    # Its connection is gone before coordinator or hook can end anything.
    died.session.close()
    replica = graphs.Replica()
    with _ByHand(replica, server.target, initialize=False) as session:
        assert replica.train(session, batches[2:]) == [3, 4]
        _assert_weights(session, replica, batches)
        stats = replica.optimizer.stats(session)
    assert (stats["generation"], stats["updates"]) == (died.generation + 1, 4)


def test_chief_that_was_replaced_does_not_end_the_training_of_its_successor():
    replica = graphs.Replica()
    optimizer = replica.optimizer
    other = ("/job:worker/replica:0/task:7", 77)
    with replica.graph.as_default():
        # What the graph of another chief would do.
        gate = optimizer._gate
        successor = sync_gate_ops.sync_gate_open(gate, tf.constant(1, tf.int64))
        acquired = sync_gate_ops.sync_gate_acquire(gate, *other)
    by_hand = _ByHand(replica)
    with by_hand as session:
        replica.train(session, graphs.batches(1))
        present = by_hand.generation
        assert session.run(successor) == present + 1
        # Its wait for the next quorum was ended, or had not begun yet.
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


def test_two_optimizers_of_a_graph_train_a_part_each():
    with tf.Graph().as_default():
        step = tf1.train.get_or_create_global_step()
        generator = tf1.get_variable("generator", initializer=1.0)
        critic = tf1.get_variable("critic", initializer=5.0)
        trained = []
        for name, variable in (("g", generator), ("c", critic)):
            optimizer = tfs.train.SyncReplicasOptimizer(
                tf1.train.GradientDescentOptimizer(0.5), 1, name=name
            )
            train_op = optimizer.minimize(
                (generator - critic) ** 2, global_step=step, var_list=[variable]
            )
            trained.append((train_op, optimizer.make_session_run_hook(True)))
        hooks = [hook for _, hook in trained]
        with tf1.train.SingularMonitoredSession(hooks) as session:
            session.run(trained[0][0])
            assert session.run([generator, critic]) == [5.0, 5.0]
            session.run(trained[1][0])
            assert session.run([generator, critic, step]) == [5.0, 5.0, 2]
