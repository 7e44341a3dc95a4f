"""Which parameter server of a v1 cluster holds which variable."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import tensorflow as tf
from tensorflow.compat.v1 import logging

from tf_syncrep.python.base.arguments import check_count

__all__ = ["GreedyLoadBalancingStrategy", "byte_size_load_fn"]


def byte_size_load_fn(op: Any) -> int:
    """Returns the bytes of the values of a variable.

    It differs from the function of this name in `tf.contrib.training` of TensorFlow 1:
    that one counts a resource variable as the handle that its op has as its output, one
    byte whatever its size, and fails with a variable of unknown shape and with a hash
    table.

    Args:
        op: a `tf.Operation` or a `NodeDef` that makes a variable or an accumulator, as
            `replica_device_setter` hands it to a strategy.

    Returns:
        The product of the dimensions and of the dtype's size, in bytes. It is 0 for a
        hash table, and for an unknown shape, of which a line of the log tells.

    Example:
    >>> with tf.Graph().as_default():
    ...     weights = tf.compat.v1.get_variable("weights", [1000, 10])
    ...     tfs.train.byte_size_load_fn(weights.op)
    40000
    """
    node = op if isinstance(op, tf.compat.v1.NodeDef) else op.node_def
    if "shape" not in node.attr or "dtype" not in node.attr:
        return 0
    elements = tf.TensorShape(node.attr["shape"].shape).num_elements()
    if elements is None:
        logging.warning("%s has an unknown shape, and counts as 0 bytes.", node.name)
        return 0
    return elements * tf.as_dtype(node.attr["dtype"].type).base_dtype.size


class GreedyLoadBalancingStrategy:
    """Puts each variable on the parameter server with the least load so far.

    `tf.compat.v1.train.replica_device_setter` puts variables on the servers in turn,
    whatever their sizes. With this as its `ps_strategy`, loads of any two servers
    differ by no more than that of the largest variable. Slots lie beside their variable
    and are not asked for; since all that is trained has as many, they keep the balance.

    All replicas that build the same graph get the same places. Each graph needs a
    strategy of its own.

    Args:
        num_tasks: the number of parameter servers.
        load_fn: a function of an op that returns its load, a number that is not
            negative. By default it is `byte_size_load_fn`.

    Raises:
        ValueError: an argument is out of range; or, in a call, a load.

    Example:
    >>> strategy = tfs.train.GreedyLoadBalancingStrategy(2)
    >>> setter = tf.compat.v1.train.replica_device_setter(2, ps_strategy=strategy)
    >>> with tf.Graph().as_default(), tf.compat.v1.device(setter):
    ...     rows = [1000, 1, 500, 100]
    ...     made = [tf.compat.v1.get_variable(f"v{n}", [n, 10]) for n in rows]
    >>> [tf.DeviceSpec.from_string(variable.device).task for variable in made]
    [0, 1, 1, 1]

    Reference: `tf.contrib.training.GreedyLoadBalancingStrategy` of TensorFlow 1.
    """

    def __init__(
        self, num_tasks: int, load_fn: Callable[[Any], float] = byte_size_load_fn
    ):
        self._loads: list[float] = [0] * check_count("num_tasks", num_tasks)
        self._load_fn = load_fn

    def __call__(self, op: Any) -> int:
        """Chooses a server for an op, and counts its load.

        Args:
            op: a `tf.Operation` or a `NodeDef`.

        Returns:
            The index of the task.

        Raises:
            ValueError: the load is negative or not finite.
        """
        load = self._load_fn(op)
        if not 0 <= load < math.inf:
            raise ValueError(
                f"load_fn must return a finite number of at least 0. Received: {load} "
                f"for {op.name}"
            )
        task = self._loads.index(min(self._loads))
        self._loads[task] += load
        return task
