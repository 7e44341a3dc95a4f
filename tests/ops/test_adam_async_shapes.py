"""What the ops' shape functions infer and refuse when a graph is built."""

import re

import adam_async_steps as steps
import numpy as np
import pytest
import tensorflow as tf

all_ops = pytest.mark.parametrize("kind", ["dense", "sparse"])
variable_kinds = pytest.mark.parametrize(
    "use_resource", [True, False], ids=["resource", "ref"]
)
INDICES = [0, 4]


def build(kind, use_resource, grad=None, indices=None, replace=(), **options):
    """Builds one op in the current graph."""
    state = steps.random_state(1, [5, 3], tf.float32)._replace(**dict(replace))
    variables = steps.make_variables(state, use_resource=use_resource)
    if kind == "sparse":
        grad = np.ones([2, 3], np.float32) if grad is None else grad
        indices = INDICES if indices is None else indices
    else:
        grad = np.ones([5, 3], np.float32) if grad is None else grad
    return steps.apply(variables, grad, indices, **options)


@all_ops
def test_ref_ops_return_a_reference_of_vars_shape(kind):
    with tf.Graph().as_default():
        output = build(kind, use_resource=False)
        assert output.shape == [5, 3]
        assert output.dtype == tf.as_dtype("float32_ref")


@all_ops
def test_resource_ops_return_an_operation(kind):
    with tf.Graph().as_default():
        op = build(kind, use_resource=True)
        assert isinstance(op, tf.Operation)
        assert op.outputs == []


def test_the_returned_reference_is_read_after_the_step():
    state = steps.random_state(1, [5, 3], tf.float32)
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        variables = steps.make_variables(state, use_resource=False)
        output = tf.identity(steps.apply(variables, tf.ones([5, 3])))
        session.run(tf.compat.v1.global_variables_initializer())
        np.testing.assert_array_equal(session.run(output), session.run(variables[0]))
        assert np.all(session.run(variables[0]) != state.var)


def bad_shapes():
    """What is changed of valid inputs of an op, and the message about it."""

    def ones(*shape):
        return np.ones(shape, np.float32)

    for kind in ("dense", "sparse"):
        for slot in ("m", "v"):
            said = rf"{slot} must have shape \[5,3\].* but has shape \[5,4\]"
            yield kind, {"replace": {slot: ones(5, 4)}}, said
        for power in ("beta1_power", "beta2_power"):
            said = rf"{power} must have exactly one element, but has shape \[2\]"
            yield kind, {"replace": {power: ones(2)}}, said
        for name in ("lr", "beta1", "beta2", "epsilon"):
            said = rf"{name} must be a scalar, but has shape \[1\]"
            yield kind, {name: [0.5]}, said
    for kind, rows, shapes in (
        ("dense", 5, [(4, 3)]),
        ("sparse", 2, [(1, 3), (2, 4), (6,), (2, 3, 1)]),
    ):
        for shape in shapes:
            text = re.escape(str(list(shape)).replace(" ", ""))
            said = rf"grad must have shape \[{rows},3\].* but has shape {text}"
            yield kind, {"grad": ones(*shape)}, said
    said = r"indices must be a vector, but has shape \[1,2\]"
    yield "sparse", {"indices": [INDICES]}, said
    said = r"var must have at least rank 1 for a sparse gradient, but has shape \[\]"
    yield "sparse", {"replace": dict.fromkeys(("var", "m", "v"), ones())}, said


@variable_kinds
@pytest.mark.parametrize(("kind", "changed", "message"), list(bad_shapes()))
def test_shapes_that_do_not_fit_are_named(kind, use_resource, changed, message):
    with tf.Graph().as_default(), pytest.raises(ValueError, match=message):
        build(kind, use_resource, **changed)


@all_ops
@variable_kinds
def test_slots_of_another_width_are_refused(kind, use_resource):
    state = steps.random_state(1, [5, 3], tf.float64)
    replace = dict(zip(state._fields[1:], state[1:], strict=True))
    with tf.Graph().as_default():
        options = {
            name: tf.constant(value, tf.float64)
            for name, value in steps.HYPER_PARAMETERS.items()
        }
        with pytest.raises(
            ValueError, match="Tslot must be float for T = float, but is double"
        ):
            build(kind, use_resource, replace=replace, **options)


@all_ops
@variable_kinds
def test_unknown_shapes_are_left_to_the_kernel(kind, use_resource):
    with tf.Graph().as_default():
        unknown = tf.compat.v1.placeholder(tf.float32)
        indices = tf.compat.v1.placeholder(tf.int32)
        output = build(kind, use_resource, unknown, indices, lr=unknown)
        if not use_resource:
            assert output.shape == [5, 3]
