"""The tasks of a cluster on this machine: addresses and environments."""

import os
from collections.abc import Mapping, Sequence

from tf_syncrep.python.distribute import allow, ports, threads, wire
from tf_syncrep.python.distribute.cluster import TaskConfig

# The jobs of a cluster in the order in which --base-port numbers their tasks.
JOBS = ("chief", "worker", "ps")


def tasks_of(cluster: Mapping[str, Sequence[str]]) -> list[TaskConfig]:
    """Returns a cluster's tasks: the chief, then workers, then parameter servers."""
    return [
        TaskConfig(cluster, job, index)
        for job in JOBS
        for index in range(len(cluster.get(job, ())))
    ]


def environment(
    task: TaskConfig,
    base: Mapping[str, str] | None = None,
    allowed: str = allow.ALL,
    serves: bool = False,
) -> dict[str, str]:
    """Returns the environment of a task's process.

    `base`: the environment to extend; `os.environ` by default. `allowed`: who may
    connect, as in `--allow`. `serves`: whether it is `tf-syncrep serve`.
    """
    environ = dict(os.environ if base is None else base)
    # Each line appears when it is written, and not after 8 KB.
    environ.setdefault("PYTHONUNBUFFERED", "1")
    # Tasks may share a GPU.
    environ.setdefault("TF_FORCE_GPU_ALLOW_GROWTH", "true")
    # TensorFlow's information hides what the script prints; of a server only errors
    # are wanted.
    environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2" if serves else "1")
    environ[ports.REUSE_PORT_VARIABLE] = "true"
    environ["TF_CONFIG"] = task.to_json()
    environ.setdefault(wire.VARIABLE, wire.WIRE)
    # Workers compute at the same time.
    environ.setdefault(
        threads.INTRA_OP_VARIABLE,
        str(threads.share_of_cores(len(task.cluster.get("worker", ())))),
    )
    return allow.environment(allowed, task, environ)


class LocalCluster:
    """A cluster's tasks on reserved ports of this machine."""

    def __init__(self, num_workers: int, num_ps: int, chief: bool, base_port: int = 0):
        """Reserves a port for each task: from `base_port` on, or any that are free."""
        counts = dict(zip(JOBS, (int(chief), num_workers, num_ps), strict=True))
        self._ports: list[ports.ReservedPort] = []
        cluster: dict[str, list[str]] = {}
        for job in JOBS:
            for index in range(counts[job]):
                number = base_port + len(self._ports) if base_port else 0
                try:
                    port = ports.ReservedPort(number)
                except ports.PortUnavailableError as error:
                    self.close()
                    name = TaskConfig({}, job, index).name
                    message = f"{error}; {name} needs it"
                    raise ports.PortUnavailableError(message) from None
                self._ports.append(port)
                cluster.setdefault(job, []).append(port.address)
        self.tasks = tasks_of(cluster)

    def close(self) -> None:
        """Releases all ports."""
        for port in self._ports:
            port.release()
