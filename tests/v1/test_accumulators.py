"""The drop-in accumulators: TensorFlow's behaviour, corrected where it is wrong.

Scenarios in which TensorFlow's classes are right run on both. In the others, each
test's docstring tells what TensorFlow 2.21's classes do when the same lines run on
them. TensorFlow's have no GPU kernels, so on a GPU only ours are tested.
"""

import gc
import weakref

import devices
import numpy as np
import pytest
import signatures
import tensorflow as tf

import tf_syncrep as tfs

v1 = tf.compat.v1

DENSE = {"stock": v1.ConditionalAccumulator, "ours": tfs.train.ConditionalAccumulator}
SPARSE = {
    "stock": v1.SparseConditionalAccumulator,
    "ours": tfs.train.SparseConditionalAccumulator,
}
dense_classes = pytest.mark.parametrize("make", DENSE.values(), ids=DENSE)
sparse_classes = pytest.mark.parametrize("make", SPARSE.values(), ids=SPARSE)
all_classes = pytest.mark.parametrize(
    "make",
    [*DENSE.values(), *SPARSE.values()],
    ids=[f"{k}-{n}" for k in ("dense", "sparse") for n in DENSE],
)
our_classes = pytest.mark.parametrize(
    "make", [DENSE["ours"], SPARSE["ours"]], ids=["dense", "sparse"]
)

InvalidArgument = tf.errors.InvalidArgumentError


@pytest.fixture(autouse=True)
def on_a_device(request, on_device):
    """Runs our accumulators on each device, and TensorFlow's only on the CPU."""
    params = request.node.callspec.params if hasattr(request.node, "callspec") else {}
    stock = (DENSE["stock"], SPARSE["stock"])
    if on_device == "GPU" and params.get("make") in stock:
        pytest.skip("TensorFlow's accumulators have no GPU kernels")


@pytest.fixture
def session(device):
    config = v1.ConfigProto(allow_soft_placement=True)  # for ops that are not ours
    with tf.Graph().as_default(), devices.scope(), v1.Session(config=config) as session:
        yield session


def is_sparse(accumulator):
    return hasattr(accumulator, "apply_indexed_slices_grad")


def apply(accumulator, value, **options):
    """Offers a gradient of shape [2, 2] filled with `value`."""
    gradient = np.full([2, 2], value, np.float32)
    if is_sparse(accumulator):
        return accumulator.apply_grad([0, 1], gradient, **options)
    return accumulator.apply_grad(gradient, **options)


def values_of(taken):
    return taken.values if hasattr(taken, "values") else taken


# Behaviour of both.


@pytest.mark.parametrize("classes", [DENSE, SPARSE], ids=["dense", "sparse"])
def test_constructor_and_methods_take_the_arguments_of_tensorflows_class(classes):
    methods = signatures.assert_takes_the_arguments_of(
        classes["stock"], classes["ours"]
    )
    assert {"__init__", "apply_grad", "take_grad", "set_global_step"} <= set(methods)


@all_classes
def test_reductions_and_counts(make, session):
    for options, expected in [({}, 3.0), ({"reduction_type": "SUM"}, 6.0)]:
        accumulator = make(tf.float32, shape=[2, 2], **options)
        take, held = accumulator.take_grad(2), accumulator.num_accumulated()
        assert session.run(held) == 0
        for value in [1.0, 5.0]:
            session.run(apply(accumulator, value))
        assert session.run(held) == 2
        taken = values_of(session.run(take))
        np.testing.assert_array_equal(taken, np.full([2, 2], expected))
        assert session.run(held) == 0


@all_classes
def test_stale_gradients_are_dropped(make, session):
    accumulator = make(tf.float32, shape=[2, 2])
    step = v1.placeholder(tf.int64, [])
    push, take = apply(accumulator, 1.0, local_step=step), accumulator.take_grad(1)
    held = accumulator.num_accumulated()
    session.run(accumulator.set_global_step(5))
    session.run(accumulator.set_global_step(3))  # it may be set back
    for local_step, expected in [(2, 0), (3, 1), (4, 2), (0, 2)]:
        session.run(push, {step: local_step})
        assert session.run(held) == expected
    session.run(take)  # and the step is 4
    session.run(push, {step: 3})
    assert session.run(held) == 0
    session.run(push, {step: 4})
    assert session.run(held) == 1


@sparse_classes
def test_mean_divides_each_row_by_the_gradients_that_had_it(make, session):
    """The default of both does not divide a row that 1 of 4 workers sent by 4."""
    accumulator = make(tf.float32, shape=[5, 1])
    for indices in (
        np.array([0, 1], np.int32),
        np.array([1, 4], np.int64),
        np.array([1], np.uint8),
        [1],
    ):
        values = np.full([len(indices), 1], 8.0, np.float32)
        shape, step = np.array([5, 1], np.asarray(indices).dtype), np.int32(0)
        session.run(accumulator.apply_grad(indices, values, shape, step))
    taken = session.run(accumulator.take_grad(4))
    np.testing.assert_array_equal(taken.indices, [0, 1, 4])
    np.testing.assert_array_equal(taken.values, [[8.0], [8.0], [8.0]])


@all_classes
def test_properties(make):
    with tf.Graph().as_default():
        with v1.name_scope("scope"):
            accumulator = make(tf.float32, shape=[2, 2], name="gradients")
        assert accumulator.name == "gradients"
        assert accumulator.dtype == tf.float32
        assert accumulator.accumulator_ref.op.name == "scope/gradients"
        assert isinstance(accumulator, v1.ConditionalAccumulatorBase)
        default = make(tf.float32)
        sparse = "sparse_" if is_sparse(default) else ""
        assert default.name == f"{sparse}conditional_accumulator"
        held = default.num_accumulated()
        assert held.op.name == f"{default.name}_NumAccumulated"
        assert held.dtype == tf.int32
        for op in (apply(default, 1.0, name="push"), default.set_global_step(1)):
            assert isinstance(op, tf.Operation)
        taken = default.take_grad(1, name="take")
        assert values_of(taken).op.name == "take"
        if not is_sparse(default):
            assert taken.shape.rank is None
            shaped = make(tf.float32, [None, 3]).take_grad(1)
            assert shaped.shape.as_list() == [None, 3]


@sparse_classes
def test_the_taken_slices_have_the_accumulators_shape(make, session):
    for shape, expected in [
        ([7, 2], [7, 2]),
        ([None, None], [-1, 2]),
        (None, [-1, 2]),
        ([], [-1, 2]),
    ]:
        accumulator = make(tf.float32, shape=shape)
        slices = tf.IndexedSlices(tf.ones([1, 2]), [3])
        session.run(accumulator.apply_indexed_slices_grad(slices))
        taken = session.run(accumulator.take_indexed_slices_grad(1))
        np.testing.assert_array_equal(taken.dense_shape, expected)
        np.testing.assert_array_equal(taken.indices, [3])
        np.testing.assert_array_equal(taken.values, np.ones([1, 2]))


@all_classes
def test_errors_of_numbers(make, session):
    accumulator = make(tf.float32, shape=[2, 2])
    for number in [0, -1]:
        with pytest.raises(
            InvalidArgument,
            match=f"Argument num_required must be positive, but was {number}",
        ):
            session.run(accumulator.take_grad(number))


@all_classes
def test_an_unknown_reduction_type_is_an_error(make):
    allowed = '"MEAN", "SUM"'
    if make is SPARSE["ours"]:
        allowed += ', "CMEAN"'
    with tf.Graph().as_default():
        op = make(tf.float32).accumulator_ref.op.type
        with pytest.raises(ValueError, match="reduction_type") as caught:
            make(tf.float32, reduction_type="Invalid")
    assert str(caught.value) == (
        f"Attr 'reduction_type' of '{op}' Op passed string 'Invalid' not in: {allowed}."
    )


@dense_classes
def test_errors_of_dense_shapes(make, session):
    with pytest.raises(
        ValueError, match=r"Shapes \(3,\) and \(2, 2\) are incompatible"
    ):
        make(tf.float32, shape=[2, 2]).apply_grad(tf.ones([3]))
    gradient = v1.placeholder(tf.float32)
    accumulator = make(tf.float32, shape=[2, None])
    push = accumulator.apply_grad(gradient)
    with pytest.raises(
        InvalidArgument, match=r"Shape mismatch: expected \[2,\?\], got \[3,2\]"
    ):
        session.run(push, {gradient: np.ones([3, 2])})
    session.run(push, {gradient: np.ones([2, 3])})
    with pytest.raises(
        InvalidArgument, match=r"Shape mismatch: expected \[2,3\], got \[2,5\]"
    ):
        session.run(push, {gradient: np.ones([2, 5])})
    assert session.run(accumulator.num_accumulated()) == 1
    session.run(accumulator.take_grad(1))
    session.run(accumulator.set_global_step(0))
    session.run(push, {gradient: np.ones([2, 5])})


@sparse_classes
@pytest.mark.parametrize(
    ("indices", "values", "shape", "message"),
    [
        ([[0, 1]], np.ones([1, 2]), None, "Input indices should be vector but"),
        ([0], np.ones([]), None, "Values cannot be 0-dimensional."),
        ([0, 1], np.ones([1, 2]), None, "Expected 2 non-empty input values, got 1"),
        ([0], np.ones([1, 2]), [3], "expected shape rank at least 2, got 1"),
        ([0], np.ones([1, 2]), [4, 2], "expected shape dim 0 to be 3, got 4"),
        ([0], np.ones([1, 2]), [3, 5], "expected shape dim 1 to be 2, got 5"),
        ([0], np.ones([1]), None, "expected values rank at least 2, got 1"),
        ([0], np.ones([1, 5]), None, "expected values dim 1 to be 2, got 5"),
        (
            [0, 3],
            np.ones([2, 2]),
            None,
            "index of slice 1 exceeded limits of shape; index is 3 exceeded 3",
        ),
    ],
)
def test_errors_of_sparse_gradients(make, indices, values, shape, message, session):
    accumulator = make(tf.float32, shape=[3, 2])
    slices = tf.IndexedSlices(values.astype(np.float32), indices, shape)
    push = accumulator.apply_indexed_slices_grad(slices)
    with pytest.raises(InvalidArgument) as caught:
        session.run(push)
    assert message in caught.value.message
    assert session.run(accumulator.num_accumulated()) == 0


@sparse_classes
def test_errors_of_rows_that_differ_from_those_held(make, session):
    accumulator = make(tf.float32)
    session.run(accumulator.apply_grad([0], tf.ones([1, 2, 3])))
    for rows, message in [
        (tf.ones([1, 2]), "Shape mismatch: expected values rank 3, got 2"),
        (tf.ones([1, 2, 4]), "Shape mismatch: expected values dim 2 to be 3, got 4"),
        (tf.ones([1, 1, 3]), "Shape mismatch: expected values dim 1 to be 2, got 1"),
    ]:
        with pytest.raises(InvalidArgument, match=message):
            session.run(accumulator.apply_grad([0], rows))
    assert session.run(accumulator.num_accumulated()) == 1


# Behaviour in which TensorFlow's are wrong. Most of it is tested on the ops.


@pytest.mark.parametrize(
    ("accumulators", "rows", "gradients", "message"),
    [
        ([9, 1], [0, -3], None, "index of slice 1 must not be negative; index is -3"),
        (None, [0, -3], None, "index of slice 1 must not be negative; index is -3"),
        (None, [0, 5], [5, 1], "index is 5 exceeded 5"),
    ],
)
def test_rows_out_of_any_shape_are_an_error(
    accumulators, rows, gradients, message, session
):
    """TensorFlow accepts negative ones, and also those that only the shape excludes."""
    accumulator = SPARSE["ours"](tf.float32, accumulators)
    with pytest.raises(InvalidArgument, match=message):
        session.run(accumulator.apply_grad(rows, [[4.0], [4.0]], gradients))
    assert session.run(accumulator.num_accumulated()) == 0


# Eager execution and functions.


@pytest.mark.eager
@our_classes
def test_all_methods_work_eagerly_and_in_a_function(make):
    """TensorFlow's sparse class raises RuntimeError: Arg 'handle' is a ref."""
    accumulator = make(tf.float32, shape=[2, 2], name="eager")
    other = make(tf.float32, shape=[2, 2])
    assert accumulator.name == "eager"

    def train(step):
        result = accumulator.set_global_step(step)
        for value in [1.0, 5.0]:
            apply(accumulator, value, local_step=step)
        dropped = apply(accumulator, 100.0, local_step=step - 1)
        if tf.executing_eagerly():
            assert (result, dropped) == (None, None)
        held = accumulator.num_accumulated()
        return held, values_of(accumulator.take_grad(2)), accumulator.stats()

    for step, run in enumerate([train, train, tf.function(train), tf.function(train)]):
        held, taken, counts = run(tf.Variable(step))
        assert int(held) == 2
        np.testing.assert_array_equal(taken, np.full([2, 2], 3.0))
        assert int(counts.stale) == step + 1
    assert int(other.stats().pushed) == 0


@pytest.mark.eager
@our_classes
def test_eager_accumulators_of_one_shared_name_are_one(make):
    first, second = (make(tf.float32, [2, 2], shared_name=f"{make}") for _ in "12")
    apply(first, 1.0)
    assert int(second.num_accumulated()) == 1


@pytest.mark.eager
def test_a_function_keeps_its_accumulator():
    def build():
        accumulator = DENSE["ours"](tf.float32, shape=[2, 2])

        @tf.function(input_signature=[tf.TensorSpec([2, 2])])
        def train(gradient):
            accumulator.apply_grad(gradient, local_step=1 << 40)
            return accumulator.num_accumulated()

        return train.get_concrete_function(), weakref.ref(accumulator)

    train, accumulator = build()
    gc.collect()
    assert [int(train(tf.ones([2, 2]))) for _ in range(3)] == [1, 2, 3]
    del accumulator
