"""Results of closures, which reach the coordinator by few calls.

A ClusterCoordinator reads what a closure has returned by an `Identity` of its own, to
which the worker's tensor is an input. TensorFlow makes a function of it that runs on
both tasks: it calls the worker to run its part, and calls it again to forget the call.
To copy a tensor, the worker is told once to send it.
"""

import weakref
from typing import Any

import tensorflow as tf


def fetch_by_copy(value: Any) -> Any:
    """Makes a RemoteValue copy its tensors, which saves a call for each of them.

    A closure that has already been executed may have been read in the other way, which
    has the same result.

    Private: nothing public chooses how a RemoteValue is read.

    Args:
        value: what `ClusterCoordinator.schedule` has returned. All leaves of its
            structure are tensors.

    Returns:
        The same value.
    """
    # The value must not keep itself alive: a tensor is on its worker until it dies.
    reference = weakref.ref(value)

    def copied() -> Any:
        own = reference()
        return None if own is None else tf.nest.map_structure(_copied, own._values)

    value._copy_to_local = copied
    return value


def _copied(tensor: Any) -> Any:
    return None if tensor is None else tensor.cpu()
