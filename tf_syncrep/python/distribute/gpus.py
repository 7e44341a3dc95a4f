"""Which of a machine's GPUs each of its tasks sees, by CUDA's own variable."""

from __future__ import annotations

import itertools
import os
import re
import subprocess
from collections.abc import Mapping, Sequence

VISIBLE_VARIABLE = "CUDA_VISIBLE_DEVICES"
# CUDA reads the variable up to the first thing that is none of these.
_NAME = re.compile(r"\d+|(GPU|MIG)-\S+")
_LIST_COMMAND = ("nvidia-smi", "--query-gpu=uuid", "--format=csv,noheader")
_LIST_SECS = 20.0


def of_machine(environ: Mapping[str, str] = os.environ) -> list[str]:
    """Returns the names of the GPUs that a process would see with this environment.

    Where the variable does not say, those that NVIDIA's `nvidia-smi` lists; none where
    there is no such program.
    """
    named = environ.get(VISIBLE_VARIABLE)
    if named is not None:
        names = [name.strip() for name in named.split(",")]
    else:
        try:
            listed = subprocess.run(
                _LIST_COMMAND,
                capture_output=True,
                text=True,
                check=True,
                timeout=_LIST_SECS,
            )
        except (OSError, subprocess.SubprocessError):
            return []
        names = listed.stdout.split()
    return list(itertools.takewhile(_NAME.fullmatch, names))


def shares(
    gpus: Sequence[str], tasks: Sequence[str], per_task: int | None
) -> dict[str, str]:
    """Returns what the variable is to say in each of the tasks that compute.

    Empty where there is nothing to share out. `per_task`: how many each has for itself;
    None for one, which several tasks share if there are fewer GPUs than tasks.
    """
    if per_task is None:
        return {
            task: gpus[number % len(gpus)] for number, task in enumerate(tasks) if gpus
        }
    return {
        task: ",".join(gpus[number * per_task : (number + 1) * per_task])
        for number, task in enumerate(tasks)
    }
