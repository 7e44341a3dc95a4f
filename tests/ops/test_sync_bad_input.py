"""Inputs that are not scalars, which only the kernels of gate and accumulators can see.

Their shape is unknown when the graph is built, so that no shape function refuses them:
a worker with a broken graph can send such inputs to a parameter server.
"""

import re

import numpy as np
import pytest
import tensorflow as tf

import tf_syncrep as tfs
from tf_syncrep.python.ops import sync_gate_ops as gate_ops

tf1 = tf.compat.v1

GENERATION = ("generation", tf.int64, 1)
ROUND = ("round", tf.int64, 1)
STEP = ("step", tf.int64, 1)
DEVICE = ("device", tf.string, "/job:worker/task:0")
INCARNATION = ("incarnation", tf.int64, 1)
LOCAL_STEP = ("local_step", tf.int64, 0)
NUM_GRADIENTS = ("num_gradients", tf.int64, 1)

CONTRIBUTION = [GENERATION, ROUND, DEVICE, INCARNATION]

# For each op: the function that makes it, and the names, dtypes and valid values of its
# inputs.
GATE_OPS = {
    op: (getattr(gate_ops, f"sync_gate_{op}"), inputs)
    for op, inputs in {
        "open": [STEP],
        "add_passes": [("num_passes", tf.int64, 0)],
        "acquire": [DEVICE, INCARNATION],
        "admit": [*CONTRIBUTION, ("fit", tf.bool, True)],
        "commit": CONTRIBUTION,
        "abort": CONTRIBUTION,
        "leave": [DEVICE, INCARNATION],
        "wait_quorum": [GENERATION],
        "flush": [GENERATION],
        "advance": [GENERATION, ROUND, STEP],
        "drain": [GENERATION],
        "cancel_updater": [GENERATION, DEVICE, INCARNATION],
        "configure": [("quorum", tf.int64, 1), ("total", tf.int64, 1)],
        "close": [GENERATION],
        "fail": [("code", tf.int32, 1), ("message", tf.string, "no"), GENERATION],
    }.items()
}
ACCUMULATOR_OPS = {
    "apply_dense": (
        lambda handle, step: tfs.ops.accumulator_apply_dense(handle, step, [1.0]),
        [LOCAL_STEP],
    ),
    "apply_sparse": (
        lambda handle, step: tfs.ops.accumulator_apply_sparse(handle, step, [0], [1.0]),
        [LOCAL_STEP],
    ),
    "take_round_dense": (
        lambda handle, *round_: tfs.ops.accumulator_take_round_dense(
            handle, *round_, tf.float32
        ),
        [ROUND, NUM_GRADIENTS],
    ),
    "take_round_sparse": (
        lambda handle, *round_: tfs.ops.accumulator_take_round_sparse(
            handle, *round_, tf.float32
        ),
        [ROUND, NUM_GRADIENTS],
    ),
    "set_global_step": (
        tfs.ops.accumulator_set_global_step,
        [("new_global_step", tf.int64, 0)],
    ),
}
NOT_SCALARS = ([1], [2, 1], [0])


def _each_input(ops):
    return pytest.mark.parametrize(
        ("op", "bad"),
        [
            pytest.param(op, bad, id=f"{op}-{inputs[bad][0]}")
            for op, (_, inputs) in ops.items()
            for bad in range(len(inputs))
        ],
    )


def _assert_refused(session, call, handle, inputs, bad):
    """Runs an op whose input number `bad` is not a scalar, and all others are valid."""
    fed = [tf1.placeholder(dtype, shape=None) for _, dtype, _ in inputs]
    op = call(handle, *fed)
    name, dtype, good = inputs[bad]
    feed = dict(zip(fed, (value for _, _, value in inputs), strict=True))
    for shape in NOT_SCALARS:
        feed[fed[bad]] = np.full(shape, good, dtype.as_numpy_dtype)
        with pytest.raises(tf.errors.InvalidArgumentError) as caught:
            session.run(op, feed)
        described = str(shape).replace(" ", "")
        assert re.search(
            rf"\b{name} must be (a )?scalar, but .*{re.escape(described)}",
            caught.value.message,
        )


@_each_input(GATE_OPS)
def test_gates_input_that_is_not_a_scalar_is_refused_and_changes_nothing(op, bad):
    with tf.Graph().as_default(), tf1.Session() as session:
        handle = gate_ops.sync_gate(1, 1, shared_name="gate")
        worker = ("/job:worker/task:1", 1)
        generation = session.run(gate_ops.sync_gate_open(handle, 5))
        call, inputs = GATE_OPS[op]
        _assert_refused(session, call, handle, inputs, bad)
        permit = session.run(gate_ops.sync_gate_acquire(handle, *worker))
        assert (permit[0], permit[2]) == (generation, 5)
        contribution = (*permit[:2], *worker)
        assert session.run(gate_ops.sync_gate_admit(handle, *contribution, True))
        assert session.run(gate_ops.sync_gate_commit(handle, *contribution))
        full = session.run(gate_ops.sync_gate_wait_quorum(handle, generation))
        assert full == (permit[1], 1)
        assert session.run(gate_ops.sync_gate_advance(handle, *permit[:2], 6))


@_each_input(ACCUMULATOR_OPS)
def test_accumulators_input_that_is_not_a_scalar_is_refused_and_changes_nothing(
    op, bad
):
    kind = "sparse" if op.endswith("sparse") else "dense"
    make = {"dense": tfs.ops.dense_accumulator, "sparse": tfs.ops.sparse_accumulator}
    with tf.Graph().as_default(), tf1.Session() as session:
        handle = make[kind](tf.float32, [1], mode="ROUND")
        apply, _ = ACCUMULATOR_OPS[f"apply_{kind}"]
        take, _ = ACCUMULATOR_OPS[f"take_round_{kind}"]
        assert session.run(apply(handle, 1))
        call, inputs = ACCUMULATOR_OPS[op]
        _assert_refused(session, call, handle, inputs, bad)
        assert session.run(apply(handle, 1))
        taken = session.run(take(handle, 1, 2))
        values = taken.values if kind == "sparse" else taken
        np.testing.assert_array_equal(values, [1.0])
        assert session.run(tfs.ops.accumulator_stats(handle)).pushed == 2


def _not_a_scalar(handle):
    """A vector of unknown shape in place of a handle, and its size, which is fed."""
    size = tf1.placeholder(tf.int32, [])
    handles = tf.strided_slice(tf.stack([handle, handle]), [0], [size])
    return tf.reshape(handles, tf1.placeholder_with_default([size], None)), size


def _assert_handle_is_refused(session, call, handle, inputs):
    handle, size = _not_a_scalar(handle)
    op = call(handle, *(value for _, _, value in inputs))
    for number in (0, 1, 2):
        with pytest.raises(
            tf.errors.InvalidArgumentError,
            match=rf"handle must be a scalar, but has shape \[{number}\]",
        ):
            session.run(op, {size: number})


@pytest.mark.parametrize("op", GATE_OPS)
def test_gates_handle_that_is_not_a_scalar_is_refused(op):
    with tf.Graph().as_default(), tf1.Session() as session:
        handle = gate_ops.sync_gate(1, 1, shared_name="gate")
        call, inputs = GATE_OPS[op]
        _assert_handle_is_refused(session, call, handle, inputs)
        assert session.run(gate_ops.sync_gate_open(handle, 5))


@pytest.mark.parametrize("op", ACCUMULATOR_OPS)
def test_accumulators_handle_that_is_not_a_scalar_is_refused(op):
    make = tfs.ops.sparse_accumulator if "sparse" in op else tfs.ops.dense_accumulator
    with tf.Graph().as_default(), tf1.Session() as session:
        handle = make(tf.float32, [1], mode="ROUND")
        call, inputs = ACCUMULATOR_OPS[op]
        _assert_handle_is_refused(session, call, handle, inputs)
        assert session.run(tfs.ops.accumulator_stats(handle)).pushed == 0


def test_optimizers_handle_that_is_not_a_scalar_is_refused():
    with tf.Graph().as_default(), tf1.Session() as session:
        var, m, v, beta1_power, beta2_power = variables = [
            tf.Variable(tf.zeros(shape)) for shape in ([2], [2], [2], [], [])
        ]
        session.run(tf1.global_variables_initializer())
        handle, size = _not_a_scalar(m.handle)
        numbers = [0.1, 0.9, 0.999, 1e-8]
        op = tfs.ops.resource_apply_adam_async(
            var.handle,
            handle,
            v.handle,
            beta1_power.handle,
            beta2_power.handle,
            *numbers,
            [1.0, 1.0],
        )
        for number in (0, 1, 2):
            with pytest.raises(
                tf.errors.InvalidArgumentError,
                match=rf"m must be a scalar, but has shape \[{number}\]",
            ):
                session.run(op, {size: number})
        assert not any(value.any() for value in session.run(variables))
