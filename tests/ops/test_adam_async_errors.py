"""Bad input to the ops: the error's message, and that nothing was written.

When a graph is built, shape functions catch most of this (see
test_adam_async_shapes.py). In eager execution there is no such check, so that the
kernels themselves are tested here.
"""

import re

import adam_async_steps as steps
import numpy as np
import pytest
import tensorflow as tf

import tf_syncrep as tfs

pytestmark = pytest.mark.usefixtures("device")

ROWS = 1000
INDICES = np.array([3, 999, 3, 0, 17, 500])

all_ops = pytest.mark.parametrize("kind", ["dense", "sparse"])
sparse_options = pytest.mark.parametrize(
    "options",
    [{}, {"use_locking": True}, {"apply_sparse_rmsprop": True}],
    ids=["adam", "locking", "rmsprop"],
)


def state(dtype=tf.float32, shape=(ROWS, 4)):
    return steps.random_state(1, list(shape), dtype)


def gradient(kind, dtype=tf.float32):
    shape = [ROWS, 4] if kind == "dense" else [len(INDICES), 4]
    return steps.random_array(2, shape, dtype)


def indices(kind):
    return INDICES if kind == "sparse" else None


def expect_error(message, before, grad, rows=None, error=None, **options):
    """The op fails with exactly this message, eagerly, and writes nothing."""
    variables = steps.make_variables(before)
    with pytest.raises(error or tf.errors.InvalidArgumentError) as caught:
        steps.apply(variables, grad, rows, **options)
    assert message in caught.value.message
    steps.assert_identical(steps.values(variables), before)


@sparse_options
@pytest.mark.parametrize("index_dtype", [np.int32, np.int64])
@pytest.mark.parametrize("bad", [ROWS, -1, 2**31 - 1, -(2**31)])
@pytest.mark.parametrize("place", [0, 3, 5], ids=["first", "middle", "last"])
def test_an_index_out_of_range_leaves_the_whole_variable_as_it_was(
    place, bad, index_dtype, options
):
    rows = INDICES.astype(index_dtype)
    rows[place] = bad
    expect_error(
        f"indices[{place}] = {bad} is out of range: it must be in [0, 1000), "
        "the rows of var",
        state(),
        gradient("sparse"),
        rows,
        **options,
    )


def test_the_first_of_many_bad_indices_is_named():
    rows = np.arange(100_000) % ROWS
    rows[[70_001, 99_998]] = [-5, 2**40]
    expect_error(
        "indices[70001] = -5 is out of range: it must be in [0, 1000), the rows of var",
        state(),
        tf.ones([100_000, 4]),
        rows,
    )


def test_an_index_that_no_int32_holds_is_not_truncated():
    expect_error(
        f"indices[0] = {2**32} is out of range: it must be in [0, 1000)",
        state(),
        tf.ones([1, 4]),
        np.array([2**32]),
    )


def test_a_variable_without_rows_takes_no_index():
    expect_error(
        "indices[0] = 0 is out of range: it must be in [0, 0), the rows of var",
        state(shape=(0, 4)),
        tf.ones([1, 4]),
        np.array([0]),
    )


def bad_inputs():
    """What is changed of valid inputs of an op, and the message about it."""
    for kind in ("dense", "sparse"):
        for slot in ("m", "v"):
            said = "must have the shape of var, [1000,4], but has shape [1000,3]"
            yield kind, {slot: state().m[:, :3]}, f"{slot} {said}"
        for power in ("beta1_power", "beta2_power"):
            for value, shape in (([0.5, 0.5], "[2]"), ([], "[0]")):
                said = f"must have exactly one element, but has shape {shape}"
                yield kind, {power: np.array(value, np.float32)}, f"{power} {said}"
        for name in ("lr", "beta1", "beta2", "epsilon"):
            for value, shape in (([0.5], "[1]"), ([[0.5, 0.5]], "[1,2]")):
                said = f"must be a scalar, but has shape {shape}"
                yield kind, {name: value}, f"{name} {said}"
    rules = {
        "dense": "must have the shape of var, [1000,4]",
        "sparse": "must have shape [6,4] for 6 indices and a var of shape [1000,4]",
    }
    shapes = {
        "dense": ([1000, 3], [4000], [999, 4], []),
        "sparse": ([6, 3], [5, 4], [24], [6, 4, 1]),
    }
    for kind, rule in rules.items():
        for shape in shapes[kind]:
            said = f"grad {rule}, but has shape {str(shape).replace(' ', '')}"
            yield kind, {"grad": np.ones(shape, np.float32)}, said
    for rows, shape in ((3, "[]"), ([[3, 999]], "[1,2]")):
        said = f"indices must be a vector, but has shape {shape}"
        yield "sparse", {"rows": np.array(rows)}, said


@pytest.mark.parametrize(("kind", "changed", "message"), list(bad_inputs()))
def test_inputs_that_do_not_fit_are_named(kind, changed, message):
    before, inputs = state(), {"grad": gradient(kind), "rows": indices(kind), **changed}
    variables = {name: inputs.pop(name) for name in before._fields if name in inputs}
    expect_error(message, before._replace(**variables), **inputs)


def test_a_scalar_variable_takes_no_sparse_gradient():
    expect_error(
        "var must have at least rank 1 for a sparse gradient, but has shape []",
        state(shape=()),
        tf.ones([1]),
        tf.constant([0]),
    )


@all_ops
@pytest.mark.parametrize(
    ("dtype", "slot", "expected"),
    [
        (tf.float64, tf.float32, "Tslot must be double for T = double, but is float"),
        (tf.float32, tf.float64, "Tslot must be float for T = float, but is double"),
        (tf.float16, tf.float64, "Tslot must be float for T = half, but is double"),
        (
            tf.bfloat16,
            tf.float64,
            "Tslot must be float for T = bfloat16, but is double",
        ),
    ],
)
def test_slots_must_be_as_wide_as_the_variable_asks(kind, dtype, slot, expected):
    before = state(dtype)
    slots = [array.astype(slot.as_numpy_dtype) for array in before[1:]]
    before = type(before)(before.var, *slots)
    scalars = {
        name: tf.constant(value, slot) for name, value in steps.HYPER_PARAMETERS.items()
    }
    expect_error(expected, before, gradient(kind, dtype), indices(kind), **scalars)


@all_ops
@pytest.mark.parametrize("name", ["var", "m", "v", "beta1_power", "beta2_power"])
def test_a_variable_of_another_dtype_is_named(kind, name):
    before = state()
    other = getattr(before, name).astype(np.float64)
    expect_error(
        f"{name} must be a variable of dtype float, but has dtype double",
        before._replace(**{name: other}),
        tf.constant(gradient(kind)),
        indices(kind),
        **{k: tf.constant(x) for k, x in steps.HYPER_PARAMETERS.items()},
    )


@all_ops
@pytest.mark.parametrize("use_resource", [True, False], ids=["resource", "ref"])
@pytest.mark.parametrize("position", range(5))
def test_an_uninitialized_variable_of_a_session_is_named(kind, use_resource, position):
    before = state()
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        variables = steps.make_variables(before, use_resource=use_resource)
        op = steps.apply(variables, tf.constant(gradient(kind)), indices(kind))
        session.run([x.initializer for i, x in enumerate(variables) if i != position])
        # TensorFlow itself refuses an uninitialized ref variable.
        message = (
            f"{before._fields[position]} is not initialized"
            if use_resource
            else "uninitialized value"
        )
        with pytest.raises(tf.errors.FailedPreconditionError, match=message):
            session.run(op)
        for i, variable in enumerate(variables):
            if i != position:
                np.testing.assert_array_equal(session.run(variable), before[i])


@pytest.mark.parametrize("use_resource", [True, False], ids=["resource", "ref"])
def test_shapes_known_only_in_the_session_are_checked_there(use_resource):
    before = state()
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        variables = steps.make_variables(before, use_resource=use_resource)
        grad = tf.compat.v1.placeholder(tf.float32)
        rows = tf.compat.v1.placeholder(tf.int64)
        lr = tf.compat.v1.placeholder(tf.float32)
        sparse = steps.apply(variables, grad, rows, lr=lr)
        dense = steps.apply(variables, grad, lr=lr)
        session.run(tf.compat.v1.global_variables_initializer())

        good = {grad: np.ones([2, 4]), rows: [5, 6], lr: 0.1}
        for op, bad, message in [
            (sparse, {rows: [5, ROWS]}, "indices[1] = 1000 is out of range"),
            (sparse, {rows: [[5, 6]]}, "indices must be a vector"),
            (sparse, {grad: np.ones([3, 4])}, "grad must have shape [2,4]"),
            (sparse, {lr: [0.1]}, "lr must be a scalar, but has shape [1]"),
            (dense, {}, "grad must have the shape of var, [1000,4]"),
        ]:
            with pytest.raises(
                tf.errors.InvalidArgumentError, match=re.escape(message)
            ):
                session.run(op, {**good, **bad})
            steps.assert_identical(type(before)(*session.run(variables)), before)
        session.run(sparse, good)


@all_ops
@pytest.mark.parametrize(
    ("first", "second"), [("var", "m"), ("m", "v"), ("beta1_power", "beta2_power")]
)
def test_one_variable_cannot_play_two_parts(kind, first, second):
    before = state()
    variables = steps.make_variables(before)
    names = list(before._fields)
    variables[names.index(second)] = variables[names.index(first)]
    with pytest.raises(tf.errors.InvalidArgumentError) as caught:
        steps.apply(variables, gradient(kind), indices(kind))
    assert "must be different variables, but are the same one" in caught.value.message
    assert re.search(rf"\b{first}\b.*\bmust", caught.value.message)
    assert re.search(rf"\b{second}\b.*\bmust", caught.value.message)


@all_ops
def test_integers_are_no_gradient(kind):
    variables = steps.make_variables(state())
    grad = tf.ones([ROWS if kind == "dense" else len(INDICES), 4], tf.int32)
    with pytest.raises((tf.errors.InvalidArgumentError, tf.errors.NotFoundError)):
        steps.apply(variables, grad, indices(kind))


def test_ref_ops_say_that_they_need_a_graph():
    variables = steps.make_variables(state())
    with pytest.raises(RuntimeError, match="does not support eager execution"):
        tfs.ops.apply_adam_async(*variables, 0.1, 0.9, 0.99, 1e-8, gradient("dense"))
