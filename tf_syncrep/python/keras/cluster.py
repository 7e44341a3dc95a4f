"""The cluster that this process is connected to as its coordinator."""

import concurrent.futures
import functools
import threading
import weakref
from collections.abc import Sequence
from typing import Any

import tensorflow as tf
from absl import logging

from tf_syncrep.python.distribute.cluster import STRATEGY_JOBS
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
        addresses, others = _addresses_waited_for(cluster_resolver)
        timer = threading.Timer(_PATIENCE_SECS, _tell_of_silent, [addresses, others])
        timer.daemon = True
        timer.start()
        try:
            stock(self, cluster_resolver, *args, **kwargs)
        finally:
            timer.cancel()
        _addresses[self] = addresses

    strategy.__init__ = init


def _addresses_waited_for(cluster_resolver) -> tuple[list[str], dict[str, list[str]]]:
    """Returns the addresses of the tasks that a coordinator needs, and others by job.

    TensorFlow waits for the others as well.
    """
    if not isinstance(cluster_resolver, tf.distribute.cluster_resolver.ClusterResolver):
        return [], {}  # TensorFlow says what is wrong.
    spec = cluster_resolver.cluster_spec().as_dict()
    if not spec:
        raise ValueError(
            "ParameterServerStrategy needs a cluster of workers and parameter servers. "
            f"{_REMEDY} Received: a {type(cluster_resolver).__name__} without a "
            "cluster, as happens if TF_CONFIG is not set"
        )
    served = [address for job in SERVED_TYPES for address in spec.get(job, ())]
    others = {job: list(x) for job, x in spec.items() if job not in STRATEGY_JOBS}
    return served, others


def tell_who_answers(strategy: Any) -> str:
    """Asks all workers and parameter servers, for some seconds, whether they answer.

    Returns a sentence that names the tasks that do not. It is empty if the strategy was
    made before this package was imported.
    """
    addresses = _addresses.get(strategy, [])
    if silent := _silent(addresses):
        return f"Tasks that do not answer: {', '.join(silent)}."
    return f"All {len(addresses)} tasks answer." if addresses else ""


def _tell_of_silent(addresses: list[str], others: dict[str, list[str]]) -> None:
    silent = _silent(addresses + [x for of_job in others.values() for x in of_job])
    if not silent:
        return
    remedy = _REMEDY
    if needless := [job for job, of_job in others.items() if {*of_job} & {*silent}]:
        remedy = (
            f"A cluster for this strategy has no job {', '.join(map(repr, needless))}, "
            "for whose tasks it would wait: leave it out, as `tf-syncrep task "
            f"train.py` does. {remedy}"
        )
    logging.warning(
        "ParameterServerStrategy waits for tasks that do not answer: %s. %s",
        ", ".join(silent),
        remedy,
    )


def _silent(addresses: Sequence[str]) -> list[str]:
    """Returns the addresses at which nobody answers."""
    with concurrent.futures.ThreadPoolExecutor(_ASKED_AT_ONCE) as pool:
        answers = list(pool.map(grpc_answers, addresses))
    return [x for x, answered in zip(addresses, answers, strict=True) if not answered]
