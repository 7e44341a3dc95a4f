"""The CUDA kernel of dense accumulators on a GPU, without TensorFlow.

tests/cc/cuda/cuda_accumulator_dense_test.cc runs the same kernel on a CPU. Where there
is no GPU these tests are skipped, and the reason is printed.
"""

import gpu_harness as harness
import numpy as np
import pytest

if harness.missing():
    pytest.skip(str(harness.missing()), allow_module_level=True)

each_dtype = pytest.mark.parametrize("dtype", harness.DTYPES)
each_pass = pytest.mark.parametrize("name", harness.DENSE_PASSES)

# Each pass in float64: what becomes of the sum, from (sum, a, b, divisor).
TWINS = {
    "set": lambda s, a, b, d: a,
    "add": lambda s, a, b, d: s + a,
    "add_two": lambda s, a, b, d: s + a + b,
    "divide": lambda s, a, b, d: s / d,
    "add_divide": lambda s, a, b, d: (s + a) / d,
    "divide_to": lambda s, a, b, d: s / d,
    "add_divide_to": lambda s, a, b, d: (s + a) / d,
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
    total = positive(3, size, wide)
    on_gpu = harness.to_gpu(total, offset)
    out = harness.to_gpu(np.zeros(size, narrow), offset)
    harness.dense_pass(
        name,
        dtype,
        a=harness.to_gpu(a, offset),
        b=harness.to_gpu(b, offset),
        sum=on_gpu,
        out=out,
        divisor=7.0,
    )
    in_double = [array.astype(np.float64) for array in (total, a, b)]
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
