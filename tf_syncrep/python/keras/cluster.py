"""The cluster that this process is connected to as its coordinator."""

import concurrent.futures
import functools
import threading
import weakref
from collections.abc import Sequence
from typing import Any

import tensorflow as tf
from absl import logging

from tf_syncrep.python.distribute.readiness import grpc_answers
from tf_syncrep.python.distribute.server import SERVED_TYPES

# Tasks that have not started after this time are reported.
_PATIENCE_SECS = 10.0
# So many tasks are asked at once whether they answer.
_ASKED_AT_ONCE = 32
# The addresses of each strategy's tasks, but the coordinator's.
_addresses: weakref.WeakKeyDictionary[Any, list[str]] = weakref.WeakKeyDictionary()
_REMEDY = (
    "`tf-syncrep launch --workers 2 --ps 1 train.py` starts a cluster on this machine "
    "and a script on it; where each task of TF_CONFIG is started by itself, "
    "`tf-syncrep task train.py` starts it."
)


def num_tasks(job: str) -> int:
    """Returns the number of tasks of a job; 0 in a process without a cluster."""
    devices = tf.config.list_logical_devices("CPU")
    specs = [tf.DeviceSpec.from_string(device.name) for device in devices]
    return len({spec.task for spec in specs if spec.job == job})


def num_parts() -> int:
    """Returns how many parts tables have here: one for each parameter server."""
    strategy = tf.distribute.get_strategy()
    if not isinstance(strategy, tf.distribute.ParameterServerStrategy):
        return 1
    return max(1, num_tasks("ps"))


def explain_missing_cluster() -> None:
    """Makes ParameterServerStrategy say which tasks are missing, and how to start them.

    If its argument has no cluster, it fails in any case, but with an unclear error. If
    tasks do not exist, it waits for them, silently and for ever.
    """
    strategy = tf.distribute.ParameterServerStrategy
    stock = strategy.__init__

    @functools.wraps(stock)
    def init(self, cluster_resolver, *args, **kwargs):
        addresses = _served_addresses(cluster_resolver)
        timer = threading.Timer(_PATIENCE_SECS, _tell_of_silent, [addresses])
        timer.daemon = True
        timer.start()
        try:
            stock(self, cluster_resolver, *args, **kwargs)
        finally:
            timer.cancel()
        _addresses[self] = addresses

    strategy.__init__ = init


def _served_addresses(cluster_resolver) -> list[str]:
    """Returns the addresses of the tasks that a coordinator needs."""
    if not isinstance(cluster_resolver, tf.distribute.cluster_resolver.ClusterResolver):
        return []  # TensorFlow says what is wrong.
    spec = cluster_resolver.cluster_spec().as_dict()
    if not spec:
        raise ValueError(
            "ParameterServerStrategy needs a cluster of workers and parameter servers. "
            f"{_REMEDY} Received: a {type(cluster_resolver).__name__} without a "
            "cluster, as happens if TF_CONFIG is not set"
        )
    return [address for job in SERVED_TYPES for address in spec.get(job, ())]


def tell_who_answers(strategy: Any) -> str:
    """Asks all workers and parameter servers, for some seconds, whether they answer.

    Returns a sentence that names the tasks that do not. It is empty if the strategy was
    made before this package was imported.
    """
    addresses = _addresses.get(strategy, [])
    if silent := _silent(addresses):
        return f"Tasks that do not answer: {', '.join(silent)}."
    return f"All {len(addresses)} tasks answer." if addresses else ""


def _tell_of_silent(addresses: list[str]) -> None:
    if silent := _silent(addresses):
        logging.warning(
            "ParameterServerStrategy waits for tasks that do not answer: %s. %s",
            ", ".join(silent),
            _REMEDY,
        )


def _silent(addresses: Sequence[str]) -> list[str]:
    """Returns the addresses at which nobody answers."""
    with concurrent.futures.ThreadPoolExecutor(_ASKED_AT_ONCE) as pool:
        answers = list(pool.map(grpc_answers, addresses))
    return [x for x, answered in zip(addresses, answers, strict=True) if not answered]
