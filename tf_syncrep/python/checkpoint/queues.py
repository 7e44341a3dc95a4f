"""The states of work queues that are saved in checkpoints."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from tf_syncrep.python.checkpoint.directory import Manifest


def states_of(queues: Mapping[str, Any], session: Any = None) -> dict[str, list[int]]:
    """Returns the states of work queues by their names, as JSON can hold them."""
    return {
        name: [int(x) for x in queue.save(session)] for name, queue in queues.items()
    }


def restore_queues(
    queues: Mapping[str, Any], manifest: Manifest, session: Any = None
) -> None:
    """Continues from the states of work queues in a checkpoint.

    Raises ValueError: the checkpoint has no queue of one of the names.
    """
    states = manifest.state["work_queues"]
    for name, queue in queues.items():
        if name not in states:
            raise ValueError(
                "`work_queues` must name queues that are in checkpoint "
                f"{manifest.number}: {sorted(states)}. Received: {name!r}"
            )
        queue.restore(np.array(states[name], np.int64), session)
