"""The tasks of a cluster on this machine: addresses, environments and commands."""

import dataclasses
import os
import sys
from collections.abc import Mapping, Sequence

from tf_syncrep.python.distribute import ports, proxies
from tf_syncrep.python.distribute.cluster import EVALUATOR, TaskConfig

# The jobs of a cluster in the order in which --base-port numbers their tasks.
JOBS = ("chief", "worker", "ps")

# Runs this very package in a child. The path of the parent's copy is last on the module
# path. The current folder, which `-c` puts first unless PYTHONSAFEPATH is set, is
# removed, since it may contain a folder with the package's name.
_RUN = """\
import sys
sys.path[:1] = filter(None, sys.path[:1])
sys.path.append({root!r})
sys.argv[0] = "tf-syncrep"
from tf_syncrep.python.{module} import main
sys.exit(main())
"""
_PACKAGE_DIRECTORY = os.path.dirname(os.path.dirname(os.path.dirname(__file__)))


@dataclasses.dataclass(frozen=True)
class Task:
    """One task of a local cluster."""

    config: TaskConfig

    @property
    def job(self) -> str:
        """The task type: "chief", "worker", "ps" or "evaluator"."""
        return self.config.task_type

    @property
    def name(self) -> str:
        """The name for people; see `task_name`."""
        return task_name(self.job, self.config.task_index)

    @property
    def address(self) -> str:
        """The address of its server."""
        return self.config.address

    def environment(self, base: Mapping[str, str] | None = None) -> dict[str, str]:
        """Returns the environment of the task's process.

        `base`: the environment to extend; `os.environ` by default.
        """
        environ = dict(os.environ if base is None else base)
        # Each line appears when it is written, and not after 8 KB.
        environ.setdefault("PYTHONUNBUFFERED", "1")
        # All tasks share the machine's GPUs, if there are any.
        environ.setdefault("TF_FORCE_GPU_ALLOW_GROWTH", "true")
        # TensorFlow's information hides what the script prints.
        environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "1")
        environ[ports.REUSE_PORT_VARIABLE] = "true"
        environ["TF_CONFIG"] = self.config.to_json()
        return proxies.environment(self.config, environ)

    def server_environment(
        self, base: Mapping[str, str] | None = None
    ) -> dict[str, str]:
        """Returns `environment` for `tf-syncrep serve`, which logs only errors."""
        base = os.environ if base is None else base
        return self.environment({"TF_CPP_MIN_LOG_LEVEL": "2"} | dict(base))


def tasks_of(cluster: Mapping[str, Sequence[str]]) -> list[Task]:
    """Returns a cluster's tasks: the chief, then workers, then parameter servers."""
    return [
        Task(TaskConfig(cluster, job, index))
        for job in JOBS
        for index in range(len(cluster.get(job, ())))
    ]


def evaluator_of(cluster: Mapping[str, Sequence[str]]) -> Task:
    """Returns a cluster's evaluator, which follows its checkpoints from outside."""
    return Task(TaskConfig(cluster, EVALUATOR, 0))


def task_name(job: str, index: int) -> str:
    """Returns a task's name for people: "chief", which has no number, or "ps-1"."""
    return job if job in ("chief", EVALUATOR) else f"{job}-{index}"


def server_command(allow: str) -> list[str]:
    """Returns the command that serves a task with this interpreter and this package.

    `allow`: who may connect to it, as in `--allow`.
    """
    return own_command("cli", "serve", "--allow", allow)


def own_command(module: str, *args: str) -> list[str]:
    """Returns the command for `main` of a module with this interpreter and package."""
    root = os.path.dirname(_PACKAGE_DIRECTORY)
    return [sys.executable, "-c", _RUN.format(root=root, module=module), *args]


class LocalCluster:
    """A cluster's tasks on reserved ports of this machine."""

    def __init__(self, num_workers: int, num_ps: int, chief: bool, base_port: int = 0):
        """Reserves a port for each task.

        `base_port`: the first of consecutive ports; 0 for any that are free. Raises
        PortUnavailableError: one of the consecutive ports is in use; the message names
        the port and the task.
        """
        counts = dict(zip(JOBS, (int(chief), num_workers, num_ps), strict=True))
        self._ports: list[ports.ReservedPort] = []
        cluster: dict[str, list[str]] = {}
        try:
            for job in JOBS:
                for index in range(counts[job]):
                    number = base_port + len(self._ports) if base_port else 0
                    name = task_name(job, index)
                    self._ports.append(_reserved_port(number, name))
                    cluster.setdefault(job, []).append(self._ports[-1].address)
        except ports.PortUnavailableError:
            self.close()
            raise
        self.tasks = tasks_of(cluster)

    def close(self) -> None:
        """Releases all ports."""
        for port in self._ports:
            port.release()


def _reserved_port(number: int, name: str) -> ports.ReservedPort:
    try:
        return ports.ReservedPort(number)
    except ports.PortUnavailableError as error:
        raise ports.PortUnavailableError(f"{error}; {name} needs it") from None
