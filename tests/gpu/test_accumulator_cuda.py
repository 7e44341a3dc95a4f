"""The CUDA kernels of accumulators on a GPU, without TensorFlow.

tests/cc/cuda_accumulator_dense_test.cc and its sparse twin run the same kernels on a
CPU. Where there is no GPU these tests are skipped, and the reason is printed.
"""

import accumulator_reference as reference
import gpu_harness as harness
import numpy as np
import pytest

if harness.missing():
    pytest.skip(str(harness.missing()), allow_module_level=True)

each_dtype = pytest.mark.parametrize("dtype", harness.DTYPES)
each_pass = pytest.mark.parametrize("name", harness.DENSE_PASSES)

# Each pass in float64: what becomes of the sum, from (sum, a, b, other, divisor).
TWINS = {
    "set": lambda s, a, b, other, d: a,
    "add": lambda s, a, b, other, d: s + a,
    "add_two": lambda s, a, b, other, d: s + a + b,
    "add_sum": lambda s, a, b, other, d: s + other,
    "divide": lambda s, a, b, other, d: s / d,
    "add_divide": lambda s, a, b, other, d: (s + a) / d,
    "divide_to": lambda s, a, b, other, d: s / d,
    "add_divide_to": lambda s, a, b, other, d: (s + a) / d,
}


def positive(seed, size, dtype):
    """Numbers of one sign, so that sums do not cancel."""
    return np.abs(harness.random_array(seed, [size], dtype))


@each_dtype
@each_pass
@pytest.mark.parametrize("size", [0, 1, 7, 64, 1023, 100_003, 1 << 22])
@pytest.mark.parametrize("offset", [0, 1])
def test_a_pass_agrees_with_the_twin(offset, size, name, dtype):
    narrow, wide = harness.numpy_dtype(dtype), harness.slot_dtype(dtype)
    a, b = positive(1, size, narrow), positive(2, size, narrow)
    other, total = positive(3, size, wide), positive(4, size, wide)
    on_gpu = harness.to_gpu(total, offset)
    out = harness.to_gpu(np.zeros(size, narrow), offset)
    harness.dense_pass(
        name,
        dtype,
        a=harness.to_gpu(a, offset),
        b=harness.to_gpu(b, offset),
        other=harness.to_gpu(other, offset),
        sum=on_gpu,
        out=out,
        divisor=7.0,
    )
    in_double = [array.astype(np.float64) for array in (total, a, b, other)]
    expected = TWINS[name](*in_double, 7.0)
    writes_out = name.endswith("_to")
    actual = harness.to_host(out, a) if writes_out else harness.to_host(on_gpu, total)
    error = harness.RELATIVE_ERROR[dtype if writes_out else wide.name]
    np.testing.assert_allclose(actual.astype(np.float64), expected, rtol=error)
    if writes_out:
        assert harness.to_host(on_gpu, total).tobytes() == total.tobytes()


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_the_mean_of_many_is_rounded_once(dtype):
    """In half or bfloat16 arithmetic this sum of ones would stop at 2048, or 256."""
    narrow = harness.numpy_dtype(dtype)
    one = harness.to_gpu(np.ones(1000, narrow))
    total = harness.to_gpu(np.zeros(1000, np.float32))
    for _ in range(1500):
        harness.dense_pass("add_two", dtype, a=one, b=one, sum=total)
    mean = harness.to_gpu(np.zeros(1000, narrow))
    harness.dense_pass("divide_to", dtype, sum=total, out=mean, divisor=3000.0)
    assert (harness.to_host(mean, np.ones(1000, narrow)) == 1).all()


def test_the_same_gradients_give_the_same_bits():
    arrays = [positive(seed, 1_000_003, np.dtype(np.float32)) for seed in range(5)]

    def run():
        total = harness.to_gpu(arrays[0])
        for array in arrays[1:]:
            harness.dense_pass("add", "float32", a=harness.to_gpu(array), sum=total)
        harness.dense_pass("divide", "float32", sum=total, divisor=5.0)
        return harness.to_host(total, arrays[0])

    expected = arrays[0].copy()
    for array in arrays[1:]:
        expected += array
    expected /= np.float32(5)
    # The bits are also those of NumPy in float32: no multiply-add, in order of arrival.
    assert run().tobytes() == run().tobytes() == expected.tobytes()


def test_a_pass_stays_in_its_stream():
    import cupy

    gradient, before = (positive(x, 100_003, np.dtype(np.float32)) for x in (1, 2))
    given, total = cupy.zeros(gradient.size, np.uint32), harness.to_gpu(before)
    late = harness.to_gpu(gradient)
    stream = cupy.cuda.Stream(non_blocking=True)
    harness.deliver_late(stream, (given, late))
    harness.dense_pass("add", "float32", a=given, sum=total, stream=stream.ptr)
    cupy.cuda.Device().synchronize()
    actual = harness.to_host(total, before)
    np.testing.assert_array_equal(actual, before + gradient)


def test_a_pass_reaches_elements_beyond_two_billion():
    import cupy

    size = 2**31 + 13
    # One byte of each is enough for the comparison.
    harness.skip_without_memory(size * (2 + 4 + 1) + (1 << 30))
    one = int(np.ones([], harness.numpy_dtype("bfloat16")).view(np.uint16))
    total = cupy.zeros(size, np.uint32)
    gradient = cupy.full(size, one, np.uint16)
    for _ in range(3):
        harness.dense_pass("add", "bfloat16", a=gradient, sum=total)
    assert bool((total.view(np.float32) == 3).all())


def sparse_gradients(dtype, row_size, counts, limit, index_dtype=np.int64):
    """Gradients whose rows follow Zipf: whole blocks sum the first rows."""
    rng = np.random.default_rng(5)
    gradients = []
    for count in counts:
        indices = ((rng.zipf(1.3, count) - 1) % limit).astype(index_dtype)
        values = rng.uniform(0.25, 2.0, [count, row_size])
        gradients.append((indices, values.astype(harness.numpy_dtype(dtype))))
    return gradients


def assert_sparse_sum_agrees(actual, gradients, reduction, dtype):
    twin = reference.ReferenceAccumulator(True, reduction)
    for gradient in gradients:
        twin.apply(0, gradient)
    rows, values = twin.take()
    np.testing.assert_array_equal(actual.rows, rows)
    np.testing.assert_allclose(
        actual.values.astype(np.float64),
        values,
        rtol=max(harness.RELATIVE_ERROR[dtype], 1e-9 if dtype == "float64" else 1e-4),
    )


@each_dtype
@pytest.mark.parametrize("reduction", harness.REDUCTIONS)
@pytest.mark.parametrize("row_size", [1, 3, 16, 64, 65])
@pytest.mark.parametrize("index_dtype", [np.int32, np.int64])
def test_sparse_gradients_agree_with_the_twin(index_dtype, row_size, reduction, dtype):
    gradients = sparse_gradients(dtype, row_size, [300, 1, 0, 500], 400, index_dtype)
    for limit, may_be_kept in ((400, False), (-1, True)):
        actual = harness.sparse_sum(
            gradients, dtype, reduction, limit, may_be_kept=may_be_kept
        )
        assert_sparse_sum_agrees(actual, gradients, reduction, dtype)


@pytest.mark.parametrize("may_be_kept", [False, True])
def test_sparse_gradients_are_reduced_in_their_stream(may_be_kept):
    import cupy

    gradients = sparse_gradients("float32", 16, [3000] * 3, 2000)
    late = [(cupy.asarray(rows), harness.to_gpu(x)) for rows, x in gradients]
    indices = [cupy.zeros(rows.size, np.int64) for rows, _ in late]
    values = [cupy.zeros(x.size, np.uint32) for _, x in late]
    on_gpu = harness.SparseGradients(
        indices,
        values,
        16,
        "float32",
        "CMEAN",
        2000,
        min_merge_bytes=1,
        may_be_kept=may_be_kept,
    )
    stream = cupy.cuda.Stream(non_blocking=True)
    pairs = zip(
        indices + values,
        [x for pair in zip(*late, strict=True) for x in pair],
        strict=True,
    )
    harness.deliver_late(stream, *pairs)
    on_gpu.reduce(stream.ptr)
    cupy.cuda.Device().synchronize()
    assert_sparse_sum_agrees(on_gpu.read(), gradients, "CMEAN", "float32")


@each_dtype
@pytest.mark.parametrize("reduction", harness.REDUCTIONS)
def test_merges_on_the_way_change_no_bit(reduction, dtype):
    gradients = sparse_gradients(dtype, 24, [2000] * 12, 500)
    expected = harness.sparse_sum(gradients, dtype, reduction, 500)
    merged = harness.sparse_sum(gradients, dtype, reduction, 500, min_merge_bytes=1)
    assert expected.num_held_rows == 24_000
    assert merged.num_held_rows <= 4 * 500 + 2000
    assert merged.rows.tobytes() == expected.rows.tobytes()
    assert merged.values.tobytes() == expected.values.tobytes()


def test_a_million_rows_give_the_same_bits_each_time():
    gradients = sparse_gradients("float32", 16, [500_000] * 2, 300_000)
    first, second = (
        harness.sparse_sum(gradients, "float32", "SUM", 300_000) for _ in range(2)
    )
    assert first.values.tobytes() == second.values.tobytes()
    total = np.zeros([300_000, 16])
    for indices, values in gradients:
        np.add.at(total, indices, values.astype(np.float64))
    np.testing.assert_allclose(first.values, total[first.rows], rtol=1e-3)


def test_rows_beyond_two_billion_elements_are_summed():
    import cupy

    rows, row_size = 2**25 + 7, 64
    # The gradient, the result, and some 41 bytes for each row to sort.
    harness.skip_without_memory(rows * row_size * (2 + 2) + rows * 80 + (1 << 30))
    narrow = harness.numpy_dtype("bfloat16")
    one, two = (int(np.array(x, narrow).view(np.uint16)) for x in (1, 2))
    values = cupy.full(rows * row_size, one, np.uint16)
    values[-row_size:] = two
    gradients = harness.SparseGradients(
        [cupy.arange(rows), cupy.asarray([rows - 1])],
        [values, harness.to_gpu(np.ones(row_size, narrow))],
        row_size,
        "bfloat16",
        "SUM",
        rows,
        may_be_kept=True,
    )
    gradients.reduce()
    taken = gradients.read()
    np.testing.assert_array_equal(taken.rows, np.arange(rows))
    bits = taken.values.view(np.uint16)
    assert (bits[:-1] == one).all()
    assert (taken.values[-1] == 3).all()


@pytest.mark.parametrize("bad", [1000, -1, 2**40])
def test_a_bad_index_of_a_sparse_gradient_is_named(bad):
    indices = np.arange(50_000) % 1000
    indices[[30_001, 49_998]] = [bad, -5]
    gradients = [(indices, np.ones([50_000, 2], np.float32))]
    actual = harness.sparse_sum(gradients, "float32", "SUM", 1000)
    assert actual.bad_index == (30_001, bad)
