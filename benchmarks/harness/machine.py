"""Facts about the machine and this process; how fast memory is copied."""

from __future__ import annotations

import datetime
import os
import pathlib
import platform
import re
import time
from typing import Any

from . import native


def facts() -> dict[str, Any]:
    """The facts that a reader of the figures has to know about the machine."""
    import tensorflow as tf

    return {
        "date": datetime.date.today().isoformat(),
        "cpu": _cpu_model(),
        "cores": len(os.sched_getaffinity(0)),
        "avx512": "avx512f" in _cpu_flags(),
        "memory_gib": round(
            os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30
        ),
        "huge_pages": _first_match(
            "/sys/kernel/mm/transparent_hugepage/enabled", r"\[(\w+)\]"
        ),
        "python": platform.python_version(),
        "tensorflow": tf.__version__,
    }


class Copier:
    """Copies far more memory than a cache holds, with two threads."""

    _FLOATS = 2**25

    def __init__(self):
        self._from = native.Memory((self._FLOATS,))
        self._to = native.Memory((self._FLOATS,))

    def bandwidth(self) -> float:
        """Bytes per second, read and written together, of one copy."""
        begin = time.perf_counter()
        native.library().floor_copy(self._to.pointer, self._from.pointer, self._FLOATS)
        return 2 * 4 * self._FLOATS / (time.perf_counter() - begin)


def _cpu_model() -> str:
    return _first_match("/proc/cpuinfo", r"model name\s*:\s*(.*)")


def _cpu_flags() -> list[str]:
    return _first_match("/proc/cpuinfo", r"flags\s*:\s*(.*)").split()


def _first_match(path: str, pattern: str) -> str:
    try:
        found = re.search(pattern, pathlib.Path(path).read_text())
    except OSError:
        return ""
    return found.group(1) if found else ""
