"""AdamAsync on a GPU: the CUDA kernels beside PyTorch's optimizers.

    python benchmarks/gpu_adam_async.py             all sizes that the memory holds
    python benchmarks/gpu_adam_async.py --quick     tiny ones: does everything work?

This needs a GPU, nvcc, CMake, CuPy and ml_dtypes, and no TensorFlow. It uses PyTorch if
that is installed. Before anything is timed, the kernels are compared with the float64
twin. Bytes are those that a step has to read and write at least: for a dense one var, m
and v twice and the gradient once; for a sparse one the same for each distinct row, and
the gradient and the indices once. Batches of sparse gradients rotate, and there is a
copy before each turn, so that none is in the cache. Everything is in float.
"""

from __future__ import annotations

import sys

import numpy as np
from harness import gpu, row_batches
from harness.benchmark import Measurement, Point, Verdict, times_faster
from harness.gpu import kernels

OURS, FUSED, SPARSE = "tf_syncrep", "torch Adam(fused=True)", "torch SparseAdam"
MILLION = 1_000_000
DENSE_SIZES = [32 * MILLION, 128 * MILLION, 512 * MILLION, 1000 * MILLION]


def check_against_the_twin() -> None:
    """Compares a dense and a sparse step with the twin, before anything is measured."""
    import cupy

    state = kernels.random_state(1, [5000, 64], "float32")
    grad = kernels.random_array(2, [5000, 64], np.dtype(np.float32))
    dense = kernels.AdamAsync.of(state, "float32")
    dense.dense(kernels.to_gpu(grad))
    kernels.assert_close(dense.read(state), kernels.expected_dense(state, grad, "adam"))
    indices = (np.random.default_rng(3).zipf(1.2, 5000) - 1) % 5000
    grad = np.abs(grad) / 64
    sparse = kernels.AdamAsync.of(state, "float32")
    sparse.sparse(kernels.to_gpu(grad), cupy.asarray(indices), 64)
    kernels.assert_close(
        sparse.read(state),
        kernels.expected_sparse(state, grad, indices, "adam"),
        tolerance=1e-3,
    )


def _variable(size: int) -> kernels.AdamAsync:
    """A float variable of zeros on the GPU."""
    import cupy

    memory = [cupy.zeros(size, np.uint32) for _ in range(3)]
    powers = [kernels.to_gpu(np.array(x, np.float32)) for x in (0.9, 0.99)]
    return kernels.AdamAsync(kernels.reference.State(*memory, *powers), "float32")


def dense(size: int, rounds: int) -> list[Measurement]:
    """All contenders on one dense variable."""
    import cupy

    ours = _variable(size)
    grad = cupy.random.standard_normal(size, np.float32)
    contenders: dict[str, gpu.Step] = {OURS: lambda _: ours.dense(grad)}
    if gpu.has_torch():
        import torch

        parameter = torch.zeros(size, device="cuda", requires_grad=True)
        parameter.grad = torch.from_dlpack(grad)
        fused = torch.optim.Adam([parameter], fused=True)
        contenders[FUSED] = lambda _: fused.step()
    return gpu.race(contenders, {"floats": size}, rounds, 7 * 4 * size)


def sparse(point: Point, rounds: int, with_torch: bool) -> list[Measurement]:
    """All contenders on one table."""
    import cupy

    rows, width, count = point["rows"], point["width"], point["indices"]
    batches = row_batches.of(point)
    distinct = sum(len(np.unique(batch)) for batch in batches) // len(batches)
    bytes_moved = 6 * 4 * width * distinct + count * (4 * width + 8)
    ours = _variable(rows * width)
    indices = [cupy.asarray(batch, np.int64) for batch in batches]
    grads = [cupy.random.standard_normal(count * width, np.float32) for _ in batches]

    def step(i: int) -> None:
        ours.sparse(grads[i % len(batches)], indices[i % len(batches)], width)

    contenders: dict[str, gpu.Step] = {OURS: step}
    if not with_torch:
        return gpu.race(contenders, point, rounds, bytes_moved)
    import torch

    table = torch.zeros(rows, width, device="cuda", requires_grad=True)
    sparse_adam = torch.optim.SparseAdam([table])
    torch_grads = [
        torch.sparse_coo_tensor(
            torch.from_dlpack(index)[None],
            torch.from_dlpack(grad.reshape(count, width)),
            (rows, width),
            check_invariants=False,
        )
        for index, grad in zip(indices, grads, strict=True)
    ]

    def torch_step(i: int) -> None:
        table.grad = torch_grads[i % len(batches)]
        sparse_adam.step()

    contenders[SPARSE] = torch_step
    return gpu.race(contenders, point, rounds, bytes_moved)


def measure_dense(quick: bool) -> tuple[list[Measurement], list[Verdict]]:
    """All sizes that fit, and the targets."""
    measurements: list[Measurement] = []
    for size in [MILLION] if quick else DENSE_SIZES:
        # Two contenders with three arrays each, and a gradient.
        if gpu.has_memory(7 * 4 * size, {"floats": size}):
            measurements += dense(size, 2 if quick else gpu.ROUNDS)
    verdicts = [*gpu.share_of_copy(measurements, OURS, 0.9)]
    return measurements, verdicts + times_faster(measurements, OURS, FUSED, 1)


def measure_sparse(quick: bool) -> tuple[list[Measurement], list[Verdict]]:
    """All tables that fit, and the targets."""
    measurements: list[Measurement] = []
    for point in row_batches.points(quick):
        table = 4 * point["rows"] * point["width"]
        batch = 4 * point["indices"] * point["width"]
        ours = 3 * table + row_batches.BATCHES * batch
        if not gpu.has_memory(ours, point):
            continue
        # It makes several more of a batch.
        with_torch = gpu.has_torch() and gpu.has_memory(
            ours + 3 * table + 8 * batch, point, SPARSE
        )
        measurements += sparse(point, 2 if quick else gpu.ROUNDS, with_torch)
    wanted = {"width": 64, "indices": MILLION, "distribution": "unique"}
    large = [m for m in measurements if {**m.point, **wanted} == m.point]
    verdicts = [*gpu.share_of_copy(large, OURS, 0.6)]
    return measurements, verdicts + times_faster(measurements, OURS, SPARSE, 10)


if __name__ == "__main__":
    sys.exit(
        gpu.run(
            "AdamAsync on a GPU",
            "gpu_adam_async",
            check_against_the_twin,
            {"Dense apply": measure_dense, "Sparse apply": measure_sparse},
        )
    )
