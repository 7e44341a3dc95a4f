"""The ops of SyncReplicas on a cluster, call by call, on one task."""

import types

import pytest
import sync_accounting
import tensorflow as tf

from tf_syncrep.python.keras.sync_replicas.cluster.cluster_ops import ClusterOps
from tf_syncrep.python.keras.sync_replicas.cluster.cluster_rounds import ClusterRounds
from tf_syncrep.python.ops import sync_gate_ops
from tf_syncrep.python.sync import gate_stats

DEVICE = "/job:localhost/replica:0/task:0/device:CPU:0"
OTHER = "/job:ps/replica:0/task:1/device:CPU:0"
TWO = tf.TensorShape([2])


@pytest.fixture
def variables():
    return [tf.Variable(tf.zeros([2])), tf.Variable(tf.zeros([5, 1]))]


def make(quorum=1, reject_nonfinite=False):
    return ClusterOps(quorum, quorum, 60.0, 600.0, reject_nonfinite, True, DEVICE)


def open_gate(ops):
    return ops.at_gate(sync_gate_ops.sync_gate_open, tf.constant(0, tf.int64))


def full_round(ops, generation):
    return ops.quorum_of(
        sync_gate_ops.sync_gate_wait_quorum, generation, timeout_secs=30.0
    )


def gradients(value):
    rows = tf.IndexedSlices(tf.fill([1, 1], value), tf.constant([3]))
    return [tf.fill([2], value), rows]


def contribute(rounds, variables, value):
    permit = rounds.acquire()
    rounds.contribute(permit, gradients(value), variables)


def stats_of(rounds):
    stats = rounds.at_gate(sync_gate_ops.sync_gate_stats)
    stats = gate_stats.to_dict(*(x.numpy() for x in stats))
    sync_accounting.assert_identities(stats)
    return stats


def test_nonfinite_gradient_is_rejected_on_request_and_the_round_goes_on(variables):
    rounds = make(reject_nonfinite=True)
    generation = open_gate(rounds)
    contribute(rounds, variables, float("nan"))
    assert stats_of(rounds)["rejected"] == 1
    contribute(rounds, variables, 3.0)
    (dense, _), _ = rounds.take(full_round(rounds, generation))
    assert dense.numpy().tolist() == [3.0, 3.0]


def test_batches_are_done_whose_gradients_are_applied_or_rejected(variables):
    ops = make(reject_nonfinite=True)
    optimizer = types.SimpleNamespace(iterations=tf.Variable(0, dtype=tf.int64))
    strategy = tf.distribute.get_strategy()
    rounds = ClusterRounds(ops, strategy, optimizer, update=None)
    generation = open_gate(ops)
    contribute(ops, variables, float("nan"))
    rounds.begin_epoch(3)
    contribute(ops, variables, float("nan"))
    contribute(ops, variables, 1.0)
    assert rounds.num_done(99) == 4
    quorum = full_round(ops, generation)
    ops.take(quorum)
    step = tf.constant(1, tf.int64)
    ops.at_gate(sync_gate_ops.sync_gate_advance, generation, quorum[0], step)
    assert rounds.num_done(99) == 5


def test_permit_that_is_given_back_frees_its_place(variables):
    rounds = make()
    open_gate(rounds)
    rounds.give_back(rounds.acquire())
    contribute(rounds, variables, 1.0)
    assert stats_of(rounds)["committed"] == 1


def test_gradients_of_fewer_variables_are_refused(variables):
    rounds = make()
    open_gate(rounds)
    permit = rounds.acquire()
    rounds.contribute(permit, gradients(1.0), variables)
    with pytest.raises(ValueError, match="gradients of the same kinds for the same"):
        rounds.contribute(permit, gradients(1.0)[:1], variables[:1])


def test_bad_gradient_pushes_nothing(variables):
    rounds = make()
    open_gate(rounds)
    permit = rounds.acquire()
    bad = tf.IndexedSlices(tf.constant([[1.0]]), tf.constant([5]))
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"indices in \[0, 5\)"):
        rounds.contribute(permit, [tf.ones([2]), bad], variables)
    assert stats_of(rounds)["admitted"] == 0
    contribute(rounds, variables, 1.0)
    assert stats_of(rounds)["committed"] == 1


def test_functions_make_no_handles(variables):
    # TensorFlow would run ops that make handles in order, one task after the other.
    rounds = make()
    generation = open_gate(rounds)

    @tf.function
    def step():
        contribute(rounds, variables, 1.0)

    @tf.function
    def take():
        rounds.take(full_round(rounds, generation))

    step()
    take()
    op_types = {
        op.type
        for function in (step, take)
        for op in function.get_concrete_function().graph.get_operations()
    }
    assert {"Syncrep>SyncGateAdmit", "Syncrep>AccumulatorTakeRoundSparse"} <= op_types
    assert op_types.isdisjoint(
        {"Syncrep>SyncGate", "Syncrep>DenseAccumulator", "Syncrep>SparseAccumulator"}
    )


@pytest.mark.parametrize(("reject_nonfinite", "num_messages"), [(False, 4), (True, 5)])
def test_gradients_for_the_gates_own_task_are_told_of_by_themselves(
    variables, reject_nonfinite, num_messages
):
    rounds = make(reject_nonfinite=reject_nonfinite)
    step = tf.function(lambda value: contribute(rounds, variables, value))
    graph = step.get_concrete_function(tf.TensorSpec([])).graph
    # These go to the task of the gate and of the variables: the request for a permit,
    # the dense gradient, indices and values of the sparse one, and whether all are
    # finite if that matters.
    sent = {
        tensor.name
        for operation in graph.get_operations()
        if operation.device == DEVICE
        for tensor in [*operation.inputs, *operation.control_inputs]
        if (getattr(tensor, "op", tensor)).device != DEVICE
        and getattr(tensor, "dtype", None) != tf.resource
    }
    assert len(sent) == num_messages, sent


def test_steps_of_a_function_tell_the_gate_once_who_the_worker_is():
    ops, other = make(), make()
    open_gate(ops)

    @tf.function(autograph=False)
    def steps():
        for _ in range(3):
            ops.give_back(ops.acquire())

    @tf.function(autograph=False)
    def steps_of_two():
        for each in (ops, other, ops):
            each.give_back(each.acquire())

    def count(function, kind):
        graph = function.get_concrete_function().graph
        return sum(op.type == kind for op in graph.get_operations())

    for function, times in ((steps, 1), (steps_of_two, 2)):
        assert count(function, "Syncrep>TaskId") == times
        assert count(function, "Syncrep>SyncGateAcquire") == 3
    steps()
    stats = stats_of(ops)
    assert [x["phase"] for x in stats["workers"].values()] == ["idle"]
    assert stats["in_flight"] == 0


def test_gate_is_placed_until_it_is_made(variables):
    rounds = make()
    elsewhere = [types.SimpleNamespace(device=OTHER, shape=TWO, dtype=tf.float32)]
    rounds.place_gate(elsewhere)
    assert rounds.device == OTHER
    rounds.place_gate(variables)
    assert rounds.device == DEVICE
    open_gate(rounds)
    rounds.place_gate(elsewhere)
    assert rounds.device == DEVICE


def test_two_optimizers_have_gates_of_their_own(variables):
    first, second = make(), make()
    open_gate(first)
    open_gate(second)
    contribute(first, variables, 1.0)
    assert stats_of(first)["committed"] == 1
    assert stats_of(second)["committed"] == 0
