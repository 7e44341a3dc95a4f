"""One task of a local cluster as a process."""

import contextlib
import io
import os
import signal
import subprocess
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import IO

from tf_syncrep.python.distribute.supervision import descendants, die_with_parent
from tf_syncrep.python.distribute.task_output import TaskOutput


class TaskProcess:
    """A process in a session of its own that dies with the thread that started it."""

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        environ: Mapping[str, str],
        on_line: Callable[[bytes, str], None],
        on_exit: Callable[["TaskProcess"], None],
        reads_stdin: bool = False,
        terminal: tuple[int, int] | None = None,
        on_data: Callable[[bytes], None] | None = None,
    ):
        """Starts the process.

        `reads_stdin`: whether it reads this process's standard input; otherwise its
        standard input is empty. Raises OSError: the program cannot be executed.
        """
        self.name = name
        parent = os.getpid()
        # Only a preexec_fn can set a death signal for a program that is not ours;
        # die_with_parent explains why this is safe beside threads.
        try:
            self._process = subprocess.Popen(
                list(command),
                env=dict(environ),
                stdin=None if reads_stdin else subprocess.DEVNULL,
                stdout=subprocess.PIPE if terminal is None else terminal[1],
                stderr=subprocess.PIPE,
                start_new_session=True,
                preexec_fn=lambda: die_with_parent(parent),
            )
        except OSError:
            if terminal is not None:
                os.close(terminal[0])
            raise
        finally:
            if terminal is not None:
                os.close(terminal[1])
        # The second is closed when the process has ended, which the first shows.
        self._ended_pipe = os.pipe()
        self._readers = [
            threading.Thread(
                target=self._read, args=(pipe, stream, on_line), daemon=True
            )
            for pipe, stream in (
                (self._process.stdout, "stdout"),
                (self._process.stderr, "stderr"),
            )
            if pipe is not None
        ]
        if terminal is not None:
            self._readers.append(
                threading.Thread(
                    target=self._read_terminal,
                    args=(terminal[0], on_data),
                    daemon=True,
                )
            )
        for reader in self._readers:
            reader.start()
        self._ended = threading.Event()
        threading.Thread(target=self._wait, args=(on_exit,), daemon=True).start()

    @property
    def pid(self) -> int:
        """The process id, which is also the id of its session and process group."""
        return self._process.pid

    @property
    def status(self) -> int | None:
        """None while it runs; then its exit status, negative if a signal ended it."""
        if self._process.returncode is None:
            # poll() does not look while a thread of this object waits.
            options = os.WEXITED | os.WNOHANG | os.WNOWAIT
            with contextlib.suppress(ChildProcessError):  # that thread was faster
                if os.waitid(os.P_PID, self.pid, options) is None:
                    return None
        return self._process.wait()

    @property
    def exit_status(self) -> int:
        """The status of a process that has ended, as a shell gives it: 128 + signal."""
        status = self._process.wait()
        return status if status >= 0 else 128 - status

    def describe_end(self) -> str:
        """Describes its end: "exited with status 1", "was killed by SIGKILL"."""
        status = self._process.wait()
        if status >= 0:
            return f"exited with status {status}"
        try:
            return f"was killed by {signal.Signals(-status).name}"
        except ValueError:  # real-time signals have no names
            return f"was killed by signal {-status}"

    def send_signal(self, signum: int) -> None:
        """Sends a signal to the process only; does nothing if it has ended."""
        self._process.send_signal(signum)

    def send_signal_to_group(self, signum: int) -> None:
        """Sends a signal to the process and its group, even after its end."""
        if self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, signum)
            return
        # Once the process has been reaped and its group is empty, the kernel may give
        # the number to anybody.
        for pid in descendants(os.getpid()):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                if os.getpgid(pid) == self.pid:
                    os.kill(pid, signum)

    def wait(self, timeout_secs: float | None = None) -> bool:
        """Waits for the end of the process and its last lines; False if it is late."""
        return self._ended.wait(timeout_secs)

    def _read(
        self, pipe: IO[bytes], stream: str, on_line: Callable[[bytes, str], None]
    ) -> None:
        with pipe:
            output = TaskOutput(pipe.fileno(), self._ended_pipe[0])
            for line in io.BufferedReader(output):
                # This is what a terminal would show of a progress bar in the end.
                on_line(line.rstrip(b"\r\n").rpartition(b"\r")[2], stream)

    def _read_terminal(self, descriptor: int, on_data: Callable[[bytes], None]) -> None:
        output = TaskOutput(descriptor, self._ended_pipe[0])
        while data := output.read(65536):
            on_data(data)
        os.close(descriptor)

    def _wait(self, on_exit: Callable[["TaskProcess"], None]) -> None:
        self._process.wait()
        os.close(self._ended_pipe[1])
        for reader in self._readers:
            reader.join()
        os.close(self._ended_pipe[0])
        self._ended.set()
        on_exit(self)
