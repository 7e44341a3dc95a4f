"""The CUDA kernels beside PyTorch's: AdamAsync, and sums of dense gradients.

    python benchmarks/gpu.py             all sizes that the memory holds
    python benchmarks/gpu.py --quick     tiny ones: does everything work?

This needs a GPU, nvcc, CMake, CuPy and ml_dtypes, and no TensorFlow. It uses PyTorch if
that is installed. Before anything is timed, the kernels are compared with NumPy.
Everything is in float.

Bytes are those that have to be read and written at least: for a dense step of AdamAsync
var, m and v twice and the gradient once; for a sparse one the same for each distinct
row, and the gradient and the indices once. Batches of sparse gradients rotate, and
there is a copy before each turn, so that none is in the cache.

The passes of a dense accumulator are timed: adding one gradient, adding two at a time
(which is what it does with gradients that nobody else has), and the mean. PyTorch adds
two gradients by `add_` twice.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Iterator

import numpy as np
from harness import gpu, gradients
from harness.benchmark import Measurement, Point, Verdict, times_faster
from harness.gpu import kernels

OURS, TORCH = "tf_syncrep", "torch"
FUSED, SPARSE = "torch Adam(fused=True)", "torch SparseAdam"
MILLION = 1_000_000
DENSE_SIZES = [32 * MILLION, 128 * MILLION, 512 * MILLION, 1000 * MILLION]
# Arrays that are read or written by each pass of a sum.
ARRAYS = {"add": 3, "add_two": 4, "divide": 2}

# Tables and batches of their rows.
ROWS = (MILLION, 10 * MILLION, 100 * MILLION)
WIDTHS = (16, 64, 128)
INDICES = (4096, 65536, MILLION)
DISTRIBUTIONS = ("unique", "uniform", "zipf(1.1)")
# Each step takes others of these.
BATCHES = 4
FLOAT = np.dtype(np.float32)


def check_against_numpy() -> None:
    """Compares a dense step, a sparse one and a mean, before anything is measured."""
    import cupy

    state = kernels.random_state(1, [5000, 64], "float32")
    grad = kernels.random_array(2, [5000, 64], FLOAT)
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
    arrays = [kernels.random_array(seed, [100_003], FLOAT) for seed in range(3)]
    total, *rest = (kernels.to_gpu(array) for array in arrays)
    kernels.dense_pass("add_two", "float32", a=rest[0], b=rest[1], sum=total)
    kernels.dense_pass("divide", "float32", sum=total, divisor=3.0)
    expected = (arrays[0] + arrays[1] + arrays[2]) / np.float32(3)
    np.testing.assert_array_equal(
        kernels.to_host(total, arrays[0]).view(np.uint32), expected.view(np.uint32)
    )


def _variable(size: int) -> kernels.AdamAsync:
    """A float variable of zeros on the GPU."""
    import cupy

    memory = [cupy.zeros(size, np.uint32) for _ in range(3)]
    powers = [kernels.to_gpu(np.array(x, np.float32)) for x in (0.9, 0.99)]
    return kernels.AdamAsync(kernels.reference.State(*memory, *powers), "float32")


def dense_step(size: int, rounds: int) -> list[Measurement]:
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


def points(quick: bool) -> Iterator[Point]:
    """All tables and batches; those that share batches come one after the other."""
    for rows in [10_000] if quick else ROWS:
        for distribution in DISTRIBUTIONS:
            for count in [1000] if quick else INDICES:
                for width in [64] if quick else WIDTHS:
                    yield {
                        "rows": rows,
                        "width": width,
                        "indices": count,
                        "distribution": distribution,
                    }


@functools.lru_cache(maxsize=1)
def _batches(distribution: str, rows: int, count: int) -> tuple[np.ndarray, ...]:
    """BATCHES arrays of indices, int64."""
    if distribution == "unique":
        rng = np.random.default_rng(4)
        return tuple(rng.choice(rows, count, replace=False) for _ in range(BATCHES))
    sampler = _sampler(distribution, rows)
    return tuple(sampler.draw(count) for _ in range(BATCHES))


# For a hundred million rows it takes a while to make one.
@functools.lru_cache(maxsize=1)
def _sampler(distribution: str, rows: int) -> gradients.RowSampler:
    return gradients.RowSampler(distribution, rows, np.random.default_rng(4))


def sparse_step(point: Point, rounds: int, with_torch: bool) -> list[Measurement]:
    """All contenders on one table."""
    import cupy

    rows, width, count = point["rows"], point["width"], point["indices"]
    batches = _batches(point["distribution"], rows, count)
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


def dense_pass(name: str, size: int, rounds: int) -> list[Measurement]:
    """All contenders on one pass of a sum."""
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


def measure_dense_steps(quick: bool) -> tuple[list[Measurement], list[Verdict]]:
    """All sizes that fit, and the targets."""
    measurements: list[Measurement] = []
    for size in [MILLION] if quick else DENSE_SIZES:
        # Two contenders with three arrays each, and a gradient.
        if gpu.has_memory(7 * 4 * size, {"floats": size}):
            measurements += dense_step(size, 2 if quick else gpu.ROUNDS)
    verdicts = [*gpu.share_of_copy(measurements, OURS, 0.9)]
    return measurements, verdicts + times_faster(measurements, OURS, FUSED, 1)


def measure_sparse_steps(quick: bool) -> tuple[list[Measurement], list[Verdict]]:
    """All tables that fit, and the targets."""
    measurements: list[Measurement] = []
    for point in points(quick):
        table = 4 * point["rows"] * point["width"]
        batch = 4 * point["indices"] * point["width"]
        ours = 3 * table + BATCHES * batch
        if not gpu.has_memory(ours, point):
            continue
        # It makes several more of a batch.
        with_torch = gpu.has_torch() and gpu.has_memory(
            ours + 3 * table + 8 * batch, point, SPARSE
        )
        measurements += sparse_step(point, 2 if quick else gpu.ROUNDS, with_torch)
    wanted = {"width": 64, "indices": MILLION, "distribution": "unique"}
    large = [m for m in measurements if {**m.point, **wanted} == m.point]
    verdicts = [*gpu.share_of_copy(large, OURS, 0.6)]
    return measurements, verdicts + times_faster(measurements, OURS, SPARSE, 10)


def measure_sums(quick: bool) -> tuple[list[Measurement], list[Verdict]]:
    """All passes and sizes that fit, and the targets."""
    measurements: list[Measurement] = []
    for size in [MILLION] if quick else DENSE_SIZES:
        for name in ARRAYS:
            # Two sums and two gradients.
            if gpu.has_memory(4 * 4 * size, {"pass": name, "floats": size}):
                measurements += dense_pass(name, size, 2 if quick else gpu.ROUNDS)
    verdicts = [*gpu.share_of_copy(measurements, OURS, 0.9)]
    return measurements, verdicts + times_faster(measurements, OURS, TORCH, 1)


if __name__ == "__main__":
    sys.exit(
        gpu.run(
            check_against_numpy,
            {
                "AdamAsync, dense": measure_dense_steps,
                "AdamAsync, sparse": measure_sparse_steps,
                "Sums of dense gradients": measure_sums,
            },
        )
    )
