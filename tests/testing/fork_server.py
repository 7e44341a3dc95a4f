"""Processes that begin with TensorFlow imported.

Importing takes three seconds of CPU time, and a test of faults starts a dozen of
processes. So one process imports, runs nothing, and forks for each that is wanted:
what a task does, to its server and its signals, happens in a process of its own.
"""

import contextlib
import json
import os
import pathlib
import runpy
import select
import signal
import socket
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable, Mapping, Sequence

import programs

from tf_syncrep.python.distribute.supervision import die_with_parent

_MAX_REQUEST_BYTES = 1 << 18
_DEADLINE_SECS = 60.0


class ForkedProcess:
    """A process of a `ForkServer`, with what `Cluster` needs of a `TaskProcess`."""

    def __init__(self, pid: int, output: int, on_line: Callable[[bytes, str], None]):
        """Reads its output; made by `ForkServer.start`."""
        self.pid = pid
        self.status: int | None = None  # As of a TaskProcess.
        self._ended = threading.Event()
        self._on_line = on_line
        self._reader = threading.Thread(target=self._read, args=(output,), daemon=True)
        self._reader.start()

    @property
    def exit_status(self) -> int:
        """The status of a process that has ended, as a shell gives it: 128 + signal."""
        self._ended.wait()
        assert self.status is not None
        return self.status if self.status >= 0 else 128 - self.status

    def send_signal(self, signum: int) -> None:
        """Sends a signal; nothing happens if the process has ended."""
        if self.status is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signum)

    def send_signal_to_group(self, signum: int) -> None:
        """Sends a signal to the process, which starts no other."""
        self.send_signal(signum)

    def wait(self, timeout_secs: float | None = None) -> bool:
        """Waits for the end and the last lines; False if the time was up before."""
        return self._ended.wait(timeout_secs)

    def _end(self, status: int) -> None:
        self.status = status
        self._reader.join()
        self._ended.set()

    def _read(self, output: int) -> None:
        with open(output, "rb") as lines:
            for line in lines:
                self._on_line(line.rstrip(b"\r\n"), "stdout")


class ForkServer:
    """The process that forks; it dies with the thread that made it."""

    def __init__(self, *modules: str):
        """Starts it.

        Args:
            *modules: what it imports.
        """
        parent = os.getpid()
        # What it imports must not look for GPUs, which do not outlive a fork.
        environ = {
            **os.environ,
            **programs.environment(),
            "CUDA_VISIBLE_DEVICES": "",
        }
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, __file__, str(theirs.fileno()), *modules],
                env=environ,
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                preexec_fn=lambda: die_with_parent(parent),
            )
        self._processes: dict[int, ForkedProcess] = {}
        self._changed = threading.Condition()  # Guards _processes and _started.
        self._started: list[int] = []
        threading.Thread(target=self._receive, daemon=True).start()

    def start(
        self,
        command: Sequence[str],
        environ: Mapping[str, str],
        on_line: Callable[[bytes, str], None],
    ) -> ForkedProcess:
        """Starts a process.

        Args:
            command: of this interpreter: it, a file or "-c" and source, arguments.
            environ: its whole environment; what was read at import was the server's.
            on_line: called in another thread with each line that it writes.

        Returns:
            The process.
        """
        request = json.dumps({"command": list(command), "environ": dict(environ)})
        ours, theirs = os.pipe()
        with self._changed:
            try:
                socket.send_fds(self._socket, [request.encode()], [theirs])
            finally:
                os.close(theirs)
            if not self._changed.wait_for(lambda: self._started, _DEADLINE_SECS):
                raise AssertionError("the fork server does not answer")
            pid = self._started.pop()
            process = self._processes[pid] = ForkedProcess(pid, ours, on_line)
            self._changed.notify_all()
        return process

    def close(self) -> None:
        """Ends the server and all its processes."""
        self._socket.shutdown(socket.SHUT_RDWR)
        self._process.wait()

    def _receive(self) -> None:
        while message := self._socket.recv(_MAX_REQUEST_BYTES):
            pid, status = json.loads(message)
            with self._changed:
                if status is None:
                    self._started.append(pid)
                    self._changed.notify_all()
                    continue
                self._changed.wait_for(lambda pid=pid: pid in self._processes)
                process = self._processes.pop(pid)
            process._end(status)


def _serve(requests: socket.socket) -> None:
    """Forks as asked, and tells who was started and who has ended."""
    woken, wake = os.pipe2(os.O_NONBLOCK)
    signal.set_wakeup_fd(wake)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    while True:
        ready, _, _ = select.select([requests, woken], [], [])
        if woken in ready:
            os.read(woken, 1024)
            _report_ends(requests)
        if requests in ready:
            message, fds, _, _ = socket.recv_fds(requests, _MAX_REQUEST_BYTES, 1)
            if not message:
                return
            server = os.getpid()
            pid = os.fork()
            if pid == 0:
                die_with_parent(server)
                signal.set_wakeup_fd(-1)
                for fd in (woken, wake, requests.fileno()):
                    os.close(fd)
                _run(output=fds[0], **json.loads(message))
            os.close(fds[0])
            requests.send(json.dumps([pid, None]).encode())


def _report_ends(requests: socket.socket) -> None:
    with contextlib.suppress(ChildProcessError):  # There is none left.
        while True:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                return
            end = [pid, os.waitstatus_to_exitcode(status)]
            requests.send(json.dumps(end).encode())


def _run(output: int, command: list[str], environ: dict[str, str]) -> None:
    """Becomes what was asked for, in a process that was just forked."""
    status = 1
    try:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        os.setsid()
        os.dup2(output, 1)
        os.dup2(output, 2)
        os.close(output)
        os.environ.clear()
        os.environ.update(environ)
        _, what, *arguments = command
        if what == "-c":
            source, *arguments = arguments
            sys.argv = ["-c", *arguments]
            sys.path.insert(0, "")
            exec(source, {"__name__": "__main__"})
        else:
            sys.argv = [what, *arguments]
            sys.path.insert(0, str(pathlib.Path(what).parent))
            runpy.run_path(what, run_name="__main__")
        status = 0
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        # Not by the interpreter's own end, which is the server's as well.
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


if __name__ == "__main__":
    for name in sys.argv[2:]:
        __import__(name)
    _serve(socket.socket(fileno=int(sys.argv[1])))
