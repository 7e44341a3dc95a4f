"""The v1 optimizers compared with their twins, and with TensorFlow's classes."""

import itertools
import re

import numpy as np
import pytest
import tensorflow as tf
import v1_models
import v1_optimizers
from combinations import thinned
from v1_optimizers import CASES, TOLERANCES, close, rate_of

import tf_syncrep as tfs

tf1 = tf.compat.v1

each_case = pytest.mark.parametrize("name", CASES)
each_kind = pytest.mark.parametrize("use_resource", [False, True], ids=["ref", "res"])


def assert_trains_like_the_twin(case, kind, dtype, **options):
    """Compares all variables, under their names in checkpoints, and their dtypes."""
    expected = v1_optimizers.by_twin(case, kind, dtype)
    actual = v1_optimizers.in_session(
        kind, dtype, lambda rate: case.make(rate, **options)
    )
    assert actual.keys() == expected.keys()
    slot_dtype = tf.float64 if dtype == tf.float64 else tf.float32
    for variable, value in actual.items():
        close(value, expected[variable], TOLERANCES[dtype])
        is_slot = variable.split("/")[-1] in {suffix for *_, suffix in case.slots}
        wanted = slot_dtype if is_slot else dtype
        assert value.dtype == wanted.as_numpy_dtype, variable


@thinned(
    "name, how",
    CASES,
    itertools.product(v1_models.KINDS, (tf.float32, tf.float16, tf.float64)),
)
def test_training_agrees_with_the_twin(case, how):
    assert_trains_like_the_twin(case, *how)


@each_case
def test_bfloat16_agrees_with_the_twin(case):
    assert_trains_like_the_twin(case, "resource", tf.bfloat16)


OPTIONS = {
    "nesterov": {"use_nesterov": True},
    "rmsprop": {"apply_sparse_rmsprop": True},
    "no_momentum": {"apply_sparse_rmsprop": True, "rmsprop_momentum": 0},
    "momentum": {"apply_sparse_rmsprop": True, "rmsprop_momentum": 0.25},
}


@pytest.mark.usefixtures("device")
@pytest.mark.parametrize("kind", ["ref", "resource"])
@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_adam_async_with_options_agrees_with_the_twin(kind, options):
    case = v1_optimizers.AdamAsync(**options)
    # Locking has no effect on the numbers.
    assert_trains_like_the_twin(case, kind, tf.float32, use_locking=True)


@each_case
def test_dense_training_is_bit_near_that_of_the_class_of_tensorflow(case):
    start = np.linspace(-1, 1, 30).reshape(5, 6)
    with tf.Graph().as_default(), tf1.Session() as session:
        grad, rate = tf1.placeholder(tf.float64, [5, 6]), tf1.placeholder(tf.float64)
        rate.set_shape([])
        pair = [
            tf1.get_variable(x, initializer=tf.constant(start)) for x in ("ours", "tf")
        ]
        optimizers = case.make(rate), case.make_theirs(rate)
        train_op = [
            optimizer.apply_gradients([(grad, x)])
            for optimizer, x in zip(optimizers, pair, strict=True)
        ]
        session.run(tf1.global_variables_initializer())
        for step in range(100):
            value = np.random.default_rng(step).standard_normal([5, 6])
            session.run(train_op, {grad: value, rate: 1 / (1 + step)})
        ours, theirs = session.run(pair)
    # TensorFlow's Adam has its powers in float32.
    close(ours, theirs, 1e-7 if case is CASES["adam_async"] else 1e-12)
    assert np.max(np.abs(theirs - start)) > 0.1


@pytest.mark.eager
@each_case
@pytest.mark.parametrize("in_function", [False, True], ids=["eager", "function"])
def test_minimize_of_a_loss_function_agrees_with_the_twin(in_function, case):
    table = tf.Variable(v1_models.TABLE)
    rate = tf.Variable(0.0, dtype=tf.float64)
    optimizer = case.make(lambda: rate)

    def train(rows, row_grads):
        optimizer.minimize(
            lambda: tf.reduce_sum(tf.gather(table, rows) * row_grads), var_list=[table]
        )

    step_of = tf.function(train) if in_function else train
    state = case.start(v1_models.TABLE)
    for step in range(3):
        rows, row_grads, _ = v1_models.gradients(step)
        rate.assign(rate_of(step))
        step_of(tf.constant(rows), tf.constant(row_grads))
        state = case.apply(state, row_grads, rows, rate_of(step))
    close(table.numpy(), state[0], 1e-12)


@each_case
@pytest.mark.parametrize("kind", ["partitioned_ref", "resource"])
def test_sparse_gradients_reach_the_op_as_they_are(kind, case):
    """There is no Unique and no segment sum over the whole gradient."""
    with tf.Graph().as_default() as graph:
        model = v1_models.Model(kind)
        optimizer = case.make(use_locking=True)
        gradients = optimizer.compute_gradients(model.loss)
        before = set(graph.get_operations())
        optimizer.apply_gradients(gradients)
        added = [op for op in graph.get_operations() if op not in before]
    types = [op.type for op in added]
    assert "Unique" not in types
    assert "UnsortedSegmentSum" not in types
    sparse_op = case.sparse_op.format("" if kind.endswith("ref") else "Resource")
    updates = [op for op in added if op.type == sparse_op]
    assert len(updates) == len(v1_models.part_slices(kind))
    assert all(op.get_attr("use_locking") for op in updates)


@each_case
@each_kind
@pytest.mark.parametrize("dtype", [tf.float64, tf.float16], ids=lambda x: x.name)
def test_variables_whose_shape_is_known_when_they_run_train(dtype, use_resource, case):
    with tf.Graph().as_default(), tf1.Session() as session:
        start = tf1.placeholder_with_default(tf.ones([2, 3], dtype), None)
        variable = tf1.Variable(start, validate_shape=False, use_resource=use_resource)
        grad = tf1.placeholder_with_default(tf.ones([2, 3], dtype), None)
        train_op = case.make().apply_gradients([(grad, variable)])
        session.run(tf1.global_variables_initializer())
        session.run(train_op)
        expected, _ = case.apply(case.start(np.ones([2, 3])), np.ones([2, 3]))
        close(session.run(variable), expected, TOLERANCES[dtype])


@each_case
def test_rows_of_a_partitioned_lookup_are_trained(case):
    with tf.Graph().as_default(), tf1.Session() as session:
        table = tf1.get_variable(
            "table",
            v1_models.TABLE.shape,
            initializer=v1_models.initializer_of(v1_models.TABLE),
            partitioner=tf1.fixed_size_partitioner(3),
            use_resource=True,
        )
        vectors = tfs.train.embedding_lookup(
            table, [[1, 2], [2, 8]], combiner="mean", transfer_dtype="bfloat16"
        )
        train_op = case.make().minimize(tf.reduce_sum(vectors))
        session.run(tf1.global_variables_initializer())
        session.run(train_op)
        actual = np.concatenate(session.run(list(table)))
    state = case.start(v1_models.TABLE)
    expected, _ = case.apply(state, np.full([4, 4], 0.5), [1, 2, 2, 8])
    close(actual, expected, TOLERANCES[tf.float32])


@pytest.mark.usefixtures("device")
@each_kind
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


def test_slots_have_the_names_that_were_asked_for():
    with tf.Graph().as_default():
        x = tf1.get_variable("x", [2])
        for optimizer in (
            tfs.train.FtrlOptimizer(0.1, accum_name="n", linear_name="z"),
            tfs.train.FtrlOptimizer(0.1, name="Wide"),
            tfs.train.AdagradOptimizer(0.1, name="Deep"),
            tfs.train.AdamAsyncOptimizer(0.1, name="Fast"),
        ):
            optimizer.apply_gradients([(tf.ones([2]), x)])
        names = [x.op.name for x in tf1.global_variables()]
        assert tf1.trainable_variables() == [x]
    of_adam = ["x/Fast", "x/Fast_1", "x/Fast_2", "x/Fast_3"]
    assert names == ["x", "x/n", "x/z", "x/Wide", "x/Wide_1", "x/Deep", *of_adam]


def test_ftrl_with_a_rate_that_falls_below_zero_says_so():
    with tf.Graph().as_default(), tf1.Session() as session:
        x = tf1.get_variable("x", initializer=[1.0])
        rate = tf1.placeholder_with_default(-0.5, [])
        optimizer = tfs.train.FtrlOptimizer(rate)
        train_op = optimizer.apply_gradients([(tf.ones([1]), x)])
        session.run(tf1.global_variables_initializer())
        message = "lr of rule ftrl must be at least 0, but is -0.5"
        with pytest.raises(tf.errors.InvalidArgumentError, match=message):
            session.run(train_op)
        session.run(train_op, {rate: 0.0})
        assert session.run(x) == [1.0]


NOT_NEGATIVE = "in the range [0, inf)"
BELOW_1 = "in the range [0, 1)"


@pytest.mark.parametrize(
    ("optimizer", "argument", "value", "rule"),
    [
        ("AdamAsync", "beta1", 1.5, BELOW_1),
        ("AdamAsync", "beta1", 1, BELOW_1),
        ("AdamAsync", "beta2", -0.1, BELOW_1),
        ("AdamAsync", "beta2", np.float32(2), BELOW_1),
        ("AdamAsync", "epsilon", -1e-8, NOT_NEGATIVE),
        ("AdamAsync", "learning_rate", -0.1, NOT_NEGATIVE),
        ("AdamAsync", "learning_rate", float("nan"), NOT_NEGATIVE),
        ("AdamAsync", "learning_rate", float("inf"), NOT_NEGATIVE),
        ("AdamAsync", "rmsprop_momentum", 1.0, BELOW_1),
        ("AdamAsync", "rmsprop_momentum", -1.0, BELOW_1),
        ("GradientDescent", "learning_rate", -0.5, NOT_NEGATIVE),
        ("Momentum", "momentum", float("nan"), NOT_NEGATIVE),
        ("Adagrad", "initial_accumulator_value", 0, "a finite number above 0"),
        ("Ftrl", "learning_rate", -0.5, NOT_NEGATIVE),
        ("Ftrl", "learning_rate_power", 0.5, "a finite number of at most 0"),
        ("Ftrl", "learning_rate_power", "fast", "a finite number of at most 0"),
        ("Ftrl", "initial_accumulator_value", -1, NOT_NEGATIVE),
        ("Ftrl", "l1_regularization_strength", -1, NOT_NEGATIVE),
        ("Ftrl", "l2_regularization_strength", -1, NOT_NEGATIVE),
        ("Ftrl", "l2_shrinkage_regularization_strength", -1, NOT_NEGATIVE),
        ("Ftrl", "beta", -1, NOT_NEGATIVE),
    ],
)
def test_numbers_out_of_range_are_refused(optimizer, argument, value, rule):
    shown = repr(value) if isinstance(value, str) else value
    message = f"`{argument}` must be {rule}. Received: {argument}={shown}"
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        getattr(tfs.train, f"{optimizer}Optimizer")(
            **{"learning_rate": 0.1, argument: value}
        )


@each_case
def test_an_empty_name_is_refused(case):
    with pytest.raises(ValueError, match=r"^Must specify the optimizer name$"):
        case.make(name="")


@each_case
def test_a_learning_rate_of_another_kind_is_refused(case):
    with pytest.raises(TypeError, match="learning_rate must be a number, a scalar"):
        case.make("fast")
    with pytest.raises(
        ValueError, match=r"learning_rate must be a scalar\. Received: "
    ):
        case.make(tf.ones([2]))
