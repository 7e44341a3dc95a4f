"""Runs the benchmarks, prints tables, writes results.

    python benchmarks/run.py                    all of them
    python benchmarks/run.py sparse_apply ...   these
    python benchmarks/run.py --quick            tiny sizes: does everything work?

Each benchmark runs in a process of its own. Targets that are missed are shown and do
not change the exit status, which is 1 only if a contender fails or computes something
wrong.
"""

from __future__ import annotations

import argparse
import importlib
import multiprocessing
import os
import pathlib
import sys
import time
import traceback
from typing import Any

from harness import results, tables
from rich.console import Console
from rich.table import Table

HERE = pathlib.Path(__file__).parent
BENCHMARKS = (
    "sparse_apply",
    "dense_apply",
    "accumulator_sparse",
    "sync_cluster",
    "sync_backup",
    "keras_cluster",
    "sync_latency",
    "sync_staleness",
    "embedding_lookup",
    "embedding_cluster",
    "fit_cluster",
    "dynamic_table",
    "tls_cluster",
    "wire",
    "checkpoint",
    "publish",
    "movielens_scores",
)
# Only CPU kernels are measured, and TensorFlow's messages at its start are left out.
_ENVIRONMENT = {"CUDA_VISIBLE_DEVICES": "-1", "TF_CPP_MIN_LOG_LEVEL": "2"}


def run(name: str, quick: bool) -> dict[str, Any] | None:
    """Runs one benchmark in a process of its own; None if it failed."""
    context = multiprocessing.get_context("spawn")
    os.environ.update(_ENVIRONMENT)
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_measure, args=(name, quick, sender))
    process.start()
    sender.close()
    try:
        return receiver.recv()
    except EOFError:  # The process has ended, and has printed why.
        return None
    finally:
        process.join()


def _measure(name: str, quick: bool, sender) -> None:
    """The body of a measuring process."""
    tests = HERE.parent / "tests"
    sys.path += [str(HERE), str(tests / "helpers"), str(tests / "twins")]
    try:
        benchmark = importlib.import_module(name).BENCHMARK
        sender.send(results.measure(benchmark, quick))
    except Exception:
        traceback.print_exc()
        sys.exit(1)


def show(console: Console, result: dict[str, Any], quick: bool) -> None:
    """Prints a result; the targets say nothing about tiny sizes."""
    console.print(result["title"], style="bold")
    console.print(tables.machine_line(result["machine"]), style="dim")
    for table in tables.tables(result):
        shown = Table(title=table.heading, title_justify="left")
        for column in table.columns:
            shown.add_column(
                column, justify="right" if column else "left", no_wrap=True
            )
        for row in table.rows:
            shown.add_row(*row)
        console.print(shown)
    for verdict in [] if quick else result["verdicts"]:
        style = "green" if verdict["met"] else "red"
        console.print(tables.verdict_line(verdict), style=style, highlight=False)


def main() -> int:
    """Reads the command line; returns the exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(BENCHMARKS))
    parser.add_argument("--quick", action="store_true", help="tiny sizes, no results")
    parser.add_argument(
        "--output",
        type=pathlib.Path,
        help="folder for the results (benchmarks/results; none with --quick)",
    )
    options = parser.parse_args()
    unknown = [name for name in options.names if name not in BENCHMARKS]
    if unknown:
        parser.error(f"there is no benchmark {unknown[0]!r}; there are {BENCHMARKS}")
    output = options.output or (None if options.quick else HERE / "results")

    console = Console() if sys.stdout.isatty() else Console(width=120)
    failed = []
    for name in options.names or BENCHMARKS:
        console.rule(name)
        begin = time.monotonic()
        result = run(name, options.quick)
        if result is None:
            failed.append(name)
            console.print(f"[red]{name} failed")
            continue
        show(console, result, options.quick)
        console.print(f"{time.monotonic() - begin:.0f} s", style="dim")
        if output:
            results.write(result, output / f"{name}.json")
    if failed:
        console.print(f"[red]failed: {', '.join(failed)}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
