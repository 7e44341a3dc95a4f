"""What the variables of all tables have in common."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from tf_syncrep.python.embedding.layout import DynamicSlab, Slab
from tf_syncrep.python.keras import compat
from tf_syncrep.python.keras.cluster import num_tasks

# Under mixed precision Keras 3's own layer casts its table, and Keras 2's does not.
CASTING: dict[str, Any] = {} if compat.IS_KERAS_3 else {"experimental_autocast": False}


def num_parts() -> int:
    """Returns how many parts tables have here: one for each parameter server."""
    strategy = tf.distribute.get_strategy()
    if not isinstance(strategy, tf.distribute.ParameterServerStrategy):
        return 1
    return max(1, num_tasks("ps"))


def part_name(slab: Slab | DynamicSlab, part_number: int) -> str:
    """Returns the name of a part's variable."""
    return f"{slab.name}_{part_number}" if slab.num_parts > 1 else slab.name
