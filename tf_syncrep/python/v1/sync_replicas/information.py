"""Logs messages of the v1 optimizer where v1 scripts look for them."""

from __future__ import annotations

from typing import Any

import tensorflow as tf
from absl import logging


# The logged line number is that of the caller.
@logging.skip_log_prefix
def info(message: str, *args: Any) -> None:
    """Logs at level INFO, by `absl.logging`.

    Scripts of v1 usually call `tf.logging.set_verbosity(tf.logging.INFO)`, which has no
    effect on absl. If only TensorFlow's logger shows INFO, it gets the line.
    """
    v1 = tf.compat.v1.logging
    if logging.get_verbosity() < logging.INFO and v1.get_verbosity() <= v1.INFO:
        v1.info(message, *args)
    else:
        logging.info(message, *args)
