"""A gate's counters in Python's own types."""

import re
from typing import Any

import numpy as np

_NANOSECONDS = 1e-9

# A worker's phases, by the gate's numbers.
PHASES = ("idle", "waiting", "computing", "pushing")


def to_dict(names, values, devices, device_names, device_values) -> dict[str, Any]:
    """Makes a dictionary of the outputs of `sync_gate_stats`."""
    stats: dict[str, Any] = {
        name.decode(): int(value) for name, value in zip(names, values, strict=True)
    }
    stats["workers"] = {
        device.decode(): _worker_dict(device_names, row)
        for device, row in zip(devices, np.asarray(device_values), strict=True)
    }
    return stats


def to_line(stats: dict[str, Any]) -> str:
    """Describes the counters, as `to_dict` returns them, in one line."""
    shares = ", ".join(
        f"{task_name(device)} {worker['contributed']} "
        f"(waited {worker['waited_secs']:.1f} s)"
        for device, worker in stats["workers"].items()
    )
    return (
        f"step {stats['step']}: {stats['updates']} updates of {stats['applied']} "
        f"gradients; dropped {stats['late']} late, {stats['stale']} stale, "
        f"{stats['rejected']} rejected, {stats['voided']} void; "
        f"{stats['expired']} leases expired; by worker: {shares}"
    )


def to_scalars(stats: dict[str, Any]) -> dict[str, float]:
    """Flattens the counters, as `to_dict` returns them, for summaries."""
    scalars = {
        f"sync/{name}": float(value)
        for name, value in stats.items()
        if name not in ("workers", "generation", "closed", "round", "step")
    }
    for device, worker in stats["workers"].items():
        for name, value in worker.items():
            if not name.startswith("phase"):  # Phases describe only this moment.
                scalars[f"sync/{name}/{task_name(device)}"] = float(value)
    scalars["sync/waited_secs"] = sum(
        worker.get("waited_secs", 0.0) for worker in stats["workers"].values()
    )
    return scalars


def task_name(device: str) -> str:
    """Shortens the name of a worker's task."""
    match = re.fullmatch(r"/job:([^/]+)/replica:\d+/task:(\d+)", device)
    return f"{match[1]}:{match[2]}" if match else device


def _worker_dict(names, row) -> dict[str, Any]:
    worker: dict[str, Any] = {
        name.decode(): int(value) for name, value in zip(names, row, strict=True)
    }
    for name in ("waited", "held_up", "phase"):
        worker[f"{name}_secs"] = worker.pop(f"{name}_ns") * _NANOSECONDS
    worker["live"] = bool(worker["live"])
    worker["phase"] = PHASES[worker["phase"]]
    return worker
