"""The op that takes a round and applies its mean, compared with two separate ops."""

import re

import adam_async_steps as steps
import pytest
import tensorflow as tf

import tf_syncrep as tfs

tf1 = tf.compat.v1

SHAPE = (300, 70)
ROUND = 7

all_dtypes = pytest.mark.parametrize(
    "dtype", steps.DTYPES, ids=lambda dtype: dtype.name
)


def make_accumulator(dtype=tf.float32, num_gradients=3, shape=SHAPE, **options):
    """An accumulator that holds a round."""
    options = {"mode": "ROUND", **options}
    handle = tfs.ops.dense_accumulator(dtype, shape, counted=True, **options)
    for seed in range(num_gradients):
        gradient = tf.constant(steps.random_array(seed, list(shape), dtype))
        assert tfs.ops.accumulator_apply_dense(handle, ROUND, gradient)
    return handle


def take_and_apply(variables, handle, dtype=tf.float32, **options):
    """The op with valid inputs, except those in `options`."""
    inputs = {
        **steps.HYPER_PARAMETERS,
        "handle": handle,
        "round": ROUND,
        "num_gradients": 3,
        **options,
    }
    names = ("var", "m", "v", "beta1_power", "beta2_power")
    inputs = {**dict(zip(names, variables, strict=True)), **inputs}
    return tfs.ops.accumulator_take_round_apply_adam_async_dense(dtype=dtype, **inputs)


@all_dtypes
@pytest.mark.parametrize("num_gradients", [1, 3, 4])
@pytest.mark.parametrize("reduction_type", ["MEAN", "SUM"])
@pytest.mark.parametrize("use_nesterov", [False, True])
def test_same_bits_as_take_then_apply(
    dtype, num_gradients, reduction_type, use_nesterov
):
    before = steps.random_state(1, list(SHAPE), dtype)
    two, one = steps.make_variables(before), steps.make_variables(before)
    for _ in range(2):
        handle = make_accumulator(dtype, num_gradients, reduction_type=reduction_type)
        taken = tfs.ops.accumulator_take_round_dense(
            handle, ROUND, num_gradients, dtype
        )
        steps.apply(two, taken, use_nesterov=use_nesterov)
        handle = make_accumulator(dtype, num_gradients, reduction_type=reduction_type)
        take_and_apply(
            one, handle, dtype, num_gradients=num_gradients, use_nesterov=use_nesterov
        )
        steps.assert_identical(steps.values(one), steps.values(two))
    stats = tfs.ops.accumulator_stats(handle)
    assert (stats.taken, stats.takes, stats.held) == (num_gradients, 1, 0)
    late = tf.zeros(SHAPE, dtype)
    assert not tfs.ops.accumulator_apply_dense(handle, ROUND, late)
    assert tfs.ops.accumulator_apply_dense(handle, ROUND + 1, late)


def test_rounds_follow_each_other_in_a_function_and_in_a_session():
    before = steps.random_state(1, list(SHAPE), tf.float32)
    gradients = [steps.random_array(seed, list(SHAPE), tf.float32) for seed in (5, 6)]
    two = steps.make_variables(before)
    for gradient in gradients:
        steps.apply(two, gradient)
    expected = steps.values(two)

    variables = steps.make_variables(before)
    handle = tfs.ops.dense_accumulator(tf.float32, SHAPE, mode="ROUND", counted=True)

    @tf.function
    def train(number, gradient):
        with tf.control_dependencies(
            [tfs.ops.accumulator_apply_dense(handle, number, gradient)]
        ):
            take_and_apply(variables, handle, round=number, num_gradients=1)

    for number, gradient in enumerate(gradients):
        train(tf.constant(number, tf.int64), tf.constant(gradient))
    steps.assert_identical(steps.values(variables), expected)

    with tf.Graph().as_default(), tf1.Session() as session:
        variables = steps.make_variables(before)
        handle = tfs.ops.dense_accumulator(
            tf.float32, SHAPE, mode="ROUND", shared_name="gradients"
        )
        number = tf1.placeholder(tf.int64, [])
        fed = tf1.placeholder(tf.float32, SHAPE)
        push = tfs.ops.accumulator_apply_dense(handle, number, fed)
        update = take_and_apply(variables, handle, round=number, num_gradients=1)
        session.run(tf1.global_variables_initializer())
        for i, gradient in enumerate(gradients):
            assert session.run(push, {number: i, fed: gradient})
            session.run(update, {number: i})
        after = type(before)(*session.run(variables))
    steps.assert_identical(after, expected)


def test_what_was_read_before_stays_as_it_was():
    before = steps.random_state(1, list(SHAPE), tf.float32)
    variables, alone = steps.make_variables(before), steps.make_variables(before)
    read = [x.read_value() for x in variables]
    take_and_apply(variables, make_accumulator())
    take_and_apply(alone, make_accumulator())
    steps.assert_identical(type(before)(*[x.numpy() for x in read]), before)
    steps.assert_identical(steps.values(variables), steps.values(alone))


INVALID = tf.errors.InvalidArgumentError
NOT_THERE = tf.errors.FailedPreconditionError


def expect_error(variables, handle, error, message, **options):
    """The op fails with this error, and variables and accumulator are unchanged."""
    before = steps.values(variables)
    stats = tfs.ops.accumulator_stats(handle)
    with pytest.raises(error, match=re.escape(message)):
        take_and_apply(variables, handle, **options)
    steps.assert_identical(steps.values(variables), before)
    after = tfs.ops.accumulator_stats(handle)
    assert [int(x) for x in after] == [int(x) for x in stats]


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        *(
            ({name: [3]}, INVALID, f"{name} must be a scalar, but has shape [1]")
            for name in ("lr", "round", "num_gradients")
        ),
        ({"num_gradients": 0}, INVALID, "num_gradients must be positive, but is 0"),
        ({"num_gradients": 4}, NOT_THERE, "must hold 4 gradients of round 7, but"),
        ({"round": 8}, NOT_THERE, "3 gradients of round 8, but holds 3 of round 7"),
    ],
)
def test_bad_input_changes_neither_variables_nor_accumulator(options, error, message):
    variables = steps.make_variables(steps.random_state(1, list(SHAPE), tf.float32))
    handle = make_accumulator()
    expect_error(variables, handle, error, message, **options)
    take_and_apply(variables, handle)


def test_bad_variables_and_accumulators_change_nothing():
    good = steps.make_variables(steps.random_state(1, list(SHAPE), tf.float32))
    kind = "handle must be of a dense accumulator of dtype float, but is of a"
    sparse = tfs.ops.sparse_accumulator(tf.float32, SHAPE, mode="ROUND", counted=True)
    for variables, handle, message in (
        (
            good,
            make_accumulator(shape=(70, 300)),
            "grad must have the shape of var, [300,70], but has shape [70,300]",
        ),
        (
            good,
            make_accumulator(mode="STEP"),
            "handle must be of an accumulator with mode=ROUND",
        ),
        (good, make_accumulator(tf.float64), f"{kind} dense one of dtype double"),
        (good, sparse, f"{kind} sparse one of dtype float"),
        (
            [*good[:2], good[1], *good[3:]],
            make_accumulator(),
            "must be different variables, but are the same one",
        ),
        (
            [*good[:4], tf.Variable([0.9, 0.9])],
            make_accumulator(),
            "beta2_power must have exactly one element, but has shape [2]",
        ),
    ):
        expect_error(variables, handle, INVALID, message)


def test_shapes_that_do_not_fit_are_refused_when_the_graph_is_built():
    variables = steps.make_variables(steps.random_state(1, list(SHAPE), tf.float32))

    @tf.function
    def other_shape():
        handle = tfs.ops.dense_accumulator(
            tf.float32, [70, 300], mode="ROUND", counted=True
        )
        take_and_apply(variables, handle)

    with pytest.raises(ValueError, match=r"grad must have shape \[300,70\]"):
        other_shape.get_concrete_function()

    @tf.function
    def no_scalar():
        take_and_apply(variables, make_accumulator(num_gradients=0), round=[7])

    with pytest.raises(ValueError, match="must be rank 0"):
        no_scalar.get_concrete_function()
