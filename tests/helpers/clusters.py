"""Clusters of real processes for tests, with tasks that can be killed and restarted.

    with clusters.Cluster(num_workers=2, num_ps=1) as cluster:
        result = programs.run(path, env=cluster.environment())  # As the coordinator.
        cluster.kill("worker-1")

They consist of the launcher's own parts; their processes come from a fork server. When
the context is left, and if pytest itself is killed, no process remains.
"""

import dataclasses
import os
import re
import signal
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import network_namespaces
import output_lines
import process_threads
import programs
import waiting

from tf_syncrep.python.distribute import local_cluster, ports, script
from tf_syncrep.python.distribute.cluster import TaskConfig
from tf_syncrep.python.distribute.readiness import grpc_answers
from tf_syncrep.python.distribute.task_process import TaskProcess

DEADLINE_SECS = output_lines.DEADLINE_SECS
# Some hundred steps, and less than any lease.
STOPPED_SECS = 1.0


class Cluster:
    """A place for a chief, and workers and parameter servers on this machine.

    Tasks are named as the launcher names them: "chief", "worker-0", "ps-1". Tasks of
    the jobs in `serving` serve from the beginning; the test starts the others. `env` is
    added to the environment of all. Tasks may be in networks of their own, in
    `namespaces`; `host` is this machine for all others.
    """

    def __init__(
        self,
        num_workers: int = 1,
        num_ps: int = 1,
        chief: bool = True,
        env: Mapping[str, str] | None = None,
        serving: Collection[str] = ("worker", "ps"),
        namespaces: Mapping[str, network_namespaces.Namespace] | None = None,
        host: str = ports.LOOPBACK,
    ):
        """Reserves the ports; the servers start when the context is entered."""
        self._ports = local_cluster.LocalCluster(num_workers, num_ps, chief)
        self._namespaces = namespaces or {}
        tasks = _with_hosts(self._ports.tasks, self._namespaces, host)
        self._tasks = {task.name: task for task in tasks}
        self._env = os.environ | (env or {})
        self._serving = serving
        self._processes: dict[str, TaskProcess | programs.Program] = {}
        self._lines = {name: output_lines.Lines() for name in self._tasks}

    def __enter__(self) -> "Cluster":
        try:
            for name, task in self._tasks.items():
                if task.task_type in self._serving:
                    self.start(name)
            self.wait_until_ready()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *exc_info: object) -> None:
        for process in self._processes.values():
            process.send_signal_to_group(signal.SIGKILL)
        for process in self._processes.values():
            process.wait()
        self._ports.close()

    def names(self, job: str) -> list[str]:
        """Returns the names of a job's tasks."""
        return [name for name, task in self._tasks.items() if task.task_type == job]

    def address(self, name: str) -> str:
        """Returns the "host:port" of a task."""
        return self._tasks[name].address

    def tf_config(self, name: str = "chief") -> str:
        """Returns the TF_CONFIG of a task, as JSON."""
        return self._tasks[name].to_json()

    def environment(self, name: str = "chief") -> dict[str, str]:
        """Returns the whole environment for a process that becomes a task."""
        return local_cluster.environment(self._tasks[name], self._env)

    def pid(self, name: str) -> int:
        """Returns the process id of a task that was started."""
        return self._processes[name].pid

    def status(self, name: str) -> int | None:
        """None while a task runs; then its status, negative if a signal ended it."""
        return self._processes[name].status

    def output(self, name: str) -> str:
        """Returns the output of a task so far, in all of its lives."""
        return "\n".join(self._lines[name].of())

    def wait_for_output(self, name: str, text: str, occurrence: int = 1) -> None:
        """Waits until a task has written `text` a number of times."""
        self._lines[name].wait_for(re.escape(text), occurrence)

    def start(
        self,
        name: str,
        command: Sequence[str] | None = None,
        from_fork_server: bool = True,
        env: Mapping[str, str] | None = None,
    ) -> None:
        """Starts a task that is not running, and does not wait for it.

        By default it runs `tf-syncrep serve`; a command begins with this interpreter.
        If its end must be an interpreter's own, it does not come from the fork server,
        and takes some seconds longer. `env` is added to its environment.
        """
        task = self._tasks[name]
        serves = command is None
        base = {**self._env, **(env or {})}
        environ = local_cluster.environment(task, base, serves=serves)
        command = command or script.server_command("all")

        on_line = self._lines[name].add
        if name in self._namespaces:
            command = [*self._namespaces[name].within, *command]
        if name in self._namespaces or not from_fork_server:
            self._processes[name] = TaskProcess(
                name, command, environ, on_line, on_exit=lambda _: None
            )
        else:
            self._processes[name] = programs.Program(command, environ, on_line)

    def wait_until_ready(self, *names: str) -> None:
        """Waits until tasks answer; by default all that are running."""
        for name in names or self._processes:
            self._wait_until(name, lambda n=name: grpc_answers(self.address(n)))

    def kill(self, name: str, signum: int = signal.SIGKILL) -> None:
        """Sends a task a signal that ends it, and waits for its end."""
        self._processes[name].send_signal(signum)
        self.wait(name)

    def wait(self, name: str, secs: float = DEADLINE_SECS) -> int:
        """Waits for a task's end; returns its status as a shell gives it."""
        process = self._processes[name]
        assert process.wait(secs), f"{name} runs on:\n{self.output(name)}"
        return process.exit_status

    def suspend(self, name: str) -> None:
        """Stops a task (SIGSTOP) until `resume`; its connections stay open."""
        self._processes[name].send_signal(signal.SIGSTOP)
        self.wait_until_suspended(name)

    def wait_until_suspended(self, name: str) -> None:
        """Waits until the last thread of a task has stopped, whoever stopped it."""
        pid = self.pid(name)
        self._wait_until(name, lambda: process_threads.all_in_state(pid, "T"))

    def _wait_until(self, name: str, condition: Callable[[], bool]) -> None:
        """Waits until a condition of a task holds, which has not ended."""

        def has_ended() -> bool:
            return self._processes[name].status is not None

        def told() -> str:
            what = "has ended" if has_ended() else "is silent, or was not stopped"
            return f"{name} {what}:\n{self.output(name)}"

        waiting.until(lambda: has_ended() or condition(), told)
        assert not has_ended(), told()

    def resume(self, name: str) -> None:
        """Lets a suspended task go on."""
        self._processes[name].send_signal(signal.SIGCONT)

    def stop_for_a_while(self, name: str) -> None:
        """Stops a task, and lets it go on when others have noticed."""
        self.suspend(name)
        time.sleep(STOPPED_SECS)
        self.resume(name)

    def restart(self, name: str) -> None:
        """Starts a dead server at its old address and waits until it answers."""
        self.start(name)
        self.wait_until_ready(name)


def call(
    function: Callable[..., Any],
    *args: object,
    num_workers: int = 2,
    num_ps: int = 2,
    env: Mapping[str, str] | None = None,
) -> Any:
    """Calls a function as the coordinator of a cluster; otherwise like `programs`'s."""
    with Cluster(num_workers, num_ps, env=env) as cluster:
        return programs.call(function, *args, env=cluster.environment())


def _with_hosts(
    tasks: Sequence[TaskConfig],
    namespaces: Mapping[str, network_namespaces.Namespace],
    host: str,
) -> list[TaskConfig]:
    """Gives tasks the addresses at which they reach each other."""
    for namespace in namespaces.values():  # of one at most
        host = namespace.outside
    cluster: dict[str, list[str]] = {}
    for task in tasks:
        within = namespaces.get(task.name)
        at = within.inside if within else host
        cluster.setdefault(task.task_type, []).append(f"{at}:{task.port}")
    return [dataclasses.replace(task, cluster=cluster) for task in tasks]
