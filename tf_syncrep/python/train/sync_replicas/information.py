"""What the v1 optimizer says of itself, where scripts of v1 look for it."""

from __future__ import annotations

from typing import Any

import tensorflow as tf
from absl import logging


# The line's place is the caller's.
@logging.skip_log_prefix
def info(message: str, *args: Any) -> None:
    """Logs at level INFO, by `absl.logging`.

    Scripts of v1 say `tf.logging.set_verbosity(tf.logging.INFO)` as a rule, which absl
    knows nothing of. Where INFO is shown by that one alone, it gets the line.

    Args:
        message: with places for `args`, as of `%`.
        *args: what goes there.
    """
    v1 = tf.compat.v1.logging
    if logging.get_verbosity() < logging.INFO and v1.get_verbosity() <= v1.INFO:
        v1.info(message, *args)
    else:
        logging.info(message, *args)
