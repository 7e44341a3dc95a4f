"""Accumulators on a GPU: the CUDA kernels beside PyTorch's arithmetic.

    python benchmarks/gpu_accumulator.py             all sizes that the memory holds
    python benchmarks/gpu_accumulator.py --quick     tiny ones: does everything work?

This needs a GPU, nvcc, CMake, CuPy and ml_dtypes, and no TensorFlow. It uses PyTorch if
that is installed. Before anything is timed, the kernels are compared with NumPy.

The passes of a dense accumulator are timed: adding one gradient, adding two at a time
(which is what it does with gradients that nobody else has), and the mean. PyTorch adds
two gradients by `add_` twice.

Of a sparse one a whole update is timed: four gradients are pushed, each of which waits
until its indices are known to be good, and their mean is taken, for which the number of
distinct rows is read back. PyTorch puts the four into one sparse tensor, coalesces it
and divides; it checks no index.

Bytes are those that have to be read and written at least: for a sparse update the
gradients once, and the result once. Everything is in float.
"""

from __future__ import annotations

import sys

import numpy as np
from harness import gpu, row_batches
from harness.benchmark import Measurement, Point, Verdict, times_faster
from harness.gpu import kernels

OURS, TORCH, COALESCE = "tf_syncrep", "torch", "torch coalesce"
MILLION = 1_000_000
SIZES = [32 * MILLION, 128 * MILLION, 512 * MILLION, 1000 * MILLION]
# Arrays that are read or written by each pass.
ARRAYS = {"add": 3, "add_two": 4, "divide": 2}
FLOAT = np.dtype(np.float32)


def check_against_numpy() -> None:
    """Compares means of gradients with NumPy's, before anything is measured."""
    arrays = [kernels.random_array(seed, [100_003], FLOAT) for seed in range(3)]
    total, *rest = (kernels.to_gpu(array) for array in arrays)
    kernels.dense_pass("add_two", "float32", a=rest[0], b=rest[1], sum=total)
    kernels.dense_pass("divide", "float32", sum=total, divisor=3.0)
    expected = (arrays[0] + arrays[1] + arrays[2]) / np.float32(3)
    np.testing.assert_array_equal(
        kernels.to_host(total, arrays[0]).view(np.uint32), expected.view(np.uint32)
    )
    rows, width = 5000, 64
    point = {"rows": rows, "indices": 20_000, "distribution": "zipf(1.1)"}
    gradients = [
        (
            indices,
            np.abs(kernels.random_array(seed, [len(indices), width], FLOAT)),
        )
        for seed, indices in enumerate(row_batches.of(point))
    ]
    mean = np.zeros([rows, width])
    for indices, values in gradients:
        np.add.at(mean, indices, values / len(gradients))
    for may_be_kept in (False, True):
        taken = kernels.sparse_sum(
            gradients, "float32", "CMEAN", rows, may_be_kept=may_be_kept
        )
        touched = np.unique(np.concatenate([indices for indices, _ in gradients]))
        assert taken.rows is not None
        assert taken.values is not None
        np.testing.assert_array_equal(taken.rows, touched)
        np.testing.assert_allclose(taken.values, mean[touched], rtol=1e-4)


def dense(name: str, size: int, rounds: int) -> list[Measurement]:
    """All contenders on one pass."""
    import cupy

    total = cupy.zeros(size, np.float32)
    a = cupy.random.standard_normal(size, np.float32)
    b = cupy.random.standard_normal(size, np.float32)
    # It is not 1, by which nobody has to divide, but near it, so that sums stay in
    # range.
    divisor = 1.0009765625

    def ours(_: int) -> None:
        kernels.dense_pass(name, "float32", a=a, b=b, sum=total, divisor=divisor)

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


def sparse(point: Point, rounds: int) -> list[Measurement]:
    """All contenders on one update."""
    import cupy

    rows, width, count = point["rows"], point["width"], point["indices"]
    batches = row_batches.of(point)
    pushed = len(batches)
    distinct = len(np.unique(np.concatenate(batches)))
    bytes_moved = (pushed * count + distinct) * (4 * width + 8)
    indices = [cupy.asarray(batch, np.int64) for batch in batches]
    grads = [cupy.random.standard_normal(count * width, np.float32) for _ in batches]
    accumulator = kernels.SparseGradients(
        indices, grads, width, "float32", "CMEAN", rows, may_be_kept=True
    )
    contenders: dict[str, gpu.Step] = {OURS: lambda _: accumulator.reduce()}
    if gpu.has_torch():
        import torch

        torch_indices = [torch.from_dlpack(array) for array in indices]
        torch_grads = [torch.from_dlpack(g.reshape(count, width)) for g in grads]

        def coalesce(_: int) -> None:
            summed = torch.sparse_coo_tensor(
                torch.cat(torch_indices)[None],
                torch.cat(torch_grads),
                (rows, width),
                check_invariants=False,
            ).coalesce()
            summed.values().div_(pushed)

        contenders[COALESCE] = coalesce
    return gpu.race(contenders, {**point, "pushes": pushed}, rounds, bytes_moved)


def measure_dense(quick: bool) -> tuple[list[Measurement], list[Verdict]]:
    """All passes and sizes that fit, and the targets."""
    measurements: list[Measurement] = []
    for size in [MILLION] if quick else SIZES:
        for name in ARRAYS:
            # Two sums and two gradients.
            if gpu.has_memory(4 * 4 * size, {"pass": name, "floats": size}):
                measurements += dense(name, size, 2 if quick else gpu.ROUNDS)
    verdicts = [*gpu.share_of_copy(measurements, OURS, 0.9)]
    return measurements, verdicts + times_faster(measurements, OURS, TORCH, 1)


def measure_sparse(quick: bool) -> tuple[list[Measurement], list[Verdict]]:
    """All updates that fit, and the targets."""
    measurements: list[Measurement] = []
    for point in row_batches.points(quick):
        batch = 4 * point["indices"] * point["width"]
        # Gradients, and for each contender a copy of them and a result.
        if gpu.has_memory(5 * row_batches.BATCHES * batch, point):
            measurements += sparse(point, 2 if quick else gpu.ROUNDS)
    return measurements, times_faster(measurements, OURS, COALESCE, 1)


if __name__ == "__main__":
    sys.exit(
        gpu.run(
            "Accumulators on a GPU",
            "gpu_accumulator",
            check_against_numpy,
            {"Dense sums": measure_dense, "Sparse updates": measure_sparse},
        )
    )
