"""TF_CONFIG: reading, checking and writing it.

The format is TensorFlow's, as `tf.distribute.cluster_resolver.TFConfigClusterResolver`
reads it and as Kubeflow's training operator writes it.
"""

import dataclasses
import json
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from tf_syncrep.python.distribute.errors import UsageError

_EXAMPLE = (
    '{"cluster": {"worker": ["host:port"], "ps": ["host:port"]}, '
    '"task": {"type": "worker", "index": 0}}'
)
# The type of a task that follows checkpoints, which need not be in the cluster.
EVALUATOR = "evaluator"
# What TFJob and TensorFlow 1 may call the chief.
MASTER = "master"
# The jobs that ParameterServerStrategy takes. It waits for every task of a cluster.
STRATEGY_JOBS = ("chief", "worker", "ps")
_SHOWN_CHARACTERS = 200
# The job names that TensorFlow accepts in names of devices.
_JOB = re.compile(r"[A-Za-z][A-Za-z0-9_]*")
# A host's name (RFC 1035, and also with _), an IPv4 address, or an IPv6 address in
# brackets; and a port.
_NAME = r"[A-Za-z0-9_-]{1,63}(?:\.[A-Za-z0-9_-]{1,63})*\.?"
_ADDRESS = re.compile(rf"({_NAME}|\[[0-9A-Fa-f:.]+(?:%\w+)?\]):([0-9]{{1,5}})")
# Tasks of these types listen at their addresses.
_LISTENING = ("worker", "ps")


class ClusterConfigError(UsageError, ValueError):
    """TF_CONFIG is missing, or does not describe a possible cluster.

    Example:
    ```python
    try:
        task = tfs.distribute.read_tf_config()
    except tfs.distribute.ClusterConfigError as error:
        sys.exit(str(error))  # TF_CONFIG is not set. It must look like ...
    ```
    """


@dataclasses.dataclass(frozen=True)
class TaskConfig:
    """One task's view of a cluster.

    Attributes:
        cluster: the addresses ("host:port") by task type, in the order of the task
            indices.
        task_type: the type of this task, a key of `cluster` ("evaluator" need not be in
            it).
        task_index: the index of this task in `cluster[task_type]`.
        rpc_layer: the protocol of the servers.

    Example:
    >>> cluster = {"worker": ["node1:2222", "node2:2222"], "ps": ["node3:2222"]}
    >>> task = tfs.distribute.TaskConfig(cluster, "worker", 1)
    >>> task.name, task.address, task.port
    ('worker-1', 'node2:2222', 2222)
    >>> tfs.distribute.read_tf_config({"TF_CONFIG": task.to_json()}) == task
    True
    """

    cluster: Mapping[str, Sequence[str]]
    task_type: str
    task_index: int
    rpc_layer: str = "grpc"

    @property
    def name(self) -> str:
        """The name for people: "chief", "evaluator", "worker-1" or "ps-0"."""
        if self.task_type in ("chief", MASTER, EVALUATOR):
            return self.task_type
        return f"{self.task_type}-{self.task_index}"

    @property
    def address(self) -> str:
        """This task's own "host:port"."""
        return self.cluster[self.task_type][self.task_index]

    @property
    def port(self) -> int:
        """The port of `address`."""
        return split_address(self.address)[1]

    def to_json(self) -> str:
        """Returns the TF_CONFIG that `read_tf_config` turns back into this object."""
        return json.dumps(
            {
                "cluster": {job: list(tasks) for job, tasks in self.cluster.items()},
                "task": {"type": self.task_type, "index": int(self.task_index)},
                "rpc_layer": self.rpc_layer,
            }
        )


def without_jobs(config: TaskConfig, left_out: Iterable[str]) -> tuple[TaskConfig, str]:
    """Leaves jobs out of a cluster; returns also a line that says so, or ""."""
    found = [job for job in config.cluster if job in left_out]
    cluster = {job: x for job, x in config.cluster.items() if job not in found}
    line = (
        f"left out of the cluster of TF_CONFIG, whose tasks TensorFlow would wait for: "
        f"{', '.join(found)}"
    )
    return dataclasses.replace(config, cluster=cluster), line if found else ""


def for_strategy(config: TaskConfig) -> tuple[TaskConfig, str]:
    """Makes a cluster one for ParameterServerStrategy, whose chief may be a master.

    Returns the line of `without_jobs`, too. Raises ClusterConfigError: it has both, or
    the task has no part in such a cluster.
    """
    if config.task_type not in (*STRATEGY_JOBS, MASTER, EVALUATOR):
        raise ClusterConfigError(
            "TF_CONFIG['task']['type'] must be 'chief', 'master', 'worker', 'ps' or "
            f"'evaluator'. Received: {_shown(config.task_type)}"
        )
    cluster = dict(config.cluster)
    if MASTER in cluster:
        if "chief" in cluster:
            raise ClusterConfigError(
                "TF_CONFIG['cluster'] must have a 'chief' or a 'master', not both. "
                f"Received: {_shown(cluster)}"
            )
        cluster["chief"] = cluster.pop(MASTER)
    task_type = "chief" if config.task_type == MASTER else config.task_type
    return without_jobs(
        dataclasses.replace(config, cluster=cluster, task_type=task_type),
        cluster.keys() - set(STRATEGY_JOBS),
    )


def rewritten(text: str, config: TaskConfig) -> str:
    """Returns a TF_CONFIG with this cluster and task, and all else that it has."""
    entries, own = json.loads(text), json.loads(config.to_json())
    task = entries["task"] | own["task"]
    return json.dumps({**entries, "cluster": own["cluster"], "task": task})


def split_address(
    address: str, where: str = "an address in a cluster"
) -> tuple[str, int]:
    """Splits "host:port"; an IPv6 address is in brackets, and the port at least 1."""
    match = _ADDRESS.fullmatch(address)
    if match is None or not 0 < int(match[2]) < 65536:
        raise ClusterConfigError(
            f"{where} must be 'host:port', with an IPv6 address in brackets, and a "
            f"port between 1 and 65535. Received: {_shown(address)}"
        )
    return match[1].strip("[]"), int(match[2])


def read_tf_config(environ: Mapping[str, str] | None = None) -> TaskConfig:
    """Reads and checks the TF_CONFIG of this process.

    Args:
        environ: the environment with TF_CONFIG; `os.environ` by default.

    Returns:
        The cluster and the place of this task in it.

    Raises:
        ClusterConfigError: TF_CONFIG is not set, is not JSON, or is inconsistent. The
            message is one line that names the entry, the rule and the value received.

    Example:
    ```python
    task = tfs.distribute.read_tf_config()
    if task.task_type == "worker":
        print("worker", task.task_index, "of", len(task.cluster["worker"]))
    ```
    """
    text = (os.environ if environ is None else environ).get("TF_CONFIG", "")
    if not text.strip():
        raise ClusterConfigError(
            "TF_CONFIG is not set. `tf-syncrep launch` sets it for each task of a "
            f"cluster on this machine; elsewhere it must look like {_EXAMPLE}"
        )
    try:
        config = json.loads(text)
    except (ValueError, RecursionError) as error:
        reason = str(error)
        if not isinstance(error, json.JSONDecodeError):
            reason = "a number is too long, or objects are too deep in one another"
        raise ClusterConfigError(
            f"TF_CONFIG is not valid JSON ({reason}). Received: {_shown(text)}"
        ) from None
    config = _object(config, "TF_CONFIG")
    cluster = _cluster(_entry(config, "cluster", "TF_CONFIG"))
    task = _object(_entry(config, "task", "TF_CONFIG"), "TF_CONFIG['task']")
    task_type = _entry(task, "type", "TF_CONFIG['task']")
    if not isinstance(task_type, str):
        raise ClusterConfigError(
            f"TF_CONFIG['task']['type'] must be a string. Received: {_shown(task_type)}"
        )
    task_index = _index(task.get("index", 0))
    if task_type in cluster:
        if task_index >= len(cluster[task_type]):
            raise ClusterConfigError(
                "TF_CONFIG['task']['index'] must be below the number of "
                f"{task_type!r} tasks in the cluster, {len(cluster[task_type])}. "
                f"Received: {task_index}"
            )
    elif task_type != EVALUATOR:
        raise ClusterConfigError(
            "TF_CONFIG['task']['type'] must be one of the task types of the cluster "
            f"({', '.join(map(repr, cluster))}). Received: {_shown(task_type)}"
        )
    rpc_layer = config.get("rpc_layer") or "grpc"
    if not isinstance(rpc_layer, str):
        raise ClusterConfigError(
            f"TF_CONFIG['rpc_layer'] must be a string. Received: {_shown(rpc_layer)}"
        )
    # Builds of TensorFlow with other transports call them so.
    if rpc_layer.partition("+")[0] != "grpc":
        raise ClusterConfigError(
            "TF_CONFIG['rpc_layer'] must be 'grpc', which is what TensorFlow's servers "
            f"speak. Received: {_shown(rpc_layer)}"
        )
    return TaskConfig(cluster, task_type, task_index, rpc_layer)


def _cluster(value: Any) -> dict[str, list[str]]:
    cluster = _object(value, "TF_CONFIG['cluster']")
    places: dict[str, str] = {}
    for job, tasks in cluster.items():
        if not _JOB.fullmatch(job):
            raise ClusterConfigError(
                "TF_CONFIG['cluster'] must have task types of letters, digits and _, "
                f"the first a letter. Received: {_shown(job)}"
            )
        if not isinstance(tasks, list) or not all(
            isinstance(task, str) for task in tasks
        ):
            raise ClusterConfigError(
                f"TF_CONFIG['cluster'][{job!r}] must be a list of 'host:port' strings. "
                f"Received: {_shown(tasks)}"
            )
        if job in ("chief", MASTER) and len(tasks) > 1:
            raise ClusterConfigError(
                f"TF_CONFIG['cluster'][{job!r}] must have one address. "
                f"Received: {_shown(tasks)}"
            )
        for index, task in enumerate(tasks):
            place = f"TF_CONFIG['cluster'][{job!r}][{index}]"
            split_address(task, place)
            if job in _LISTENING and places.setdefault(task, place) != place:
                raise ClusterConfigError(
                    f"{place} must differ from the address of {places[task]}. "
                    f"Received: {task!r}"
                )
    return cluster


def _index(value: Any) -> int:
    # TensorFlow's resolver accepts "0" as well as 0.
    number = value
    if isinstance(value, str) and re.fullmatch("[0-9]{1,9}", value):
        number = int(value)
    if not isinstance(number, int) or isinstance(number, bool) or number < 0:
        raise ClusterConfigError(
            "TF_CONFIG['task']['index'] must be an integer that is not negative. "
            f"Received: {_shown(value)}"
        )
    return number


def _entry(mapping: dict[str, Any], key: str, where: str) -> Any:
    if key not in mapping:
        raise ClusterConfigError(
            f"{where} must have an entry {key!r}. Received: {_shown(mapping)}"
        )
    return mapping[key]


def _object(value: Any, where: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ClusterConfigError(
            f"{where} must be a JSON object. Received: {_shown(value)}"
        )
    return value


def _shown(value: Any) -> str:
    """Returns `value` on one line, shortened if it is too long for a message."""
    try:
        text = repr(value)
    except (ValueError, RecursionError):  # for example a number with too many digits
        return f"a {type(value).__name__} that is too large to be shown"
    return text if len(text) <= _SHOWN_CHARACTERS else text[:_SHOWN_CHARACTERS] + "..."
