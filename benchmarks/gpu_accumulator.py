"""Dense accumulators on a GPU: the CUDA kernel beside PyTorch's arithmetic.

    python benchmarks/gpu_accumulator.py             all sizes that the memory holds
    python benchmarks/gpu_accumulator.py --quick     tiny ones: does everything work?

Wants a GPU, nvcc, CMake, CuPy and ml_dtypes; TensorFlow takes no part, and PyTorch
where it is installed. Before anything is timed, the kernel is held to NumPy. Timed are
the passes that an accumulator is made of: one more gradient, two more at a time (which
is what it does with gradients that nobody else has), and the mean. PyTorch adds two
gradients by `add_` twice. Bytes are those that a pass has to read and write at the
least. All in float.
"""

from __future__ import annotations

import pathlib
import sys

import numpy as np
from harness import gpu
from harness.benchmark import Measurement, Verdict, times_faster

HERE = pathlib.Path(__file__).parent
sys.path.append(str(HERE.parent / "tests" / "testing"))

import gpu_harness  # noqa: E402

OURS, TORCH = "tf_syncrep", "torch"
MILLION = 1_000_000
SIZES = [32 * MILLION, 128 * MILLION, 512 * MILLION, 1000 * MILLION]
# Arrays that are read or written by each pass.
ARRAYS = {"add": 3, "add_two": 4, "divide": 2}


def check_against_numpy() -> None:
    """Holds a mean of three gradients to NumPy, before any figure is taken."""
    arrays = [
        gpu_harness.random_array(seed, [100_003], np.dtype(np.float32))
        for seed in range(3)
    ]
    total, *rest = (gpu_harness.to_gpu(array) for array in arrays)
    gpu_harness.dense_pass("add_two", "float32", a=rest[0], b=rest[1], sum=total)
    gpu_harness.dense_pass("divide", "float32", sum=total, divisor=3.0)
    expected = (arrays[0] + arrays[1] + arrays[2]) / np.float32(3)
    np.testing.assert_array_equal(
        gpu_harness.to_host(total, arrays[0]).view(np.uint32), expected.view(np.uint32)
    )


def measure_pass(name: str, size: int, rounds: int) -> list[Measurement]:
    """All contenders on one pass."""
    import cupy

    total = cupy.zeros(size, np.float32)
    a = cupy.random.standard_normal(size, np.float32)
    b = cupy.random.standard_normal(size, np.float32)
    # Not 1, which nobody has to divide by; near it, so that sums stay in range.
    divisor = 1.0009765625

    def ours(_: int) -> None:
        gpu_harness.dense_pass(name, "float32", a=a, b=b, sum=total, divisor=divisor)

    contenders: dict[str, gpu.Step] = {OURS: ours}
    if gpu.has_torch():
        import torch

        torch_total = torch.zeros(size, device="cuda")
        torch_a, torch_b = torch.from_dlpack(a), torch.from_dlpack(b)
        contenders[TORCH] = {
            "add": lambda _: torch_total.add_(torch_a),
            "add_two": lambda _: torch_total.add_(torch_a).add_(torch_b),
            "divide": lambda _: torch_total.div_(divisor),
        }[name]
    point = {"pass": name, "floats": size}
    return gpu.race(contenders, point, rounds, ARRAYS[name] * 4 * size)


def measure(quick: bool) -> tuple[list[Measurement], list[Verdict]]:
    """All passes and sizes that fit, and what was to be reached."""
    measurements: list[Measurement] = []
    for size in [MILLION] if quick else SIZES:
        # Two sums, two gradients, the copy's two arrays.
        if gpu.release() < 4 * 4 * size + (3 << 30):
            print(f"{size:,} floats: left out, there is not the memory")
            continue
        for name in ARRAYS:
            measurements += measure_pass(name, size, 2 if quick else gpu.ROUNDS)
    verdicts = [*gpu.share_of_copy(measurements, OURS, 0.9)]
    return measurements, verdicts + times_faster(measurements, OURS, TORCH, 1)


if __name__ == "__main__":
    sys.exit(
        gpu.run(
            "Dense accumulators on a GPU",
            "gpu_accumulator",
            gpu_harness.BUILD,
            check_against_numpy,
            {"Dense sums": measure},
            gpu_harness.missing(),
        )
    )
