"""Checks of the arguments that Keras' callback and v1's hook have in common."""

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
    """Checks the interval between checkpoints.

    `**given`: seconds, then steps, by the names of the users' arguments. Returns
    Seconds and steps, one of which is None. Without either, 600 seconds. Raises
    ValueError: a number is out of range, or both are given.
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
    """Checks the users' options for the engine.

    `max_kept_bytes`: how many bytes of rows each task may keep. `max_bytes_per_sec`:
    how fast each task may write; None for no limit. Raises ValueError: an option is out
    of range.
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
