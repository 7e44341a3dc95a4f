"""AdamAsyncOptimizer in graphs and sessions against the float64 twin."""

import adam_async_reference as reference
import numpy as np
import pytest
import tensorflow as tf
import v1_models

import tf_syncrep as tfs

pytestmark = pytest.mark.usefixtures("device")

tf1 = tf.compat.v1

SLOTS = ("m", "v", "beta1_power", "beta2_power")
BETAS = {"beta1": 0.8, "beta2": 0.95}
STEPS = 5

variable_kinds = pytest.mark.parametrize("use_resource", [False, True])


def state_of(session, optimizer, variable):
    slots = [optimizer.get_slot(variable, name) for name in SLOTS]
    return reference.State(*session.run([variable, *slots]))


def train(kind, dtype, **options):
    """Returns the optimizer's state for each variable after STEPS steps."""
    with tf.Graph().as_default(), tf1.Session() as session:
        model = v1_models.Model(kind, dtype)
        optimizer = tfs.train.AdamAsyncOptimizer(0.05, **BETAS, epsilon=1e-6, **options)
        train_op = optimizer.minimize(model.loss)
        session.run(tf1.global_variables_initializer())
        for step in range(STEPS):
            session.run(train_op, model.feed(step))
        return [state_of(session, optimizer, x) for x in model.variables]


def train_twin(kind, dtype, use_nesterov=False, **rmsprop):
    """The same by the twin, one state for each part of the table."""
    options = {"lr": 0.05, **BETAS, "epsilon": 1e-6, "use_nesterov": use_nesterov}
    slices = v1_models.part_slices(kind)
    table = v1_models.TABLE.astype(dtype.as_numpy_dtype)
    parts = [reference.initial_state(table[part], *BETAS.values()) for part in slices]
    vector = v1_models.VECTOR.astype(dtype.as_numpy_dtype)
    vector = reference.initial_state(vector, *BETAS.values())
    for step in range(STEPS):
        rows, row_grads, vector_grad = v1_models.gradients(step)
        for i, part in enumerate(slices):
            inside = (rows >= part.start) & (rows < part.stop)
            parts[i] = reference.adam_async_sparse(
                *parts[i],
                **options,
                **rmsprop,
                grad=row_grads[inside],
                indices=rows[inside] - part.start,
            )
        vector_grad = vector_grad.astype(dtype.as_numpy_dtype)
        vector = reference.adam_async_dense(*vector, **options, grad=vector_grad)
    return [*parts, vector]


def assert_states_close(actual, expected, tolerance):
    for got, want in zip(actual, expected, strict=True):
        for name, x, y in zip(reference.State._fields, got, want, strict=True):
            np.testing.assert_allclose(
                np.asarray(x, np.float64),
                y,
                rtol=tolerance,
                atol=tolerance,
                err_msg=name,
            )


OPTIONS = {
    "nesterov": {"use_nesterov": True},
    "rmsprop": {"apply_sparse_rmsprop": True},
    "no_momentum": {"apply_sparse_rmsprop": True, "rmsprop_momentum": 0},
    "momentum": {"apply_sparse_rmsprop": True, "rmsprop_momentum": 0.25},
}


@pytest.mark.parametrize("kind", ["ref", "resource"])
@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_training_with_options_agrees_with_the_twin(kind, options):
    # These have no effect on the numbers.
    actual = train(kind, tf.float32, use_locking=True, **options)
    assert_states_close(actual, train_twin(kind, tf.float32, **options), 1e-5)


@pytest.mark.parametrize(
    ("kind", "dtype", "tolerance"),
    [
        *((kind, tf.float32, 1e-5) for kind in v1_models.KINDS),
        # Half and bfloat16 variables are rounded at each step.
        ("ref", tf.float16, 4e-3),
        ("resource", tf.float16, 4e-3),
        ("partitioned_ref", tf.bfloat16, 4e-2),
        ("resource", tf.bfloat16, 4e-2),
        ("ref", tf.float64, 1e-12),
        ("partitioned_resource", tf.float64, 1e-12),
    ],
)
def test_training_agrees_with_the_twin(kind, dtype, tolerance):
    actual = train(kind, dtype)
    assert_states_close(actual, train_twin(kind, dtype), tolerance)
    slot_dtype = np.float64 if dtype == tf.float64 else np.float32
    for state in actual:
        assert state.var.dtype == dtype.as_numpy_dtype
        assert {slot.dtype for slot in state[1:]} == {np.dtype(slot_dtype)}


def test_dense_training_equals_stock_adam():
    with tf.Graph().as_default(), tf1.Session() as session:
        start = np.linspace(-1, 1, 30).reshape(5, 6)
        grad = tf1.placeholder(tf.float32, [5, 6])
        ours, stock = [
            tf1.get_variable(name, initializer=tf.constant(start, tf.float32))
            for name in ("ours", "stock")
        ]
        arguments = {"learning_rate": 0.02, "beta1": 0.85, "beta2": 0.97}
        train_op = tf.group(
            tfs.train.AdamAsyncOptimizer(**arguments).apply_gradients([(grad, ours)]),
            tf1.train.AdamOptimizer(**arguments).apply_gradients([(grad, stock)]),
        )
        session.run(tf1.global_variables_initializer())
        for seed in range(100):
            value = np.random.default_rng(seed).standard_normal([5, 6])
            session.run(train_op, {grad: value})
        ours, stock = session.run([ours, stock])
    np.testing.assert_allclose(ours, stock, rtol=2e-5, atol=2e-6)
    assert np.max(np.abs(stock - start)) > 0.1


@pytest.mark.parametrize("kind", ["partitioned_ref", "resource"])
def test_sparse_gradients_reach_the_op_as_they_are(kind):
    """There is no Unique and no segment sum over the whole gradient."""
    with tf.Graph().as_default() as graph:
        model = v1_models.Model(kind)
        optimizer = tfs.train.AdamAsyncOptimizer(use_locking=True)
        gradients = optimizer.compute_gradients(model.loss)
        before = set(graph.get_operations())
        optimizer.apply_gradients(gradients)
        added = [op for op in graph.get_operations() if op not in before]
    types = [op.type for op in added]
    assert "Unique" not in types
    assert "UnsortedSegmentSum" not in types
    sparse_op = "SparseApplyAdamAsync"
    sparse_op = sparse_op if kind.endswith("ref") else "Resource" + sparse_op
    assert types.count(sparse_op) == len(v1_models.part_slices(kind))
    updates = [op for op in added if "ApplyAdamAsync" in op.type]
    assert all(op.get_attr("use_locking") for op in updates)


@variable_kinds
def test_constraints_are_kept_after_a_dense_update(use_resource):
    with tf.Graph().as_default(), tf1.Session() as session:
        variable = tf1.get_variable(
            "x",
            initializer=[0.5, 2.0],
            use_resource=use_resource,
            constraint=lambda x: tf.maximum(x, 0.0),
        )
        optimizer = tfs.train.AdamAsyncOptimizer(1.0)
        train_op = optimizer.apply_gradients([(tf.ones([2]), variable)])
        session.run(tf1.global_variables_initializer())
        session.run(train_op)
        np.testing.assert_allclose(session.run(variable), [0.0, 1.0], atol=1e-6)


@variable_kinds
def test_a_variable_whose_shape_is_known_when_it_runs_trains(use_resource):
    for dtype in (tf.float32, tf.float16):
        with tf.Graph().as_default(), tf1.Session() as session:
            value = tf1.placeholder_with_default(tf.ones([2, 3], dtype), None)
            variable = tf1.Variable(
                value, validate_shape=False, use_resource=use_resource
            )
            grad = tf1.placeholder_with_default(tf.ones([2, 3], dtype), None)
            optimizer = tfs.train.AdamAsyncOptimizer(0.25)
            train_op = optimizer.apply_gradients([(grad, variable)])
            session.run(tf1.global_variables_initializer())
            session.run(train_op)
            np.testing.assert_allclose(
                session.run(variable), np.full([2, 3], 0.75), rtol=1e-3
            )


def test_variables_without_gradients_are_left_alone():
    with tf.Graph().as_default(), tf1.Session() as session:
        used = tf1.get_variable("used", [2])
        unused = tf1.get_variable("unused", initializer=[1.0])
        optimizer = tfs.train.AdamAsyncOptimizer(0.1)
        train_op = optimizer.apply_gradients([(tf.ones([2]), used), (None, unused)])
        assert optimizer.get_slot(unused, "m") is None
        session.run(tf1.global_variables_initializer())
        session.run(train_op)
        assert session.run(unused) == [1.0]
