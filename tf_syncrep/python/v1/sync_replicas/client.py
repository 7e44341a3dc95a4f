"""The training process, as the gate distinguishes it from others on the same server."""

from __future__ import annotations

import os
import secrets

import tensorflow as tf

from tf_syncrep.python.ops import sync_gate_ops

_number = 0
_number_pid: int | None = None


def number() -> int:
    """Returns a random number of this process, an int64 above 0, the same at each call.

    A server may outlive its clients. A permit or local variables that one client has
    left there do not belong to the next.
    """
    global _number, _number_pid
    if _number_pid != os.getpid():  # A child process is another client.
        _number, _number_pid = secrets.randbelow(2**62) + 1, os.getpid()
    return _number


def worker() -> tuple[tf.Tensor, tf.Tensor]:
    """Names the replica that this process is, by its task, on which the ops run."""
    device, incarnation = sync_gate_ops.task_id()
    return device, tf.bitwise.bitwise_xor(incarnation, tf.constant(number(), tf.int64))
