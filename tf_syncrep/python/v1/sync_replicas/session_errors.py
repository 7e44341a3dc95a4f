"""The error that a session raises when a task is lost in the middle of a step."""

from __future__ import annotations

import functools
from typing import Any

import tensorflow as tf


def recover_from_lost_tasks(session: Any) -> None:
    """Makes a session raise the error that its owner recovers from.

    A step on a server that was started anew fails with Aborted, from which
    `MonitoredTrainingSession` recovers. But the other tasks of the step are stopped
    then, and a task that is stopped before it has heard why reports Cancelled. Of
    several errors TensorFlow returns the code whose name comes last in the alphabet, so
    Cancelled instead of Aborted, and no session recovers from that. (Unavailable would
    come last, but is turned into Internal on its way.)
    """
    run = session.run

    @functools.wraps(run)
    def run_or_begin_anew(*args, **kwargs):
        try:
            return run(*args, **kwargs)
        except tf.errors.CancelledError as error:
            if "\nABORTED: " in error.message:
                raise tf.errors.AbortedError(
                    error.node_def, error.op, error.message
                ) from error
            raise

    session.run = run_or_begin_anew
