"""The drop-in accumulators: TensorFlow's behaviour, and where it is wrong, the right.

Scenarios in which TensorFlow's classes are right run on both. What TensorFlow 2.21's
do in the others was seen by running the same lines on them, and is told in the
test's docstring. TensorFlow's have no GPU kernels, so on a GPU only ours are tested.
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

InvalidArgument = tf.errors.InvalidArgumentError


@pytest.fixture(autouse=True)
def on_a_device(request, on_device):
    """Puts our accumulators on each device, TensorFlow's on the CPU alone."""
    params = request.node.callspec.params if hasattr(request.node, "callspec") else {}
    stock = (DENSE["stock"], SPARSE["stock"])
    if on_device == "GPU" and params.get("make") in stock:
        pytest.skip("TensorFlow's accumulators have no GPU kernels")


@pytest.fixture
def session(device):
    config = v1.ConfigProto(allow_soft_placement=True)  # of what is not ours
    with tf.Graph().as_default(), devices.scope(), v1.Session(config=config) as session:
        yield session


def test_what_is_taken_is_on_the_device_of_the_test(on_device):
    for accumulator in (c["ours"](tf.float32, [2, 2]) for c in (DENSE, SPARSE)):
        apply(accumulator, 1.0)
        taken = values_of(accumulator.take_grad(1))
        place = tf.DeviceSpec.from_string(taken.backing_device)
        assert place.device_type == on_device


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


# What both do.


@pytest.mark.parametrize("classes", [DENSE, SPARSE], ids=["dense", "sparse"])
def test_constructor_and_methods_take_the_arguments_of_tensorflows_class(classes):
    methods = signatures.assert_takes_the_arguments_of(
        classes["stock"], classes["ours"]
    )
    assert {"__init__", "apply_grad", "take_grad", "set_global_step"} <= set(methods)


@all_classes
def test_mean_and_counts_in_a_session(make, session):
    accumulator = make(tf.float32, shape=[2, 2])
    take, held = accumulator.take_grad(2), accumulator.num_accumulated()
    assert session.run(held) == 0
    for value in [1.0, 5.0]:
        session.run(apply(accumulator, value))
    assert session.run(held) == 2
    np.testing.assert_array_equal(values_of(session.run(take)), np.full([2, 2], 3.0))
    assert session.run(held) == 0


@all_classes
def test_sum_in_a_session(make, session):
    accumulator = make(tf.float32, shape=[2, 2], reduction_type="SUM")
    for value in [1.0, 5.0]:
        session.run(apply(accumulator, value))
    taken = session.run(accumulator.take_grad(1))
    np.testing.assert_array_equal(values_of(taken), np.full([2, 2], 6.0))


@all_classes
def test_stale_gradients_are_dropped(make, session):
    accumulator = make(tf.float32, shape=[2, 2])
    step = v1.placeholder(tf.int64, [])
    push, take = apply(accumulator, 1.0, local_step=step), accumulator.take_grad(1)
    held = accumulator.num_accumulated()
    session.run(accumulator.set_global_step(3))
    for local_step, expected in [(2, 0), (3, 1), (4, 2), (0, 2)]:
        session.run(push, {step: local_step})
        assert session.run(held) == expected
    session.run(take)  # and the step is 4
    session.run(push, {step: 3})
    assert session.run(held) == 0
    session.run(push, {step: 4})
    assert session.run(held) == 1


@all_classes
def test_the_step_may_be_set_back(make, session):
    accumulator = make(tf.float32, shape=[2, 2])
    session.run(accumulator.set_global_step(5))
    session.run(accumulator.set_global_step(2))
    session.run(apply(accumulator, 1.0, local_step=2))
    assert session.run(accumulator.num_accumulated()) == 1


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


@dense_classes
def test_the_taken_shape_is_the_accumulators(make):
    with tf.Graph().as_default():
        assert make(tf.float32, [None, 3]).take_grad(1).shape.as_list() == [None, 3]
        assert make(tf.float32).take_grad(1).shape.rank is None


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


@sparse_classes
def test_mean_divides_each_row_by_the_gradients_that_had_it(make, session):
    """A row that 1 of 4 workers sent is not divided by 4: the default of both."""
    accumulator = make(tf.float32, shape=[5, 1])
    for indices in [[0, 1], [1, 4], [1], [1]]:
        values = np.full([len(indices), 1], 8.0, np.float32)
        session.run(accumulator.apply_grad(indices, values))
    taken = session.run(accumulator.take_grad(4))
    np.testing.assert_array_equal(taken.indices, [0, 1, 4])
    np.testing.assert_array_equal(taken.values, [[8.0], [8.0], [8.0]])


@all_classes
def test_sessions_of_one_server_share_a_name(make):
    server = v1.train.Server.create_local_server()

    def build():
        with tf.Graph().as_default() as graph, devices.scope():
            accumulator = make(tf.float32, [2, 2], shared_name=f"shared{make}")
            ops = (
                apply(accumulator, 3.0),
                accumulator.num_accumulated(),
                accumulator.take_grad(1),
            )
        return graph, ops

    graph, (push, _, _) = build()
    with v1.Session(server.target, graph=graph) as session:
        session.run(push)
    graph, (_, held, take) = build()
    with v1.Session(server.target, graph=graph) as session:
        assert session.run(held) == 1
        session.run(take)


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
        (
            [[0, 1]],
            np.ones([1, 2]),
            None,
            "Input indices should be vector but",
        ),
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
    push = accumulator.apply_grad(indices, values.astype(np.float32), shape)
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


@sparse_classes
def test_indices_and_shapes_of_other_integers(make, session):
    accumulator = make(tf.float32, shape=[3, 1])
    for dtype in (np.int32, np.int64, np.uint8):
        indices, shape = np.array([2], dtype), np.array([3, 1], dtype)
        rows = np.ones([1, 1], np.float32)
        step = np.int32(0)
        session.run(accumulator.apply_grad(indices, rows, shape, step))
    taken = session.run(accumulator.take_grad(3))
    np.testing.assert_array_equal(taken.indices, [2])


# Where TensorFlow's are wrong.


@pytest.mark.parametrize("make", [DENSE["ours"], SPARSE["ours"]])
@pytest.mark.parametrize("argument", ["local_step", "num_required"])
def test_an_argument_that_is_not_a_scalar_is_an_error(make, argument, session):
    """TensorFlow's process ends with SIGABRT (CHECK failure in Tensor::scalar)."""
    accumulator = make(tf.float32, shape=[2, 2])
    if argument == "local_step":
        fed = v1.placeholder(tf.int64)
        op = apply(accumulator, 1.0, local_step=fed)
    else:
        fed = v1.placeholder(tf.int32)
        op = accumulator.take_grad(fed)
    with pytest.raises(
        InvalidArgument, match=rf"Argument {argument} must be scalar, but had .* \[2\]"
    ):
        session.run(op, {fed: [1, 2]})
    step = v1.placeholder(tf.int64)
    with pytest.raises(InvalidArgument, match="new_global_step must be a scalar"):
        session.run(accumulator.set_global_step(step), {step: [1, 2]})
    assert session.run(accumulator.num_accumulated()) == 0


@pytest.mark.parametrize("make", [DENSE["ours"], SPARSE["ours"]])
def test_a_shared_name_of_another_dtype_or_shape_is_an_error(make, session):
    """TensorFlow's process ends with SIGABRT (dtype, at a push), SIGSEGV (at a take).

    Another shape is ignored.
    """
    session.run(make(tf.float32, [2, 2], shared_name="used").num_accumulated())
    for other in [
        make(tf.float64, [2, 2], shared_name="used"),
        make(tf.float32, [3, 2], shared_name="used"),
    ]:
        with pytest.raises(InvalidArgument, match="The accumulator used exists with"):
            session.run(other.num_accumulated())


def test_counted_mean_divides_by_all_gradients(session):
    """TensorFlow has no such mean: 4 workers' rows keep their full size (8.0)."""
    accumulator = SPARSE["ours"](tf.float32, [4, 1], reduction_type="CMEAN")
    for row in range(4):
        session.run(accumulator.apply_grad([row], [[8.0]]))
    taken = session.run(accumulator.take_grad(4))
    np.testing.assert_array_equal(taken.values, np.full([4, 1], 2.0))
    with pytest.raises(ValueError, match="CMEAN"):
        DENSE["ours"](tf.float32, reduction_type="CMEAN")


def test_rows_may_repeat(session):
    """TensorFlow returns rows 1, 1, 4 with 5.5, 2, 6.5."""
    accumulator = SPARSE["ours"](tf.float32, [9, 1])
    session.run(accumulator.apply_grad([1, 1, 4], [[1.0], [2.0], [3.0]]))
    session.run(accumulator.apply_grad([1, 4], [[10.0], [10.0]]))
    taken = session.run(accumulator.take_grad(1))
    np.testing.assert_array_equal(taken.indices, [1, 4])
    np.testing.assert_array_equal(taken.values, [[6.5], [6.5]])


def test_rows_may_come_in_any_order(session):
    """TensorFlow returns rows 1, 4, 1 with 10, 44, 1."""
    accumulator = SPARSE["ours"](tf.float32, [9, 1], reduction_type="SUM")
    session.run(accumulator.apply_grad([4, 1], [[4.0], [1.0]]))
    session.run(accumulator.apply_grad([1, 4], [[10.0], [40.0]]))
    taken = session.run(accumulator.take_grad(1))
    np.testing.assert_array_equal(taken.indices, [1, 4])
    np.testing.assert_array_equal(taken.values, [[11.0], [44.0]])


@pytest.mark.parametrize("shape", [[9, 1], None])
def test_negative_rows_are_an_error(shape, session):
    """TensorFlow accepts them and returns row -3."""
    accumulator = SPARSE["ours"](tf.float32, shape)
    with pytest.raises(
        InvalidArgument, match="index of slice 1 must not be negative; index is -3"
    ):
        session.run(accumulator.apply_grad([0, -3], [[4.0], [4.0]]))
    assert session.run(accumulator.num_accumulated()) == 0


def test_rows_out_of_the_gradients_own_shape_are_an_error(session):
    """TensorFlow looks at the accumulator's shape alone."""
    accumulator = SPARSE["ours"](tf.float32)
    with pytest.raises(InvalidArgument, match="index is 5 exceeded 5"):
        session.run(accumulator.apply_grad([5], [[4.0]], grad_shape=[5, 1]))


@pytest.mark.parametrize("make", [DENSE["ours"], SPARSE["ours"]])
def test_half_and_bfloat16_are_summed_in_float(make, session):
    """TensorFlow's mean of three 40000 is inf, of 3000 ones 0.6826 (half).

    It has no kernel for bfloat16.
    """

    def mean(dtype, value, times):
        accumulator = make(dtype, [1, 1])
        gradient = tf.constant([[value]], dtype)
        if is_sparse(accumulator):
            push = accumulator.apply_grad([0], gradient)
        else:
            push = accumulator.apply_grad(gradient)
        for _ in range(times):
            session.run(push)
        return float(values_of(session.run(accumulator.take_grad(times)))[0, 0])

    assert mean(tf.half, 40000.0, 3) == 40000.0
    assert mean(tf.half, 1.0, 3000) == 1.0
    assert mean(tf.bfloat16, 1.0, 600) == 1.0


@pytest.mark.parametrize("make", [DENSE["ours"], SPARSE["ours"]])
def test_setting_the_step_discards_older_gradients(make, session):
    """TensorFlow keeps the 1.0 of step 0 and returns 2.0."""
    accumulator = make(tf.float32, shape=[2, 2])
    session.run(apply(accumulator, 1.0, local_step=0))
    session.run(accumulator.set_global_step(5))
    assert session.run(accumulator.num_accumulated()) == 0
    session.run(apply(accumulator, 3.0, local_step=5))
    taken = session.run(accumulator.take_grad(1))
    np.testing.assert_array_equal(values_of(taken), np.full([2, 2], 3.0))
    counts = session.run(accumulator.stats())
    assert (counts.accepted, counts.voided, counts.taken) == (2, 1, 1)


# Eagerly and in functions.


@pytest.mark.parametrize("make", [DENSE["ours"], SPARSE["ours"]])
def test_all_methods_work_eagerly(make):
    """TensorFlow's sparse one raises RuntimeError: Arg 'handle' is a ref."""
    accumulator = make(tf.float32, shape=[2, 2], name="eager")
    assert accumulator.name == "eager"
    assert apply(accumulator, 1.0) is None
    apply(accumulator, 5.0)
    assert int(accumulator.num_accumulated()) == 2
    taken = accumulator.take_grad(2)
    np.testing.assert_array_equal(values_of(taken), np.full([2, 2], 3.0))
    assert accumulator.set_global_step(tf.Variable(7)) is None
    apply(accumulator, 1.0, local_step=6)
    assert int(accumulator.stats().stale) == 1


@pytest.mark.parametrize("make", [DENSE["ours"], SPARSE["ours"]])
def test_all_methods_work_in_a_function(make):
    accumulator = make(tf.float32, shape=[2, 2])

    @tf.function
    def train(step):
        accumulator.set_global_step(step)
        for value in [1.0, 5.0]:
            apply(accumulator, value, local_step=step)
        apply(accumulator, 100.0, local_step=step - 1)
        held = accumulator.num_accumulated()
        return held, values_of(accumulator.take_grad(2)), accumulator.stats()

    for step in range(3):
        held, taken, counts = train(tf.constant(step))
        assert int(held) == 2
        np.testing.assert_array_equal(taken, np.full([2, 2], 3.0))
        assert int(counts.stale) == step + 1


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


def test_eager_accumulators_are_apart_unless_they_share_a_name():
    make = DENSE["ours"]
    first, second = make(tf.float32, [2, 2]), make(tf.float32, [2, 2])
    apply(first, 1.0)
    assert int(second.num_accumulated()) == 0
    first = make(tf.float32, [2, 2], shared_name="eager_shared")
    second = make(tf.float32, [2, 2], shared_name="eager_shared")
    apply(first, 1.0)
    assert int(second.num_accumulated()) == 1


def test_gradients_with_a_dense_shape(session):
    accumulator = SPARSE["ours"](tf.float32, [3, 2])
    good = tf.IndexedSlices(tf.ones([1, 2]), [1], dense_shape=[3, 2])
    session.run(accumulator.apply_indexed_slices_grad(good))
    bad = tf.IndexedSlices(tf.ones([1, 2]), [1], dense_shape=[4, 2])
    with pytest.raises(InvalidArgument, match="expected shape dim 0 to be 3, got 4"):
        session.run(accumulator.apply_indexed_slices_grad(bad))
