"""Runs one benchmark in this process, and keeps results as JSON."""

from __future__ import annotations

import json
import pathlib
from typing import Any

from . import machine
from .benchmark import Benchmark, Measurement

ROUNDS = 15
QUICK_ROUNDS = 2


def measure(benchmark: Benchmark, quick: bool) -> dict[str, Any]:
    """Measures all points of a benchmark."""
    measurements: list[Measurement] = []
    for point in benchmark.points(quick):
        measurements += benchmark.measure(point, QUICK_ROUNDS if quick else ROUNDS)
    return {
        "title": benchmark.title,
        "machine": machine.facts(),
        "measurements": [m.to_json() for m in measurements],
        "verdicts": [
            {"claim": v.claim, "value": v.value, "met": bool(v.met)}
            for v in benchmark.judge(measurements)
        ],
    }


def write(result: dict[str, Any], path: pathlib.Path) -> None:
    """Writes a result, a line for each measurement and verdict.

    What a file has of libraries that are not measured any more stays.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.exists():
        result = {**json.loads(path.read_text()), **result}
    members = ",\n".join(
        f"{json.dumps(key)}: {_dump(value)}" for key, value in _rounded(result).items()
    )
    path.write_text(f"{{\n{members}\n}}\n")


def read(path: pathlib.Path) -> dict[str, Any]:
    """Reads a result that `write` has written, with what others measured once."""
    result = json.loads(path.read_text())
    result["measurements"] += result.get("kept", [])
    return result


def _dump(value: Any) -> str:
    if isinstance(value, list):
        return "[\n" + ",\n".join(map(json.dumps, value)) + "\n]"
    return json.dumps(value)


def _rounded(value: Any) -> Any:
    """The same with floats of four digits, which is more than they are accurate to."""
    if isinstance(value, float):
        return float(f"{value:.4g}")
    if isinstance(value, dict):
        return {key: _rounded(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_rounded(item) for item in value]
    return value
