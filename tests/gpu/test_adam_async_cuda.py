"""The CUDA kernels of AdamAsync on a GPU, without TensorFlow.

tests/cc/cuda/cuda_adam_async_test.cc runs the same kernels on a CPU. Where there is no
GPU these tests are skipped, and the reason is printed.
"""

import adam_async_reference as reference
import gpu_harness as harness
import numpy as np
import pytest

if harness.missing():
    pytest.skip(str(harness.missing()), allow_module_level=True)

each_dtype = pytest.mark.parametrize("dtype", harness.DTYPES)
each_formula = pytest.mark.parametrize("formula", harness.FORMULAS)


def row_gradients(seed, indices, row_size, dtype):
    """Gradients of one sign, so that sums of duplicates do not cancel."""
    shape = [len(indices), row_size]
    return np.abs(harness.random_array(seed, shape, harness.numpy_dtype(dtype)))


def sparse_step(state, grad, indices, dtype, formula="adam", **options):
    """A sparse step on the GPU: the variable, and what it holds afterwards."""
    import cupy

    validate = options.pop("validate", True)
    offset = options.pop("offset", 0)
    on_gpu = harness.AdamAsync.of(
        state, dtype, offset=offset, formula=formula, **options
    )
    on_gpu.sparse(
        harness.to_gpu(grad, offset), cupy.asarray(indices), grad.shape[1], validate
    )
    return on_gpu, on_gpu.read(state)


@each_dtype
@pytest.mark.parametrize("formula", ["adam", "nesterov"])
@pytest.mark.parametrize("size", [0, 1, 7, 64, 1023, 100_003, 1 << 22])
def test_a_dense_step_agrees_with_the_twin(size, formula, dtype):
    state = harness.random_state(1, [size], dtype)
    on_gpu = harness.AdamAsync.of(state, dtype, formula=formula)
    for seed in (10, 11):
        grad = harness.random_array(seed, [size], harness.numpy_dtype(dtype))
        on_gpu.dense(harness.to_gpu(grad))
        actual = on_gpu.read(state)
        harness.assert_close(actual, harness.expected_dense(state, grad, formula))
        state = actual


@each_dtype
@pytest.mark.parametrize("offset", [1, 3])
def test_a_dense_step_takes_memory_at_any_address(offset, dtype):
    state = harness.random_state(2, [10_007], dtype)
    grad = harness.random_array(20, [10_007], harness.numpy_dtype(dtype))
    on_gpu = harness.AdamAsync.of(state, dtype, offset=offset)
    on_gpu.dense(harness.to_gpu(grad, offset))
    harness.assert_close(
        on_gpu.read(state), harness.expected_dense(state, grad, "adam")
    )


def test_powers_advance_once_for_each_of_thousands_of_launches():
    """More launches than there are counters, with many blocks and with one."""
    import cupy

    for size in (1, 1 << 20):
        state = harness.random_state(3, [size], "float64")
        on_gpu = harness.AdamAsync.of(state, "float64")
        grad = cupy.zeros(size, np.float64)
        for _ in range(2500):
            on_gpu.dense(grad)
        power = on_gpu.read(state).beta2_power
        np.testing.assert_allclose(power, 0.99**2505, rtol=1e-9)


def test_variables_in_two_streams_do_not_share_a_counter():
    import cupy

    state = harness.random_state(4, [1 << 20], "float32")
    grad = harness.random_array(40, [1 << 20], np.dtype(np.float32))
    streams = [cupy.cuda.Stream(non_blocking=True) for _ in range(2)]
    variables = [harness.AdamAsync.of(state, "float32") for _ in streams]
    grads = [harness.to_gpu(grad) for _ in streams]
    cupy.cuda.Device().synchronize()
    for _ in range(200):
        for variable, stream, gradient in zip(variables, streams, grads, strict=True):
            variable.dense(gradient, stream.ptr)
    cupy.cuda.Device().synchronize()
    first, second = (variable.read(state) for variable in variables)
    harness.assert_identical(first, second)
    np.testing.assert_allclose(first.beta1_power, 0.9**205, rtol=1e-4)


def test_a_dense_step_reaches_elements_beyond_two_billion():
    import cupy

    size = 2**31 + 13
    # One byte of each is enough for the comparison.
    harness.skip_without_memory(size * (2 + 2 + 4 + 4 + 1) + (1 << 30))
    like = harness.random_state(5, [], "bfloat16")
    one = int(np.ones([], harness.numpy_dtype("bfloat16")).view(np.uint16))
    memory = reference.State(
        cupy.zeros(size, np.uint16),
        cupy.zeros(size, np.uint32),
        cupy.zeros(size, np.uint32),
        harness.to_gpu(like.beta1_power),
        harness.to_gpu(like.beta2_power),
    )
    on_gpu = harness.AdamAsync(memory, "bfloat16")
    on_gpu.dense(cupy.full(size, one, np.uint16))
    for array in memory[:3]:
        assert bool((array == array[0]).all())
    m = memory.m[-1:].get().view(np.float32)
    np.testing.assert_allclose(m, 0.1, rtol=1e-6)


@each_dtype
@each_formula
@pytest.mark.parametrize("row_size", [1, 3, 8, 16, 64, 65, 1000])
@pytest.mark.parametrize("index_dtype", [np.int32, np.int64])
def test_a_sparse_step_agrees_with_the_twin(index_dtype, row_size, formula, dtype):
    state = harness.random_state(6, [50, row_size], dtype)
    indices = np.array([49, 1, 4, 0, 4, 1, 4, 17], index_dtype)
    grad = row_gradients(60, indices, row_size, dtype)
    on_gpu, actual = sparse_step(state, grad, indices, dtype, formula)
    assert on_gpu.bad_index()[0] == -1
    harness.assert_close(actual, harness.expected_sparse(state, grad, indices, formula))
    untouched = np.setdiff1d(np.arange(50), indices)
    for before, after in zip(state[:3], actual[:3], strict=True):
        np.testing.assert_array_equal(before[untouched], after[untouched])


def test_a_sparse_step_stays_in_its_stream():
    import cupy

    state = harness.random_state(15, [5000, 16], "float32")
    indices = (np.random.default_rng(150).zipf(1.3, 4000) - 1) % 5000
    grad = row_gradients(151, indices, 16, "float32")
    late_grad, late_indices = harness.to_gpu(grad), cupy.asarray(indices)
    given, given_indices = cupy.zeros(grad.size, np.uint32), cupy.zeros(4000, np.int64)
    on_gpu = harness.AdamAsync.of(state, "float32")
    stream = cupy.cuda.Stream(non_blocking=True)
    harness.deliver_late(stream, (given, late_grad), (given_indices, late_indices))
    on_gpu.sparse(given, given_indices, 16, stream=stream.ptr)
    cupy.cuda.Device().synchronize()
    expected = harness.expected_sparse(state, grad, indices, "adam")
    harness.assert_close(on_gpu.read(state), expected, tolerance=1e-4)


@each_dtype
def test_a_sparse_step_takes_memory_at_any_address(dtype):
    state = harness.random_state(7, [30, 16], dtype)
    indices = np.array([3, 29, 3, 0])
    grad = row_gradients(70, indices, 16, dtype)
    _, actual = sparse_step(state, grad, indices, dtype, offset=1)
    harness.assert_close(actual, harness.expected_sparse(state, grad, indices, "adam"))


@each_dtype
@pytest.mark.parametrize("row_size", [4, 64, 72])
def test_rows_in_thousands_of_places_are_summed_and_moved_once(row_size, dtype):
    """Indices after Zipf: whole blocks work on the first rows."""
    rows = 20_000
    state = harness.random_state(8, [rows, row_size], dtype)
    indices = (np.random.default_rng(80).zipf(1.2, size=60_000) - 1) % rows
    grad = row_gradients(81, indices, row_size, "float32") / 64
    grad = grad.astype(harness.numpy_dtype(dtype))
    _, actual = sparse_step(state, grad, indices, dtype)
    # Sums of ten thousand floats have an error of their own.
    harness.assert_close(
        actual, harness.expected_sparse(state, grad, indices, "adam"), tolerance=1e-3
    )
    _, again = sparse_step(state, grad, indices, dtype)
    harness.assert_identical(again, actual)


@each_dtype
def test_a_million_different_rows_equal_a_dense_step(dtype):
    rows, row_size = 1 << 20, 8
    state = harness.random_state(9, [rows, row_size], dtype)
    grad = harness.random_array(90, [rows, row_size], harness.numpy_dtype(dtype))
    order = np.random.default_rng(91).permutation(rows)
    _, actual = sparse_step(state, grad[order], order, dtype)
    dense = harness.AdamAsync.of(state, dtype)
    dense.dense(harness.to_gpu(grad))
    harness.assert_identical(actual, dense.read(state))


@pytest.mark.parametrize("momentum", [0.0, 0.5])
def test_rmsprop_takes_its_own_momentum_and_leaves_the_powers(momentum):
    state = harness.random_state(10, [9, 5], "float32")
    indices = np.array([8, 2, 8], np.int32)
    grad = row_gradients(100, indices, 5, "float32")
    _, actual = sparse_step(
        state, grad, indices, "float32", "rmsprop", momentum=momentum
    )
    harness.assert_close(
        actual, harness.expected_sparse(state, grad, indices, "rmsprop", momentum)
    )
    assert actual.beta1_power == state.beta1_power


@each_formula
def test_no_indices_change_nothing(formula):
    state = harness.random_state(11, [9, 5], "float32")
    on_gpu, actual = sparse_step(
        state, np.zeros([0, 5], np.float32), np.zeros(0, np.int64), "float32", formula
    )
    assert on_gpu.bad_index()[0] == -1
    harness.assert_identical(actual, state)


@pytest.mark.parametrize("bad", [1000, -1, 2**31 - 1, -(2**31), 2**40])
@each_dtype
def test_a_bad_index_is_named_and_nothing_is_written(dtype, bad):
    state = harness.random_state(12, [1000, 4], dtype)
    indices = np.arange(100_000) % 1000
    indices[[70_001, 99_998]] = [bad, -5]
    grad = np.ones([100_000, 4], harness.numpy_dtype(dtype))
    on_gpu, actual = sparse_step(state, grad, indices, dtype)
    assert on_gpu.bad_index() == (70_001, bad)
    harness.assert_identical(actual, state)


@each_dtype
def test_without_validation_bad_indices_are_ignored(dtype):
    state = harness.random_state(13, [1000, 16], dtype)
    indices = np.random.default_rng(130).integers(-500, 1500, 4000)
    grad = row_gradients(131, indices, 16, dtype)
    _, actual = sparse_step(state, grad, indices, dtype, validate=False)
    good = (indices >= 0) & (indices < 1000)
    harness.assert_close(
        actual, harness.expected_sparse(state, grad[good], indices[good], "adam")
    )


def test_a_sparse_step_reaches_rows_beyond_two_billion_elements():
    import cupy

    rows, row_size = 2**25 + 7, 64
    # One byte of each is enough for the comparison.
    harness.skip_without_memory(rows * row_size * (2 + 4 + 4 + 1) + (1 << 30))
    like = harness.random_state(14, [], "bfloat16")
    one = np.ones([3, row_size], harness.numpy_dtype("bfloat16"))
    memory = reference.State(
        cupy.zeros(rows * row_size, np.uint16),
        cupy.zeros(rows * row_size, np.uint32),
        cupy.zeros(rows * row_size, np.uint32),
        harness.to_gpu(like.beta1_power),
        harness.to_gpu(like.beta2_power),
    )
    on_gpu = harness.AdamAsync(memory, "bfloat16")
    touched = [0, rows - 1, rows - 5]
    on_gpu.sparse(harness.to_gpu(one), cupy.asarray(touched), row_size)
    assert on_gpu.bad_index()[0] == -1
    m = memory.m.reshape(rows, row_size)
    np.testing.assert_allclose(m[touched].get().view(np.float32), 0.1, rtol=1e-6)
    assert int((m != 0).sum()) == 3 * row_size
