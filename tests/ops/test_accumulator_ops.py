"""The accumulator ops against their float64 twin: every dtype, reduction and mode."""

import accumulator_reference as reference
import numpy as np
import pytest
import tensorflow as tf

import tf_syncrep as tfs

pytestmark = pytest.mark.usefixtures("on_device")

DTYPES = [tf.half, tf.bfloat16, tf.float32, tf.float64]
# A few units in the last place of a result near 1.
TOLERANCE = {tf.half: 2e-3, tf.bfloat16: 2e-2, tf.float32: 1e-6, tf.float64: 1e-12}

all_dtypes = pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: dtype.name)
all_reductions = pytest.mark.parametrize(
    ("sparse", "reduction_type"),
    [
        (False, "MEAN"),
        (False, "SUM"),
        (True, "MEAN"),
        (True, "SUM"),
        (True, "CMEAN"),
    ],
)
both_kinds = pytest.mark.parametrize("sparse", [False, True], ids=["dense", "sparse"])


def make(sparse, dtype=tf.float32, shape=(50, 3), **options):
    function = tfs.ops.sparse_accumulator if sparse else tfs.ops.dense_accumulator
    return function(dtype, shape, **{"counted": True, **options})


def random_gradient(rng, sparse, dtype):
    """A gradient as NumPy values that `dtype` holds exactly."""
    values = rng.normal(size=(rng.integers(0, 20) if sparse else 50, 3))
    values = values.astype(dtype.as_numpy_dtype).astype(np.float64)
    if not sparse:
        return values
    index_dtype = rng.choice([np.int32, np.int64])
    return rng.integers(0, 50, size=len(values), dtype=index_dtype), values


def apply(handle, sparse, step, gradient, dtype):
    if sparse:
        indices, values = gradient
        values = tf.constant(values, dtype)
        return tfs.ops.accumulator_apply_sparse(handle, step, indices, values)
    return tfs.ops.accumulator_apply_dense(handle, step, tf.constant(gradient, dtype))


def push(handle, sparse, step, gradient):
    """Applies a gradient of all rows, which are its first axis."""
    if not sparse:
        return tfs.ops.accumulator_apply_dense(handle, step, gradient)
    rows = tf.range(tf.shape(gradient)[0])
    return tfs.ops.accumulator_apply_sparse(handle, step, rows, gradient)


def take(handle, sparse, dtype, num_required=1):
    if sparse:
        return tfs.ops.accumulator_take_sparse(handle, num_required, dtype)
    return tfs.ops.accumulator_take_dense(handle, num_required, dtype)


def take_round(handle, sparse, round, num_gradients, dtype=tf.float32):
    if sparse:
        return tfs.ops.accumulator_take_round_sparse(
            handle, round, num_gradients, dtype
        )
    return tfs.ops.accumulator_take_round_dense(handle, round, num_gradients, dtype)


def values_of(taken):
    return getattr(taken, "values", taken)


def assert_taken(taken, sparse, expected, tolerance):
    if not sparse:
        actual = tf.cast(taken, tf.float64)
        np.testing.assert_allclose(actual, expected, tolerance, tolerance)
        return
    indices, values = expected
    np.testing.assert_array_equal(taken.indices, indices)
    np.testing.assert_allclose(
        tf.cast(taken.values, tf.float64),
        values.reshape(taken.values.shape),
        tolerance,
        tolerance,
    )


def stats(handle):
    return {k: int(v) for k, v in tfs.ops.accumulator_stats(handle)._asdict().items()}


@all_dtypes
@all_reductions
def test_random_pushes_takes_and_steps_agree_with_the_twin(
    sparse, reduction_type, dtype
):
    rng = np.random.default_rng(1)
    handle = make(sparse, dtype, reduction_type=reduction_type)
    twin = reference.ReferenceAccumulator(sparse, reduction_type)
    pushed = taken = takes = 0
    for _ in range(150):
        action = rng.integers(12)
        if action < 9:
            step = int(twin.step + rng.integers(-1, 3))
            gradient = random_gradient(rng, sparse, dtype)
            accepted = apply(handle, sparse, step, gradient, dtype)
            assert bool(accepted) == twin.apply(step, gradient)
            pushed += 1
        elif action < 11 and twin.held:
            number = int(rng.integers(1, len(twin.held) + 1))
            takes += 1
            taken += len(twin.held)
            result = take(handle, sparse, dtype, number)
            assert_taken(result, sparse, twin.take(), 20 * TOLERANCE[dtype])
        elif action == 11:
            step = int(max(0, twin.step + rng.integers(-1, 3)))
            tfs.ops.accumulator_set_global_step(handle, step)
            twin.set_global_step(step)
        held = len(twin.held)
        assert int(tfs.ops.accumulator_num_accumulated(handle)) == held
    counts = stats(handle)
    assert (counts.pop("bytes") > 0) == (len(twin.held) > 0)
    assert counts == {
        "step": twin.step,
        "held": len(twin.held),
        "pushed": pushed,
        "accepted": pushed - twin.stale,
        "stale": twin.stale,
        "voided": twin.voided,
        "taken": taken,
        "takes": takes,
    }
    assert min(twin.stale, takes) > 0


@all_dtypes
@all_reductions
def test_rounds_agree_with_the_twin(sparse, reduction_type, dtype):
    rng = np.random.default_rng(2)
    handle = make(sparse, dtype, mode="ROUND", reduction_type=reduction_type)
    twin = reference.ReferenceAccumulator(sparse, reduction_type, mode="ROUND")
    takes = 0
    for _ in range(150):
        if rng.integers(4) or not twin.held:
            step = int(twin.step + rng.choice([-1, 0, 0, 0, 1]))
            gradient = random_gradient(rng, sparse, dtype)
            accepted = apply(handle, sparse, step, gradient, dtype)
            assert bool(accepted) == twin.apply(step, gradient)
        else:
            result = take_round(handle, sparse, twin.step, len(twin.held), dtype)
            assert_taken(result, sparse, twin.take(), 20 * TOLERANCE[dtype])
            takes += 1
    counts = stats(handle)
    assert (counts["stale"], counts["voided"]) == (twin.stale, twin.voided)
    assert (counts["step"], counts["held"]) == (twin.step, len(twin.held))
    assert counts["takes"] == takes > 0


@both_kinds
@pytest.mark.parametrize("asked", [(7, 1), (7, 3), (6, 2), (8, 2), (8, 1)])
def test_a_round_that_is_not_there_is_an_error_and_stays(sparse, asked):
    handle = make(sparse, mode="ROUND")
    rng = np.random.default_rng(3)
    for _ in range(2):
        apply(handle, sparse, 7, random_gradient(rng, sparse, tf.float32), tf.float32)
    with pytest.raises(tf.errors.FailedPreconditionError) as caught:
        take_round(handle, sparse, *asked)
    assert (
        f"The accumulator must hold {asked[1]} gradients of round {asked[0]}, but "
        "holds 2 of round 7" in caught.value.message
    )
    take_round(handle, sparse, 7, 2)


@both_kinds
def test_takes_of_the_other_mode_are_refused(sparse):
    calls = {
        "STEP": lambda handle: take_round(handle, sparse, 0, 1),
        "ROUND": lambda handle: take(handle, sparse, tf.float32),
    }
    for mode, other in [("STEP", "ROUND"), ("ROUND", "STEP")]:
        handle = make(sparse, mode=mode)
        with pytest.raises(
            tf.errors.InvalidArgumentError,
            match=f"must be of an accumulator with mode={other}, but .*mode={mode}",
        ):
            calls[mode](handle)


@pytest.mark.parametrize("number", [0, -3])
def test_a_round_has_at_least_one_gradient(number):
    with pytest.raises(
        tf.errors.InvalidArgumentError,
        match=f"num_gradients must be positive, but is {number}",
    ):
        take_round(make(False, mode="ROUND"), False, 0, number)


@both_kinds
def test_another_kind_or_dtype_is_refused(sparse):
    handle = make(not sparse, tf.float64)
    kinds = ["dense", "sparse"]
    with pytest.raises(
        tf.errors.InvalidArgumentError,
        match=f"handle must be of a {kinds[sparse]} accumulator of dtype float, "
        f"but is of a {kinds[not sparse]} one of dtype double",
    ):
        take(handle, sparse, tf.float32)
    gradient = random_gradient(np.random.default_rng(1), sparse, tf.float32)
    with pytest.raises(tf.errors.InvalidArgumentError, match="but is of a"):
        apply(handle, sparse, 0, gradient, tf.float32)


@pytest.mark.parametrize("shape", [[], [0], [3, 0], [1], [2, 3, 5]])
@all_dtypes
def test_dense_gradients_of_any_shape(dtype, shape):
    handle = make(False, dtype, shape)
    for value in [1, 2, 6]:
        tfs.ops.accumulator_apply_dense(
            handle, 0, tf.fill(shape, tf.cast(value, dtype))
        )
    taken = take(handle, False, dtype, 3)
    np.testing.assert_array_equal(tf.cast(taken, tf.float32), np.full(shape, 3.0))


@pytest.mark.parametrize("row_shape", [[], [0], [1], [2, 3]])
def test_sparse_rows_of_any_shape(row_shape):
    handle = make(True, shape=[10, *row_shape])
    for value in [1.0, 5.0]:
        tfs.ops.accumulator_apply_sparse(
            handle, 0, [3], tf.fill([1, *row_shape], value)
        )
    taken = take(handle, True, tf.float32, 2)
    np.testing.assert_array_equal(taken.values, np.full([1, *row_shape], 3.0))
    np.testing.assert_array_equal(taken.shape, [10, *row_shape])


def test_a_gradient_without_rows_may_have_rows_of_any_size():
    # A row has more elements than fit into an integer, and there are no rows.
    handle = tfs.ops.sparse_accumulator(tf.float32)
    empty = tf.fill([0, 2**32, 2**32], 1.0)
    assert tfs.ops.accumulator_apply_sparse(handle, 0, tf.zeros([0], tf.int64), empty)
    taken = take(handle, True, tf.float32)
    assert taken.values.shape == [0, 2**32, 2**32]


def test_rows_of_gradients_are_numbered_by_32_bits():
    handle = tfs.ops.sparse_accumulator(tf.float32, counted=True)
    last, values = (1 << 32) - 1, tf.ones([1, 2])
    with pytest.raises(tf.errors.InvalidArgumentError, match="exceeded 4294967296"):
        tfs.ops.accumulator_apply_sparse(handle, 0, [last + 1], values)
    tfs.ops.accumulator_apply_sparse(handle, 0, [last], values)
    assert take(handle, True, tf.float32).indices == [last]


@both_kinds
def test_memory_that_is_used_again_does_not_change_what_was_taken(sparse):
    # It is large enough that the accumulator keeps the memory of its last result.
    shape = [40_000, 64]
    handle = make(sparse, shape=shape)
    results = []
    for value in range(6):
        push(handle, sparse, value, tf.fill(shape, float(value)))
        result = values_of(take(handle, sparse, tf.float32))
        if value % 2:  # every second one is released
            results.append((value, result))
        del result
    for value, result in results:
        assert result.shape == shape
        np.testing.assert_array_equal(result, np.full(shape, float(value)))


def test_a_round_that_is_held_is_not_changed_by_the_next_ones():
    # Its memory is reused when nobody else holds it.
    handle = make(True, shape=[40_000, 64], mode="ROUND", reduction_type="CMEAN")
    held = []
    for value in range(1, 8):
        gradient = tf.fill([30_000, 64], float(value))
        for rows in [tf.range(30_000), tf.range(10_000, 40_000)]:
            tfs.ops.accumulator_apply_sparse(handle, value, rows, gradient)
        taken = take_round(handle, True, value, 2)
        if value % 3:
            held.append((value, taken))
        del taken
    for value, taken in held:
        np.testing.assert_array_equal(taken.indices, range(40_000))
        expected = np.full([40_000, 64], value / 2)
        expected[10_000:30_000] = value
        np.testing.assert_array_equal(taken.values, expected)


@both_kinds
def test_gradients_computed_in_a_graph_are_summed_right(sparse):
    # The accumulator takes over the memory of these gradients, since nobody else holds
    # it.
    handle = make(sparse, shape=[1000, 2])

    @tf.function
    def push_all(x, n):
        for i in tf.range(n):
            push(handle, sparse, 0, x * tf.cast(i + 1, tf.float32))

    x = tf.random.normal([1000, 2])
    before = x.numpy()
    for n in range(1, 8):
        tfs.ops.accumulator_set_global_step(handle, 0)
        push_all(x, n)
        values = values_of(take(handle, sparse, tf.float32, n))
        np.testing.assert_allclose(values, before * (n + 1) / 2, rtol=1e-5)
    np.testing.assert_array_equal(x, before)


@both_kinds
def test_a_gradient_that_others_use_too_stays_as_it_is(sparse):
    handle = make(sparse, shape=[1000, 2])

    @tf.function
    def push_and_take(x):
        gradient = x * 3.0
        pushes = [push(handle, sparse, 0, gradient) for _ in range(4)]
        with tf.control_dependencies(pushes):
            return gradient + 0.0, take(handle, sparse, tf.float32, 4)

    gradient, taken = push_and_take(tf.ones([1000, 2]))
    np.testing.assert_array_equal(gradient, np.full([1000, 2], 3.0))
    np.testing.assert_array_equal(values_of(taken), np.full([1000, 2], 3.0))


@both_kinds
def test_writing_to_what_was_pushed_changes_nothing(sparse):
    """Eager tensors and resource variables: the accumulator has its own copy."""
    handle = make(sparse)
    variable = tf.Variable(tf.ones([50, 3]))
    pushed = tf.constant(np.full([50, 3], 5.0), tf.float32)
    for gradient in [variable, pushed, pushed]:
        push(handle, sparse, 0, gradient)
    variable.assign(tf.fill([50, 3], 100.0))
    variable.scatter_nd_update([[3]], [[7.0, 7.0, 7.0]])
    values = values_of(take(handle, sparse, tf.float32, 3))
    np.testing.assert_allclose(values, np.full([50, 3], 11 / 3), rtol=1e-6)
    np.testing.assert_array_equal(pushed, np.full([50, 3], 5.0))


@both_kinds
def test_ref_variables_and_fed_arrays_may_be_overwritten_after_the_push(sparse):
    fed = np.ones([50, 3], np.float32)
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        handle = make(sparse, counted=False)
        ref = tf.compat.v1.Variable(tf.fill([50, 3], 2.0), use_resource=False)
        placeholder = tf.compat.v1.placeholder(tf.float32)
        gradients = [ref, tf.identity(ref), placeholder]
        pushes = [push(handle, sparse, 0, gradient) for gradient in gradients]
        overwrite = ref.assign(tf.fill([50, 3], 100.0))
        result = take(handle, sparse, tf.float32, 6)
        session.run(ref.initializer)
        for _ in range(2):
            session.run(pushes, {placeholder: fed})
        session.run(overwrite)
        fed[:] = 1000.0
        values = values_of(session.run(result))
    np.testing.assert_allclose(values, np.full([50, 3], 5 / 3), rtol=1e-6)


def test_shapes_are_known_when_a_graph_is_built():
    with tf.Graph().as_default():
        dense = tfs.ops.dense_accumulator(tf.float32, [None, 3])
        sparse = tfs.ops.sparse_accumulator(tf.float32, [10, 3])
        assert dense.shape == []
        taken = tfs.ops.accumulator_take_dense(dense, 1, tf.float32)
        assert taken.shape.as_list() == [None, 3]
        taken = tfs.ops.accumulator_take_sparse(sparse, 1, tf.float32)
        assert taken.indices.shape.as_list() == [None]
        assert taken.shape.shape.as_list() == [None]
        assert tfs.ops.accumulator_num_accumulated(dense).shape == []
        for bad in (
            lambda: tfs.ops.accumulator_take_dense(dense, [1, 2], tf.float32),
            lambda: tfs.ops.accumulator_apply_dense(dense, [1, 2], [[1.0, 2.0, 3.0]]),
            lambda: tfs.ops.accumulator_set_global_step(sparse, [1]),
        ):
            with pytest.raises(ValueError, match="must be rank 0"):
                bad()


@both_kinds
def test_a_taken_gradient_is_where_it_was_summed(sparse, on_device):
    handle = make(sparse)
    gradient = random_gradient(np.random.default_rng(5), sparse, tf.float32)
    apply(handle, sparse, 0, gradient, tf.float32)
    taken = values_of(take(handle, sparse, tf.float32))
    assert tf.DeviceSpec.from_string(taken.backing_device).device_type == (
        "CPU" if sparse else on_device
    )


def test_a_counted_accumulator_without_a_name_is_another_one_each_time():
    first, second = make(False), make(False)
    tfs.ops.accumulator_apply_dense(first, 0, tf.ones([50, 3]))
    assert int(tfs.ops.accumulator_num_accumulated(first)) == 1
    assert int(tfs.ops.accumulator_num_accumulated(second)) == 0


@pytest.mark.parametrize(
    ("changed", "described"),
    [
        ({"dtype": tf.float64}, "dense, dtype=double, shape=[2,3]"),
        ({"shape": [3, 2]}, "dense, dtype=float, shape=[3,2]"),
        ({"shape": None}, "dense, dtype=float, shape=<unknown>"),
        ({"reduction_type": "SUM"}, "reduction_type=SUM"),
        ({"mode": "ROUND"}, "mode=ROUND"),
    ],
)
def test_a_shared_name_is_for_equal_accumulators(changed, described):
    options = {"dtype": tf.float32, "shape": [2, 3], "shared_name": f"same{described}"}
    first = tfs.ops.dense_accumulator(**options)
    tfs.ops.accumulator_apply_dense(first, 0, tf.ones([2, 3]))
    again = tfs.ops.dense_accumulator(**options)
    assert int(tfs.ops.accumulator_num_accumulated(again)) == 1
    with pytest.raises(tf.errors.InvalidArgumentError) as caught:
        tfs.ops.dense_accumulator(**{**options, **changed})
    assert "exists with dense, dtype=float, shape=[2,3]" in caught.value.message
    assert described in caught.value.message.split("Received: ")[1]
    with pytest.raises(tf.errors.InvalidArgumentError, match="Received: sparse"):
        tfs.ops.sparse_accumulator(**options)
