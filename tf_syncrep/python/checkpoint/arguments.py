"""Checks of what Keras' callback and v1's hook are both made with."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from tf_syncrep.python.sync.arguments import (
    as_python,
    check_count,
    check_positive,
)

_DEFAULT_SECS = 600.0


def check_interval(**given: Any) -> tuple[float | None, int | None]:
    """Checks how often checkpoints are to be written.

    Args:
        **given: seconds, then steps, under the names that users give them by.

    Returns:
        Seconds and steps, one of them None; 600 seconds if neither is given.

    Raises:
        ValueError: one is out of its range, or both are given.
    """
    (secs_name, secs), (steps_name, steps) = given.items()
    if secs is not None:
        secs = check_positive(secs_name, secs)
    if steps is not None:
        steps = check_count(steps_name, steps)
    if secs is not None and steps is not None:
        raise ValueError(
            f"`{secs_name}` and `{steps_name}` must not both be given. Received: "
            f"{secs_name}={secs:g}, {steps_name}={steps}"
        )
    return (_DEFAULT_SECS if steps is None and secs is None else secs), steps


def check_options(
    keep: Any, full_every: Any, max_kept_bytes: Any, max_bytes_per_sec: Any
) -> dict[str, Any]:
    """Checks the options of the engine that users give.

    Args:
        keep: how many checkpoints to keep.
        full_every: one of so many checkpoints is full.
        max_kept_bytes: of rows on each task.
        max_bytes_per_sec: to files, of each task; None for no bound.

    Returns:
        The engine's options.

    Raises:
        ValueError: one is out of its range.
    """
    if max_bytes_per_sec is not None:
        max_bytes_per_sec = check_positive("max_bytes_per_sec", max_bytes_per_sec)
    return {
        "keep": check_count("keep", keep),
        "full_every": check_count("full_every", full_every),
        "max_kept_bytes": check_count("max_kept_bytes", max_kept_bytes),
        "patience_secs": 60.0,
        "max_bytes_per_sec": max_bytes_per_sec or 0.0,
    }


def check_queues(queues: Any) -> dict[str, Any]:
    """Checks the work queues that are to be saved, too.

    Args:
        queues: by name; None for none.

    Returns:
        The same as a dict.

    Raises:
        ValueError: they are not.
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
    """Checks what is to be saved beside variables.

    Args:
        state: by name; None for nothing.

    Returns:
        The same as it will be read.

    Raises:
        ValueError: JSON cannot hold it.
    """
    try:
        return json.loads(json.dumps(dict(state or {}), default=_number))
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"`state` must be what JSON can hold. Received: state={state} ({error})"
        ) from error


def _number(value: Any) -> Any:
    """Python's number for one of NumPy's, which JSON asks for when it has no form."""
    number = as_python(value)
    if number is value:
        raise TypeError(f"{type(value).__name__} is not a number")
    return number
