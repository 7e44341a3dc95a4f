"""The processor time of other processes."""

from __future__ import annotations

import os
import pathlib


def seconds(pid: int) -> float:
    """Returns the processor time that a process has used, of all its threads."""
    stat = pathlib.Path(f"/proc/{pid}/stat").read_text()
    # These are user and system time among the fields after the command's name.
    ticks = sum(map(int, stat.rpartition(")")[2].split()[11:13]))
    return ticks / os.sysconf("SC_CLK_TCK")
