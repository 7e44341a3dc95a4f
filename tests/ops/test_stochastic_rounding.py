"""Stochastic rounding in the ops that update a variable: bit by bit as the reference.

An update of a float32 variable with the same numbers gives the values that are rounded.
"""

import inspect
import re

import numpy as np
import pytest
import rounding_reference
import rule_reference
import tensorflow as tf
from combinations import thinned
from rule_numbers import NUMBERS
from waiting import in_thread

import tf_syncrep as tfs
from tf_syncrep.python.keras.optimizers.tf_ops import rounding_tf_ops
from tf_syncrep.python.ops import rule_ops

ADAM = {"lr": 0.05, "beta1": 0.9, "beta2": 0.999, "epsilon": 1e-7}
# AdamAsync's formulas, and the arguments of each.
FORMULAS = {
    "adam": {},
    "nesterov_adam": {"use_nesterov": True},
    "rmsprop": {"apply_sparse_rmsprop": True},
}
UPDATES = [*NUMBERS, *FORMULAS]
KINDS, MODES = ["sparse", "dense"], ["eager", "function", "session"]
DTYPES = [tf.bfloat16, tf.float16]
# More elements than a block of a dense update has.
SHAPE = (250, 37)
ROWS = np.array([249, 3, 3, 0, 17, 3, 100, 64])
SEED, FIRST_ROW, STRIDE = 11, 2, 3


def random_array(seed, shape, dtype):
    values = np.random.default_rng(seed).normal(size=shape)
    return values.astype(dtype.as_numpy_dtype)


def slots_of(update, shape):
    """The initial values of slots, as float32, in the order of the op."""
    if update in FORMULAS:
        powers = [np.float32([ADAM["beta1"]]), np.float32([ADAM["beta2"]])]
        return [np.zeros(shape, np.float32), np.full(shape, 0.5, np.float32), *powers]
    of_rule = rule_reference.slot_shape(update, shape)
    slots = rule_ops.RULES[update].slots
    return [np.full(of_rule, 0.5, np.float32) for _ in slots]


def apply(update, var, slots, grad, indices=None, rounding=None):
    """Builds or makes an update."""
    gradient = [grad] if indices is None else [grad, indices]
    kind = "" if indices is None else "sparse_"
    if update in FORMULAS:
        step = getattr(tfs.ops, f"resource_{kind}apply_adam_async")
        options = {**FORMULAS[update], "rounding": rounding}
        return step(var, *slots, *ADAM.values(), *gradient, **options)
    step = getattr(tfs.ops, f"resource_{kind}apply_rule")
    named = dict(zip(rule_ops.RULES[update].slots, slots, strict=True))
    return step(update, var, named, NUMBERS[update], *gradient, rounding=rounding)


def updated(update, var, grad, indices, *, count=None, mode="eager"):
    """The variable after an update, the count and the slots."""

    def make():
        made = [tf.compat.v1.Variable(x, use_resource=True) for x in (var, *slots)]
        counts = [] if count is None else [tf.constant([count], tf.int64)]
        return made, [tf.compat.v1.Variable(x, use_resource=True) for x in counts]

    def step(made, counts):
        rounding = [
            tfs.ops.StochasticRounding(x, SEED, FIRST_ROW, STRIDE) for x in counts
        ]
        return apply(
            update, made[0], made[1:], tf.constant(grad), indices, *rounding[:1]
        )

    slots = slots_of(update, np.shape(var))
    if mode == "session":
        with tf.Graph().as_default(), tf.compat.v1.Session() as session:
            made, counts = make()
            op = step(made, counts)
            session.run(tf.compat.v1.global_variables_initializer())
            session.run(op)
            return session.run((made[0], counts, made[1:]))
    made, counts = make()

    def run():
        step(made, counts)

    (tf.function(run) if mode == "function" else run)()
    return (
        made[0].numpy(),
        [x.numpy() for x in counts],
        [x.numpy() for x in made[1:]],
    )


def as_bits(values):
    return np.asarray(values).view(np.uint16)


@thinned("update, kind, dtype, mode", UPDATES, KINDS, DTYPES, MODES)
def test_the_bits_are_those_of_the_reference(update, kind, dtype, mode):
    if update == "rmsprop" and kind == "dense":
        pytest.skip("has no dense form")
    var = random_array(1, SHAPE, dtype)
    var[3] = 3e-6  # denormals of half
    indices = ROWS if kind == "sparse" else None
    grad = random_array(
        2, (len(ROWS), *SHAPE[1:]) if kind == "sparse" else SHAPE, dtype
    )
    exact, _, slots = updated(
        update, var.astype(np.float32), grad.astype(np.float32), indices
    )
    got, count, got_slots = updated(update, var, grad, indices, count=-6, mode=mode)
    if kind == "sparse":
        draws = rounding_reference.sparse_draws(SEED, -7, SHAPE, FIRST_ROW, STRIDE)
    else:
        # Blocks and rows are numbered like the rows of a part.
        is_rowwise = update == "rowwise_adagrad"
        draws = rounding_reference.dense_draws(
            SEED, -7, SHAPE, is_rowwise, FIRST_ROW, STRIDE
        )
    expected = rounding_reference.round_to(exact, dtype.as_numpy_dtype, draws)
    np.testing.assert_array_equal(as_bits(got), as_bits(expected))
    np.testing.assert_array_equal(count, [[-7]])
    for slot, wanted in zip(got_slots, slots, strict=True):
        np.testing.assert_array_equal(slot, wanted)
    nearest = exact.astype(dtype.as_numpy_dtype)
    assert (as_bits(got) != as_bits(nearest)).any()


@pytest.mark.parametrize("dtype", DTYPES)
def test_reference_rounds_to_neighbours_with_their_probabilities(dtype):
    """All draws that differ for the dtype, and the ends of its range."""
    small = dtype.as_numpy_dtype
    values = random_array(3, (40,), tf.float32)
    values[:4] = [0, -0.0, 1, float(dtype.max)]
    bits = 16 if dtype == tf.bfloat16 else 13
    draws = (np.arange(2**bits, dtype=np.uint64) << (32 - bits)).astype(np.uint32)
    for value in values:
        low, high, up = rounding_reference.neighbours(value, small)
        rounded = rounding_reference.round_to(np.full(len(draws), value), small, draws)
        found = np.unique(rounded.astype(np.float64))
        np.testing.assert_array_equal(found, np.unique([low, high]))
        assert abs(low) <= abs(value) <= abs(high)
        mean = rounded.astype(np.float64).mean()
        np.testing.assert_allclose(mean, value, rtol=1e-5)
        assert (low == high) == (up == 0)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("how", ["eager", "function", "xla"])
def test_tensorflows_ops_round_as_the_reference_does(dtype, how):
    small = dtype.as_numpy_dtype
    values = random_array(4, (3000,), tf.float32)
    values *= np.float32(10.0) ** np.random.default_rng(5).integers(-7, 4, 3000)
    largest = float(dtype.max)
    values[:6] = [0, 1, -1.5, largest, -largest, 2.0**-20]
    draws = np.random.default_rng(6).integers(0, 2**32, 3000, np.uint32)
    is_denormal = (dtype == tf.float16) & (np.abs(values) < 2.0**-14)
    bits = np.where(is_denormal, 20, 16 if dtype == tf.bfloat16 else 13)
    # There the lowest bits decide, and in the kernels the highest ones.
    lowest = (draws >> (32 - bits)).astype(np.int32)

    def round_all():
        return rounding_tf_ops.round_by(tf.constant(values), dtype, tf.constant(lowest))

    if how != "eager":
        round_all = tf.function(round_all, jit_compile=how == "xla")
    expected = rounding_reference.round_to(values, small, draws)
    np.testing.assert_array_equal(round_all().numpy(), expected)


@pytest.mark.parametrize("how", ["eager", "xla"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_tensorflows_ops_make_nothing_infinite_that_nearest_leaves_finite(dtype, how):
    small = dtype.as_numpy_dtype
    largest = np.float32(dtype.max)
    quarter = (largest - np.float32(np.nextafter(small(dtype.max), small(0)))) / 4
    values = np.float32(
        [largest + quarter, np.inf, -np.inf, np.nan, -largest - quarter]
    )

    def round_all():
        draws = tf.fill([5], tf.constant(2**20 - 1))
        return rounding_tf_ops.round_by(tf.constant(values), dtype, draws)

    rounded = tf.function(round_all, jit_compile=how == "xla")()
    np.testing.assert_array_equal(
        rounded.numpy().astype(np.float32), [largest, np.inf, -np.inf, np.nan, -largest]
    )


@pytest.mark.parametrize("use_locking", [False, True])
def test_concurrent_updates_draw_different_numbers(use_locking):
    """Every update takes a number of its own: as many in all as one after the other."""
    callers, updates, size = 4, 25, 512
    place = 2.0**-8
    var = tf.Variable(tf.ones([1, size], tf.bfloat16))
    count = tf.Variable([0], dtype=tf.int64)
    rounding = tfs.ops.StochasticRounding(count)
    grad = tf.fill([1, size], tf.cast(place / 4, tf.bfloat16))

    def work():
        for _ in range(updates):
            tfs.ops.resource_sparse_apply_rule(
                "sgd", var, {}, {"lr": 1.0}, grad, [0], use_locking, rounding=rounding
            )

    for caller in [in_thread(work) for _ in range(callers)]:
        caller.result(60)
    total = callers * updates
    assert count.numpy() == [-total]
    moved = (1 - var.numpy().astype(np.float64)).mean()
    deviation = place / 2 * np.sqrt(total / size)
    np.testing.assert_allclose(moved, total * place / 4, atol=5 * deviation)


@pytest.mark.parametrize("dtype", [tf.float32, tf.float64])
@pytest.mark.parametrize("update", ["sgd", "adam"])
def test_larger_types_are_not_rounded(update, dtype):
    var, grad = random_array(11, (6, 5), dtype), random_array(12, (6, 5), dtype)
    results = []
    for counts in ([], [tf.Variable([0], dtype=tf.int64)]):
        made = tf.Variable(var)
        slots = [tf.Variable(x.astype(var.dtype)) for x in slots_of(update, var.shape)]
        rounding = [tfs.ops.StochasticRounding(x) for x in counts]
        apply(update, made, slots, grad, None, *rounding)
        results.append(made.numpy())
    np.testing.assert_array_equal(*results)


@pytest.mark.parametrize("update", ["sgd", "adam"])
def test_only_some_calls_without_indices_count(update):
    """So parts of a table, all of which are called, have the same count."""
    count = tf.Variable([0], dtype=tf.int64)
    var = tf.Variable(tf.ones([3, 2], tf.bfloat16))
    slots = [tf.Variable(x) for x in slots_of(update, (3, 2))]
    nothing = tf.zeros([0, 2], tf.bfloat16), tf.zeros([0], tf.int64)
    rounding = tfs.ops.StochasticRounding(count)
    apply(update, var, slots, *nothing, rounding)
    assert count.numpy() == [0 if update == "adam" else -1]
    if update == "adam":
        tfs.ops.resource_sparse_apply_adam_async(
            var, *slots, *ADAM.values(), *nothing, count_empty=True, rounding=rounding
        )
        assert count.numpy() == [-1]
    np.testing.assert_array_equal(var.numpy().astype(np.float32), 1)


@pytest.mark.parametrize("update", ["sgd", "adam"])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("count", "message"),
    [
        (
            np.zeros([2], np.int64),
            "rounding_count must have exactly one element, but has shape [2]",
        ),
        (
            np.zeros([1], np.int32),
            "rounding_count must be a variable of dtype int64, but has dtype int32",
        ),
    ],
    ids=["shape", "dtype"],
)
def test_a_bad_count_is_refused_before_anything_is_written(
    update, kind, count, message
):
    var = tf.Variable(tf.ones([3, 2], tf.bfloat16))
    slots = [tf.Variable(x) for x in slots_of(update, (3, 2))]
    rounding = tfs.ops.StochasticRounding(tf.Variable(count))
    before = [x.numpy() for x in (var, *slots)]
    gradient = tf.ones([3, 2], tf.bfloat16), [0, 1, 2] if kind == "sparse" else None
    with pytest.raises(tf.errors.InvalidArgumentError, match=re.escape(message)):
        apply(update, var, slots, *gradient, rounding)
    for x, value in zip((var, *slots), before, strict=True):
        np.testing.assert_array_equal(x.numpy(), value)


@pytest.mark.parametrize("update", ["sgd", "adam"])
def test_errors_of_other_arguments_leave_the_count_as_it_was(update):
    var = tf.Variable(tf.ones([3, 2], tf.bfloat16))
    count = tf.Variable([-4], dtype=tf.int64)
    slots = [tf.Variable(x) for x in slots_of(update, (3, 2))]
    gradient, rounding = tf.ones([1, 2], tf.bfloat16), tfs.ops.StochasticRounding(count)
    with pytest.raises(tf.errors.InvalidArgumentError, match="is out of range"):
        apply(update, var, slots, gradient, [3], rounding)
    assert count.numpy() == [-4]


@pytest.mark.parametrize("update", ["sgd", "adam"])
def test_a_known_shape_is_checked_when_a_graph_is_built(update):
    with tf.Graph().as_default():
        var = tf.Variable(tf.ones([3, 2], tf.bfloat16))
        slots = [tf.Variable(x) for x in slots_of(update, (3, 2))]
        rounding = tfs.ops.StochasticRounding(tf.Variable(tf.zeros([2], tf.int64)))
        for gradient in (
            [tf.ones([3, 2], tf.bfloat16), None],
            [tf.ones([1, 2], tf.bfloat16), [0]],
        ):
            with pytest.raises(
                ValueError, match="rounding_count must have exactly one"
            ):
                apply(update, var, slots, *gradient, rounding)


def test_reference_variables_are_rounded_to_nearest_alone():
    ops = tfs.ops
    for op in (
        *(ops.apply_rule, ops.sparse_apply_rule),
        *(ops.apply_adam_async, ops.sparse_apply_adam_async),
    ):
        assert "rounding" not in inspect.signature(op).parameters
