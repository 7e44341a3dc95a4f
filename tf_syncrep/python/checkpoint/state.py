"""What is saved beside variables, as JSON: states of work queues, and users' values."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np

from tf_syncrep.python.base.arguments import as_python
from tf_syncrep.python.checkpoint.directory import Manifest


def check_queues(queues: Any) -> dict[str, Any]:
    """Checks that what a user gives are work queues by name, or None for none."""
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


def states_of(queues: Mapping[str, Any], session: Any = None) -> dict[str, list[int]]:
    """Returns the states of work queues by their names, as JSON can hold them."""
    return {
        name: [int(x) for x in queue.save(session)] for name, queue in queues.items()
    }


def restore_queues(
    queues: Mapping[str, Any], manifest: Manifest, session: Any = None
) -> None:
    """Continues from the states of work queues in a checkpoint."""
    states = manifest.state["work_queues"]
    for name, queue in queues.items():
        if name not in states:
            raise ValueError(
                "`work_queues` must name queues that are in checkpoint "
                f"{manifest.number}: {sorted(states)}. Received: {name!r}"
            )
        queue.restore(np.array(states[name], np.int64), session)


def check_state(state: Mapping[str, Any] | None) -> dict[str, Any]:
    """Checks that JSON can hold a user's values by name; None stands for none."""
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
