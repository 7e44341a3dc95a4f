"""AdamAsync on a GPU: the CUDA kernels beside PyTorch's optimizers.

    python benchmarks/gpu_adam_async.py             all sizes that the memory holds
    python benchmarks/gpu_adam_async.py --quick     tiny ones: does everything work?

Wants a GPU, nvcc, CMake, CuPy and ml_dtypes; TensorFlow takes no part, and PyTorch
where it is installed. Before anything is timed, the kernels are held to the float64
twin. Times are of CUDA events around one step in the default stream, launches included,
contenders taking turns; in each turn the same events time a copy of memory far larger
than the cache. Bytes are those that a step
has to read and write at the least: of a dense one var, m and v twice and the gradient
once; of a sparse one the same for each different row, gradient and indices once.
Batches of sparse gradients rotate, so that none is in the cache. All in float.
"""

from __future__ import annotations

import argparse
import datetime
import importlib.util
import pathlib
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
from harness import gradients, results
from harness.benchmark import Measurement, Point, Verdict, describe, times_faster

HERE = pathlib.Path(__file__).parent
sys.path.append(str(HERE.parent / "tests" / "testing"))

import adam_async_reference as reference  # noqa: E402
import gpu_harness  # noqa: E402

OURS, FUSED, SPARSE = "tf_syncrep", "torch Adam(fused=True)", "torch SparseAdam"
ROUNDS = 30
MILLION = 1_000_000
DENSE_SIZES = [32 * MILLION, 128 * MILLION, 512 * MILLION, 1000 * MILLION]
TABLE_ROWS = [MILLION, 10 * MILLION, 100 * MILLION]
WIDTHS = [16, 64, 128]
INDICES = [4096, 65536, MILLION]
DISTRIBUTIONS = ["unique", "uniform", "zipf(1.1)"]
BATCHES = 4

Step = Callable[[int], Any]


class Copy:
    """A copy of memory that no cache holds."""

    def __init__(self):
        import cupy

        self._from = cupy.ones(256 << 20, np.float32)
        self._to = cupy.empty_like(self._from)

    def bandwidth(self) -> float:
        """Bytes per second, read and written together."""
        import cupy

        took = _seconds(lambda _: cupy.copyto(self._to, self._from), 0)
        return 2 * self._from.nbytes / took


def _seconds(step: Step, i: int) -> float:
    """How long the GPU is busy with a step."""
    import cupy

    begin, end = cupy.cuda.Event(), cupy.cuda.Event()
    begin.record()
    step(i)
    end.record()
    end.synchronize()
    return cupy.cuda.get_elapsed_time(begin, end) / 1e3


def race(
    contenders: dict[str, Step], point: Point, rounds: int, bytes_moved: int
) -> list[Measurement]:
    """Times the contenders in turns, and a copy in each of them."""
    copy = Copy()
    bandwidths: list[float] = []
    samples: dict[str, list[float]] = {name: [] for name in contenders}
    for step in contenders.values():
        for i in range(3):
            step(i)
    for i in range(rounds):
        bandwidths.append(copy.bandwidth())
        for name, step in contenders.items():
            samples[name].append(_seconds(step, i))
    bandwidth = float(np.median(bandwidths))
    return [
        Measurement(name, point, "s", times, bytes_moved, bandwidth)
        for name, times in samples.items()
    ]


def check_against_the_twin() -> None:
    """Holds one dense and one sparse step to the twin, before any figure is taken."""
    import cupy

    state = gpu_harness.random_state(1, [5000, 64], "float32")
    grad = gpu_harness.random_array(2, [5000, 64], np.dtype(np.float32))
    dense = gpu_harness.AdamAsync.of(state, "float32")
    dense.dense(gpu_harness.to_gpu(grad))
    gpu_harness.assert_close(
        dense.read(state), gpu_harness.expected_dense(state, grad, "adam")
    )
    indices = (np.random.default_rng(3).zipf(1.2, 5000) - 1) % 5000
    grad = np.abs(grad) / 64
    sparse = gpu_harness.AdamAsync.of(state, "float32")
    sparse.sparse(gpu_harness.to_gpu(grad), cupy.asarray(indices), 64)
    gpu_harness.assert_close(
        sparse.read(state),
        gpu_harness.expected_sparse(state, grad, indices, "adam"),
        tolerance=1e-3,
    )


def _variable(size: int) -> gpu_harness.AdamAsync:
    """A float variable of zeros on the GPU."""
    import cupy

    memory = [cupy.zeros(size, np.uint32) for _ in range(3)]
    powers = [gpu_harness.to_gpu(np.array(x, np.float32)) for x in (0.9, 0.99)]
    return gpu_harness.AdamAsync(reference.State(*memory, *powers), "float32")


def _has_torch() -> bool:
    return importlib.util.find_spec("torch") is not None


def _release() -> int:
    """Frees what is not used; returns how many bytes are free."""
    import cupy

    cupy.get_default_memory_pool().free_all_blocks()
    if _has_torch():
        import torch

        torch.cuda.empty_cache()
    return cupy.cuda.runtime.memGetInfo()[0]


def dense(size: int, rounds: int) -> list[Measurement]:
    """All contenders on one dense variable."""
    import cupy

    ours = _variable(size)
    grad = cupy.random.standard_normal(size, np.float32)
    contenders: dict[str, Step] = {OURS: lambda _: ours.dense(grad)}
    if _has_torch():
        import torch

        parameter = torch.zeros(size, device="cuda", requires_grad=True)
        parameter.grad = torch.from_dlpack(grad)
        fused = torch.optim.Adam([parameter], fused=True)
        contenders[FUSED] = lambda _: fused.step()
    return race(contenders, {"floats": size}, rounds, 7 * 4 * size)


def draw(distribution: str, rows: int, count: int) -> Iterator[np.ndarray]:
    """Indices of one batch after the other."""
    rng = np.random.default_rng(4)
    if distribution == "unique":
        while True:
            yield rng.choice(rows, count, replace=False, shuffle=True)
    sampler = gradients.RowSampler(distribution, rows, rng)
    while True:
        yield sampler.draw(count)


def sparse(point: Point, rounds: int) -> list[Measurement]:
    """All contenders on one table."""
    import cupy

    rows, width, count = point["rows"], point["width"], point["indices"]
    source = draw(point["distribution"], rows, count)
    batches = [next(source) for _ in range(BATCHES)]
    distinct = sum(len(np.unique(batch)) for batch in batches) // BATCHES
    bytes_moved = 6 * 4 * width * distinct + count * (4 * width + 8)
    ours = _variable(rows * width)
    indices = [cupy.asarray(batch, np.int64) for batch in batches]
    grads = [cupy.random.standard_normal(count * width, np.float32) for _ in batches]

    def step(i: int) -> None:
        ours.sparse(grads[i % BATCHES], indices[i % BATCHES], width)

    contenders: dict[str, Step] = {OURS: step}
    if not _has_torch():
        return race(contenders, point, rounds, bytes_moved)
    import torch

    table = torch.zeros(rows, width, device="cuda", requires_grad=True)
    sparse_adam = torch.optim.SparseAdam([table])
    torch_grads = [
        torch.sparse_coo_tensor(
            torch.from_dlpack(index)[None],
            torch.from_dlpack(grad.reshape(count, width)),
            (rows, width),
        )
        for index, grad in zip(indices, grads, strict=True)
    ]

    def torch_step(i: int) -> None:
        table.grad = torch_grads[i % BATCHES]
        sparse_adam.step()

    contenders[SPARSE] = torch_step
    return race(contenders, point, rounds, bytes_moved)


def share_of_copy(
    measurements: Sequence[Measurement], reach: float
) -> Iterator[Verdict]:
    """One verdict for each point: ours reaches this share of the copy's bandwidth."""
    for m in measurements:
        if m.contender == OURS and m.bytes_moved and m.copy_bandwidth:
            share = m.bytes_moved / m.median / m.copy_bandwidth
            yield Verdict(
                f"at least {reach:.0%} of copy bandwidth ({describe(m.point)})",
                share,
                share >= reach,
            )


def measure_dense(quick: bool) -> tuple[list[Measurement], list[Verdict]]:
    """All sizes that fit, and what was to be reached."""
    measurements: list[Measurement] = []
    for size in [MILLION] if quick else DENSE_SIZES:
        # Two contenders with three arrays each, a gradient, the copy's two.
        if _release() < 7 * 4 * size + (3 << 30):
            print(f"{size:,} floats: left out, there is not the memory")
            continue
        measurements += dense(size, 2 if quick else ROUNDS)
    verdicts = [*share_of_copy(measurements, 0.9)]
    return measurements, verdicts + times_faster(measurements, OURS, FUSED, 1)


def measure_sparse(quick: bool) -> tuple[list[Measurement], list[Verdict]]:
    """All tables that fit, and what was to be reached."""
    measurements: list[Measurement] = []
    points = [
        {"rows": rows, "width": width, "indices": count, "distribution": distribution}
        for rows in ([10_000] if quick else TABLE_ROWS)
        for width in ([64] if quick else WIDTHS)
        for count in ([1000] if quick else INDICES)
        for distribution in DISTRIBUTIONS
    ]
    for point in points:
        table = 4 * point["rows"] * point["width"]
        batch = 4 * point["indices"] * point["width"]
        # SparseAdam needs several batches more.
        if _release() < 6 * table + (BATCHES + 8) * batch + (3 << 30):
            print(f"{describe(point)}: left out, there is not the memory")
            continue
        measurements += sparse(point, 2 if quick else ROUNDS)
    wanted = {"width": 64, "indices": MILLION, "distribution": "unique"}
    large = [m for m in measurements if {**m.point, **wanted} == m.point]
    verdicts = [*share_of_copy(large, 0.6)]
    return measurements, verdicts + times_faster(measurements, OURS, SPARSE, 10)


def machine() -> dict[str, Any]:
    """What a reader of the figures has to know."""
    import cupy

    properties = cupy.cuda.runtime.getDeviceProperties(0)
    return {
        "date": datetime.date.today().isoformat(),
        "gpu": properties["name"].decode(),
        "driver": cupy.cuda.runtime.driverGetVersion(),
        "cuda": cupy.cuda.runtime.runtimeGetVersion(),
        "torch": importlib.import_module("torch").__version__ if _has_torch() else None,
    }


def show(title: str, measurements: list[Measurement], verdicts: list[Verdict]) -> None:
    """Prints a table, ready for a page, and the verdicts."""
    print(f"\n### {title}\n\n| point | contender | median | quartiles | of copy |")
    print("|---|---|---:|---:|---:|")
    for m in measurements:
        assert m.bytes_moved
        assert m.copy_bandwidth
        low, high = (1e3 * quartile for quartile in m.quartiles)
        share = m.bytes_moved / m.median / m.copy_bandwidth
        print(
            f"| {describe(m.point)} | {m.contender} | {1e3 * m.median:.3f} ms "
            f"| {low:.3f} to {high:.3f} | {share:.0%} |"
        )
    print()
    for verdict in verdicts:
        met = "met" if verdict.met else "MISSED"
        print(f"- {met}: {verdict.claim}: {verdict.value:.3g}")


def main() -> int:
    """Returns the exit status, which is 1 only if a step computes something wrong."""
    parser = argparse.ArgumentParser(description="AdamAsync on a GPU")
    parser.add_argument("--quick", action="store_true", help="tiny sizes")
    parser.add_argument(
        "--out",
        type=pathlib.Path,
        default=gpu_harness.BUILD / "gpu_adam_async.json",
        help="where the figures go",
    )
    arguments = parser.parse_args()
    reason = gpu_harness.missing()
    if reason:
        print(f"Nothing is measured: {reason}")
        return 0
    facts = machine()
    print(", ".join(f"{key} {value}" for key, value in facts.items()))
    check_against_the_twin()
    all_measurements: list[Measurement] = []
    all_verdicts: list[Verdict] = []
    for title, measure in (
        ("Dense apply", measure_dense),
        ("Sparse apply", measure_sparse),
    ):
        measurements, verdicts = measure(arguments.quick)
        show(title, measurements, verdicts)
        all_measurements += measurements
        all_verdicts += verdicts
    results.write(
        {
            "title": "AdamAsync on a GPU",
            "machine": facts,
            "measurements": [m.to_json() for m in all_measurements],
            "verdicts": [
                {"claim": v.claim, "value": v.value, "met": bool(v.met)}
                for v in all_verdicts
            ],
        },
        arguments.out,
    )
    print(f"\nWritten: {arguments.out}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
