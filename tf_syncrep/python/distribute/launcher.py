"""Runs a training script on a cluster of processes on this machine."""

import collections
import contextlib
import dataclasses
import json
import os
import queue
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from types import FrameType
from typing import Any, NoReturn

from tf_syncrep.python.distribute import (
    gpus,
    local_cluster,
    script,
    supervision,
    threads,
    wire,
)
from tf_syncrep.python.distribute.cluster import EVALUATOR, TaskConfig
from tf_syncrep.python.distribute.launch_options import LaunchOptions
from tf_syncrep.python.distribute.output import LogFilter, Output, open_terminal
from tf_syncrep.python.distribute.readiness import grpc_answers
from tf_syncrep.python.distribute.task_process import TaskProcess
from tf_syncrep.python.ops.notice_ops import GRACE_VARIABLE, TO_BE_CONTINUED

FAILED = 1  # The status if a part of the cluster, and not the script, ended the run.
OUTPUT_CLOSED = 128 + signal.SIGPIPE
_PROBE_INTERVAL_SECS = 0.1
_STOP_SECS = 5.0
# For how long after a SIGTERM another one is the same: `timeout` and some schedulers
# send it to this process and to its group, or to all processes.
_REPEATED_SECS = 1.0
_REAP_INTERVAL_SECS = 5.0
# Tasks that write nothing for this long may be waiting for ever.
_SILENCE_SECS = 30.0


def launch(options: LaunchOptions) -> int:
    """Runs a script on a local cluster and returns when every process has ended.

    Any process may call it, even one that has threads or has imported TensorFlow: a
    separate interpreter supervises the run, and ends it if this process dies. The
    output of the tasks goes to this process's file descriptors 1 and 2. If it is called
    in the main thread, SIGINT, SIGTERM and SIGHUP are passed on to the script while it
    runs.

    Args:
        options: what to launch.

    Returns:
        The script's exit status, 128 + n if signal n killed it; FAILED if a part of the
        cluster ended the run.

    Raises:
        PortUnavailableError: `options.base_port` or one of the ports after it is in
            use.

    Example:
    ```python
    import sys

    import tf_syncrep as tfs

    if __name__ == "__main__":
        options = tfs.distribute.LaunchOptions("train.py", num_workers=3, num_ps=2)
        sys.exit(tfs.distribute.launch(options))
    ```
    """
    with (
        _reserved(options) as tasks,
        # Linux limits the size of an argument, not that of a file.
        tempfile.TemporaryFile("w+", encoding="utf-8") as file,
    ):
        json.dump([_plain(options), tasks[0].cluster], file)
        file.seek(0)
        command = script.own_command(
            "distribute.launcher", str(os.getpid()), str(file.fileno())
        )
        return supervision.run_command(command, [file.fileno()])


def launch_here(options: LaunchOptions) -> int:
    """Launches as `launch` does, but forks (see `run_supervised`): without threads."""
    with _reserved(options) as tasks:
        return _supervise(options, tasks)


@contextlib.contextmanager
def _reserved(options: LaunchOptions) -> Iterator[Sequence[TaskConfig]]:
    """Yields the tasks of a cluster whose ports are reserved meanwhile."""
    cluster = local_cluster.LocalCluster(
        options.num_workers, options.num_ps, options.has_chief, options.base_port
    )
    try:
        yield cluster.tasks
    finally:
        cluster.close()


def main() -> int:
    """Supervises the run, in the interpreter that `launch` starts.

    Its arguments are the process that started it, and the descriptor of a file with the
    options and the cluster, whose ports that process holds.
    """
    parent, descriptor = map(int, sys.argv[1:])
    supervision.die_with_parent(parent)
    with open(descriptor, encoding="utf-8") as file:
        options, cluster = json.load(file)
    return _supervise(LaunchOptions(**options), local_cluster.tasks_of(cluster))


def _plain(options: LaunchOptions) -> dict[str, Any]:
    """Converts options for JSON."""
    values = dataclasses.asdict(options)
    values["script"] = os.fspath(options.script)
    values["args"] = [str(arg) for arg in options.args]
    return values


def _supervise(options: LaunchOptions, tasks: Sequence[TaskConfig]) -> int:
    return supervision.run_supervised(
        lambda parent_pipe: _Run(options, tasks, parent_pipe).run()
    )


class _Restart(Exception):
    """A PS and its variables are lost, so everything starts again."""


class _Stop(Exception):
    """Ends the run with a status; `at_once` means that running processes are killed."""

    def __init__(self, status: int, at_once: bool = False):
        super().__init__(status)
        self.status = status
        self.at_once = at_once


@dataclasses.dataclass(frozen=True)
class _Exit:
    """A task's process has ended."""

    process: TaskProcess


@dataclasses.dataclass(frozen=True)
class _Signal:
    """The launcher has received a signal."""

    signum: int

    @property
    def name(self) -> str:
        return signal.Signals(self.signum).name

    @property
    def status(self) -> int:
        return 128 + self.signum


@dataclasses.dataclass(frozen=True)
class _Abandoned:
    """Nobody reads the output any more, or the front process has died."""

    status: int


_Event = _Exit | _Signal | _Abandoned


class _Run:
    """One run of a cluster, in the body process of `run_supervised`.

    The thread that calls `run` makes all decisions. Other threads, and signal handlers,
    only put events into its queue. Methods raise _Stop where anything but the script's
    end ends the run, and _Restart where all tasks are to start again.
    """

    def __init__(
        self, options: LaunchOptions, tasks: Sequence[TaskConfig], parent_pipe: int
    ):
        jobs = (*script.SCRIPT_JOBS[options.run_script_on], EVALUATOR)
        if options.evaluator:
            # The last task is the evaluator; the training decides when the run begins
            # and ends.
            tasks = [*tasks, TaskConfig(tasks[0].cluster, EVALUATOR, 0)]
        self._options = options
        self._tasks = {task.name: task for task in tasks}
        self._scripts = [task.name for task in tasks if task.task_type in jobs]
        self._servers = [task.name for task in tasks if task.task_type not in jobs]
        compute = script.computing_jobs(options.run_script_on)
        self._gpus = gpus.shares(
            gpus.of_machine(),
            [task.name for task in tasks if task.task_type in compute],
            options.gpus_per_worker,
        )
        # The tasks for which the run waits. A PS that runs the script serves for ever.
        self._awaited = self._to_be_awaited()
        self._leader = self._awaited[0]
        self._processes: dict[str, TaskProcess] = {}
        # Held while a task is started, so that it is in `_processes` when it has ended.
        self._starts = threading.Lock()
        self._restarts = collections.Counter[str]()
        self._restarts_of_all = 0
        self._lost: set[str] = set()
        self._last_line = time.monotonic()
        # A ParameterServerStrategy in the workers would wait for servers, without a
        # message.
        self._may_hang = options.run_script_on != "coordinator" and options.num_ps > 0
        self._parent_pipe = parent_pipe
        self._signalled_at: float | None = None
        # Unlike Queue, SimpleQueue allows put() in a signal handler.
        self._events: queue.SimpleQueue[_Event] = queue.SimpleQueue()
        self._output = Output(
            list(self._tasks),
            on_closed=lambda: self._events.put(_Abandoned(OUTPUT_CLOSED)),
            prefix=options.prefix,
        )

    def run(self) -> int:
        """Runs the script and returns the launcher's exit status."""
        self._listen()
        try:
            while True:
                try:
                    status = self._run_once()
                    break
                except _Restart:
                    self._end_all()
        except _Stop as stop:
            status = stop.status
            if stop.at_once:
                return status
        self._stop_all()
        return status

    def _run_once(self) -> int:
        """Starts all tasks and waits for the script's end; returns its status."""
        self._start_servers()
        for name in self._scripts:
            self._start(name)
            self._output.say(
                f"{name} runs the script (pid {self._processes[name].pid})"
            )
        self._last_line = time.monotonic()
        return self._wait_for_script()

    def _to_be_awaited(self) -> list[str]:
        return [n for n in self._scripts if self._tasks[n].task_type != "ps"]

    def _end_all(self) -> None:
        """Ends all tasks, before they are started again."""
        self._stop_all()
        for process in self._processes.values():
            # This ends tasks that ignore the signal, and processes that the script has
            # started.
            process.send_signal_to_group(signal.SIGKILL)
            process.wait()
        with self._starts:
            self._processes.clear()
        self._lost.clear()
        self._awaited = self._to_be_awaited()

    def _listen(self) -> None:
        for signum in supervision.STOP_SIGNALS:
            if signal.getsignal(signum) != signal.SIG_IGN:
                signal.signal(signum, self._take_signal)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, supervision.STOP_SIGNALS)
        threading.Thread(target=self._watch_parent, daemon=True).start()
        threading.Thread(target=self._reap_orphans, daemon=True).start()

    def _take_signal(self, signum: int, frame: FrameType | None) -> None:
        del frame
        now = time.monotonic()
        if self._signalled_at is None:
            self._signalled_at = now
            self._events.put(_Signal(signum))
        elif signum != signal.SIGTERM or now - self._signalled_at > _REPEATED_SECS:
            # The front process kills the tasks. The thread that makes the decisions may
            # be in a write that waits for a reader.
            os._exit(128 + signum)

    def _watch_parent(self) -> None:
        os.read(self._parent_pipe, 1)  # Returns when the front process has died.
        self._events.put(_Abandoned(FAILED))

    def _reap_orphans(self) -> None:
        """Keeps processes that the script has left from filling the process table."""
        while True:
            time.sleep(_REAP_INTERVAL_SECS)
            with self._starts:
                tasks = {process.pid for process in self._processes.values()}
                supervision.reap_orphans(but_not=tasks)

    def _next_event(self, timeout_secs: float | None = None) -> _Event | None:
        """Returns the next event, or None when the time is up."""
        try:
            event = self._events.get(timeout=timeout_secs)
        except queue.Empty:
            return None
        if isinstance(event, _Abandoned):
            raise _Stop(event.status, at_once=True)
        if isinstance(event, _Exit):
            process = event.process
            if self._processes.get(process.name) is not process:
                # the process belongs to an earlier start
                return self._next_event(timeout_secs)
        return event

    def _start(self, name: str) -> None:
        task = self._tasks[name]
        serves = name in self._servers
        allowed = self._options.allow
        command = self._options.command()
        if serves:
            command = script.server_command(allowed)
        environ = local_cluster.environment(task, allowed=allowed, serves=serves)
        if self._gpus:
            environ[gpus.VISIBLE_VARIABLE] = self._gpus.get(name, "")
        environ[wire.VARIABLE] = self._options.rpc_layer or wire.asked_for(environ)
        environ[GRACE_VARIABLE] = f"{self._options.grace_secs:g}"
        environ = threads.environment(
            self._options.inter_op_threads, self._options.intra_op_threads, environ
        )

        log = LogFilter(environ)

        def on_line(line: bytes, stream: str) -> None:
            if stream == "stdout" or not log.is_unwanted(line):
                self._last_line = time.monotonic()
                self._output.write(name, line, stream)

        alone = [n for n in self._scripts if n != EVALUATOR] == [name]
        try:
            with self._starts:
                self._processes[name] = TaskProcess(
                    name,
                    command,
                    environ,
                    on_line=on_line,
                    on_exit=lambda process: self._events.put(_Exit(process)),
                    reads_stdin=alone,
                    # A progress bar that redraws itself needs a terminal of its own.
                    terminal=open_terminal() if alone else None,
                    on_data=self._output.pass_on,
                )
        except OSError as error:
            self._output.say(f"{name} could not be started: {error}")
            raise _Stop(FAILED) from None

    def _start_servers(self) -> None:
        """Starts the servers and waits until each answers."""
        begin = time.monotonic()
        for name in self._servers:
            self._start(name)
            self._output.say(
                f"{name} starts at {self._tasks[name].address} "
                f"(pid {self._processes[name].pid})"
            )
        silent = self._servers
        while silent := [n for n in silent if not grpc_answers(self._tasks[n].address)]:
            if time.monotonic() - begin > self._options.ready_timeout_secs:
                for name in silent:
                    self._output.say(
                        f"{self._describe(name)} did not answer within "
                        f"{self._options.ready_timeout_secs:g} s; ending the run"
                    )
                raise _Stop(FAILED, at_once=True)
            event = self._next_event(_PROBE_INTERVAL_SECS)
            if isinstance(event, _Exit):
                end = f"{self._describe_end(event.process)} before it answered"
                # At the first start this is a defect of the run, and no accident.
                if self._restarts_of_all > 0:
                    self._start_all_again(end)
                self._output.say(f"{end}; ending the run")
                raise _Stop(FAILED, at_once=True)
            if isinstance(event, _Signal):
                self._output.say(f"{event.name} received before the script began")
                raise _Stop(event.status, at_once=True)
        if self._servers:
            seconds = time.monotonic() - begin
            self._output.say(
                f"all servers answer after {seconds:.1f} s; the script begins"
            )

    def _wait_for_script(self) -> int:
        """Waits for the script's end in its leader, then a while for its other tasks.

        Returns the run's status.
        """
        deadline = None
        while self._awaited:
            if deadline is None and self._leader not in self._awaited:
                deadline = time.monotonic() + self._options.grace_secs
            if self._may_hang and deadline is None:
                event = self._next_event(self._say_if_silent())
                if event is None:
                    continue
            else:
                left = None
                if deadline is not None:
                    left = max(0.0, deadline - time.monotonic())
                event = self._next_event(left)
            if isinstance(event, _Signal):
                return self._forward(event)
            if isinstance(event, _Exit):
                self._handle_exit(event.process)
            else:
                for name in self._awaited:
                    self._output.say(
                        f"{self._describe(name)} did not end within "
                        f"{self._options.grace_secs:g} s of {self._leader}; ending it"
                    )
                break
        return 0

    def _say_if_silent(self) -> float:
        """Says once what may be wrong, if no task has written a line for long."""
        left = self._last_line + _SILENCE_SECS - time.monotonic()
        if left > 0:
            return left
        self._may_hang = False
        self._output.say(
            f"no task has written a line for {_SILENCE_SECS:g} s. If the script makes "
            "a tf.distribute.ParameterServerStrategy, which one coordinator does while "
            "the workers serve, leave out --run-script-on"
        )
        return 0.0

    def _handle_exit(self, process: TaskProcess) -> None:
        """Decides what the end of a process means for the run."""
        name = process.name
        if name in self._awaited:
            if process.exit_status == 0:
                self._awaited.remove(name)
            elif name == self._leader:
                self._end_by_leader(process)
            else:
                self._handle_lost(process, process.exit_status)
        elif self._leader not in self._awaited:
            # The training has ended, and what is left of the script needs no server.
            self._output.say(
                f"{self._describe_end(process)} after the end of {self._leader}"
            )
        elif self._tasks[name].task_type == "worker":
            self._handle_lost(process, FAILED)
        elif self._is_lost_ps(process):
            self._end_without(process)

    def _end_by_leader(self, process: TaskProcess) -> NoReturn:
        end = self._describe_end(process)
        if process.status == TO_BE_CONTINUED:
            # It has written a checkpoint, since it or a PS had notice.
            if self._options.on_ps_failure == "restart":
                self._start_all_again(f"{end}, to be continued")
        else:
            # The script may have failed because a PS died, and that explains more.
            for ps in filter(self._is_lost_ps, self._processes.values()):
                self._end_without(ps)
        self._output.say(end)
        raise _Stop(process.exit_status)

    def _is_lost_ps(self, process: TaskProcess) -> bool:
        """Returns whether a process was a PS and has ended, but not by success."""
        name, status = process.name, process.status
        if self._tasks[name].task_type != "ps" or status is None:
            return False
        return name in self._servers or status != 0

    def _end_without(self, ps: TaskProcess) -> NoReturn:
        leader = self._processes[self._leader]
        if (
            ps.status == TO_BE_CONTINUED
            and leader.status is None
            and leader.wait(self._options.grace_secs)
            and leader.status == TO_BE_CONTINUED
        ):
            self._end_by_leader(leader)
        lost = f"{self._describe_end(ps)}; its variables are lost"
        if self._options.on_ps_failure == "restart":
            self._start_all_again(lost)
        self._output.say(f"{lost}, ending the run")
        raise _Stop(FAILED)

    def _start_all_again(self, cause: str) -> NoReturn:
        """Starts all tasks again, or ends the run after too many restarts."""
        limit = self._options.max_restarts
        if self._restarts_of_all < limit:
            self._restarts_of_all += 1
            self._output.say(
                f"{cause}; restart {self._restarts_of_all} of {limit} of all tasks"
            )
            raise _Restart
        self._output.say(f"{cause}, after {limit} restarts, ending the run")
        raise _Stop(FAILED)

    def _start_again(self, name: str, end: str) -> None:
        self._restarts[name] += 1
        # Processes that the script has started would be left.
        self._processes[name].send_signal_to_group(signal.SIGKILL)
        self._start(name)
        self._output.say(
            f"{end}; restart {self._restarts[name]} of {self._options.max_restarts}, "
            f"pid {self._processes[name].pid}"
        )

    def _handle_lost(self, process: TaskProcess, status: int) -> None:
        """Starts a worker or the evaluator again, goes on without it, or ends the run.

        Training does not depend on an evaluator.
        """
        name, end = process.name, self._describe_end(process)
        is_worker = name != EVALUATOR
        policy = self._options.worker_failure_policy if is_worker else "restart"
        if policy == "restart" and self._leader in self._awaited:
            limit = self._options.max_restarts
            if self._restarts[name] < limit:
                self._start_again(name, end)
                return
            end += f" after {limit} restarts"
        if policy != "continue" and is_worker:
            self._output.say(f"{end}; ending the run")
            raise _Stop(status)
        self._lost.add(name)
        if name in self._awaited:
            self._awaited.remove(name)
        workers = {n for n, task in self._tasks.items() if task.task_type == "worker"}
        if workers <= self._lost:
            self._output.say(f"{end}; no worker is left, ending the run")
            raise _Stop(status)
        self._output.say(f"{end}; going on without it")

    def _forward(self, event: _Signal) -> int:
        """Sends a signal on to the script and waits for its end."""
        targets = [self._processes[name] for name in self._awaited]
        self._output.say(
            f"{event.name} received, passed on to {', '.join(self._awaited)}; "
            "a second one kills at once"
        )
        for process in targets:
            # This is how the kernel sends them: Ctrl-C goes to the terminal's whole
            # foreground group, and other signals go to one process.
            if event.signum == signal.SIGINT:
                process.send_signal_to_group(event.signum)
            else:
                process.send_signal(event.signum)
        deadline = time.monotonic() + self._options.grace_secs
        while running := [process for process in targets if not process.wait(0)]:
            left = deadline - time.monotonic()
            if left <= 0:
                for process in running:
                    self._output.say(
                        f"{self._describe(process.name)} did not end within "
                        f"{self._options.grace_secs:g} s; killing it"
                    )
                    process.send_signal_to_group(signal.SIGKILL)
                    process.wait()
            else:
                self._next_event(left)
        return next((p.exit_status for p in targets if p.exit_status != 0), 0)

    def _stop_all(self) -> None:
        """Ends all running tasks. `run_supervised` kills those that ignore SIGTERM."""
        deadline = time.monotonic() + min(_STOP_SECS, self._options.grace_secs)
        for process in self._processes.values():
            process.send_signal_to_group(signal.SIGTERM)
        for process in self._processes.values():
            process.wait(max(0.0, deadline - time.monotonic()))

    def _describe(self, name: str) -> str:
        return f"{name} (pid {self._processes[name].pid})"

    def _describe_end(self, process: TaskProcess) -> str:
        return f"{process.name} (pid {process.pid}) {process.describe_end()}"
