"""Checks of the arguments that Keras' callback and v1's hook have in common."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from typing import Any

from tf_syncrep.python.base.arguments import as_python, check_count, check_positive


@dataclasses.dataclass(frozen=True)
class Options:
    """How checkpoints are written.

    `full_every`: every k-th checkpoint is full, and 1 makes all full; the others hold
    the rows that have changed since the checkpoint before. `max_kept_bytes`: how many
    bytes of overwritten rows a task may keep. `max_bytes_per_sec`: how fast a task may
    write; None for no limit.
    """

    keep: int = 1
    full_every: int = 1
    max_kept_bytes: int = 2**28
    max_bytes_per_sec: float | None = None

    def __post_init__(self):
        for name in ("keep", "full_every", "max_kept_bytes"):
            object.__setattr__(self, name, check_count(name, getattr(self, name)))
        if (speed := self.max_bytes_per_sec) is not None:
            speed = check_positive("max_bytes_per_sec", speed)
            object.__setattr__(self, "max_bytes_per_sec", speed)


def check_queues(queues: Any) -> dict[str, Any]:
    """Checks the work queues that are saved in checkpoints.

    `queues`: the queues by name, or None for none. Raises ValueError: `queues` is not a
    dict of work queues by name.
    """
    is_right = queues is None or (
        isinstance(queues, Mapping)
        and all(
            isinstance(name, str) and hasattr(queue, "save")
            for name, queue in queues.items()
        )
    )
    if not is_right:
        raise ValueError(
            f"`work_queues` must be WorkQueues by name. Received: work_queues={queues}"
        )
    return dict(queues or {})


def check_state(state: Mapping[str, Any] | None) -> dict[str, Any]:
    """Checks the state that is saved beside variables.

    `state`: values by name; None for nothing. Raises ValueError: JSON cannot hold the
    state.
    """
    try:
        return json.loads(json.dumps(dict(state or {}), default=_number))
    except (TypeError, ValueError) as error:
        raise ValueError(
            "`state` must be a value that JSON can hold. "
            f"Received: state={state} ({error})"
        ) from error


def _number(value: Any) -> Any:
    """Converts NumPy's numbers for JSON, which calls this for values it cannot hold."""
    number = as_python(value)
    if number is value:
        raise TypeError(f"{type(value).__name__} is not a number")
    return number
