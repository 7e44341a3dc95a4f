"""Runs `tf-syncrep` as a user does, and finds all processes that it started."""

import contextlib
import fcntl
import os
import pty
import re
import resource
import select
import signal
import struct
import subprocess
import sysconfig
import termios
import threading
import time
import uuid
from collections.abc import Mapping, Sequence

import output_lines
import waiting

DEADLINE_SECS = output_lines.DEADLINE_SECS
# How long a command may run from its beginning to its end. That may be a training, and
# takes the longer the slower the machine is, unlike a wait for one event.
_RUN_DEADLINE_SECS = 240.0
_POLL_SECS = 0.02
_MARK = "TF_SYNCREP_TEST_RUN"
_SHOWS_THREADS = {"PYTHONFAULTHANDLER": "1"}
# How long a process that was aborted may write, and its launcher after that.
_ABORTED_END_SECS = 15.0
# The installed command, wherever pytest was started.
CONSOLE_SCRIPT = os.path.join(sysconfig.get_path("scripts"), "tf-syncrep")


class Command:
    """A running `tf-syncrep`; nothing of it remains when the context is left."""

    def __init__(
        self,
        *args: object,
        env: Mapping[str, str | None] | None = None,
        stdin: int = subprocess.DEVNULL,
        program: Sequence[str] = (CONSOLE_SCRIPT,),
        cwd: os.PathLike[str] | None = None,
    ):
        """Starts it, or another program, with arguments that are converted to strings.

        `env` is added to its environment; None as a value removes a variable.
        """
        self._mark = uuid.uuid4().hex
        environ = {**os.environ, _MARK: self._mark, **(env or {})}
        self.process = subprocess.Popen(
            [*program, *map(str, args)],
            env={k: v for k, v in environ.items() if v is not None},
            stdin=stdin,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd=cwd,
        )
        self._lines = output_lines.Lines()
        readers = [
            threading.Thread(target=self._read, args=(stream,), daemon=True)
            for stream in ("stdout", "stderr")
        ]
        self._last_lines = threading.Thread(
            target=self._end, args=(readers,), daemon=True
        )
        for thread in (*readers, self._last_lines):
            thread.start()

    def __enter__(self) -> "Command":
        return self

    def __exit__(self, *exc_info: object) -> None:
        while pids := self.pids():
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(_POLL_SECS)
        self.process.wait()
        self._last_lines.join()

    @property
    def stdout(self) -> list[str]:
        """The lines of standard output so far."""
        return self._lines.of("stdout")

    @property
    def stderr(self) -> list[str]:
        """The lines of standard error so far."""
        return self._lines.of("stderr")

    @property
    def output(self) -> str:
        """All lines so far, those of standard output first."""
        return "\n".join([*self.stdout, *self.stderr])

    def wait_for_line(
        self, pattern: str, occurrence: int = 1, secs: float = DEADLINE_SECS
    ) -> re.Match[str]:
        """Waits until as many lines match; returns the match of the last of them."""
        return self._lines.wait_for(pattern, occurrence, secs)

    def pid_of(self, task: str, life: int = 1) -> int:
        """The process id of a server that `launch` has started, as often as that."""
        return int(self.wait_for_line(rf"{task} starts at \S+ \(pid (\d+)\)", life)[1])

    def wait(self, secs: float = DEADLINE_SECS) -> int:
        """Waits for the command's end and all of its output; returns its status."""
        status = self.process.wait(secs)
        self._last_lines.join(DEADLINE_SECS)
        return status

    def wait_for_all(self) -> int:
        """The same, and no process that it has started may be left."""
        status = self.wait()
        assert self.pids() == [], self.output
        return status

    def write(self, text: str) -> None:
        """Writes to its standard input, which is a pipe."""
        assert self.process.stdin is not None
        self.process.stdin.write(text.encode())
        self.process.stdin.flush()

    def pids(self) -> list[int]:
        """Returns the processes that have this command's environment and still run."""
        mark = f"{_MARK}={self._mark}".encode()
        found = []
        for entry in filter(str.isdigit, os.listdir("/proc")):
            # a process that ends meanwhile, or a zombie: its environment is empty
            with (
                contextlib.suppress(OSError),
                open(f"/proc/{entry}/environ", "rb") as environ,
            ):
                if mark in environ.read().split(b"\0"):
                    found.append(int(entry))
        return found

    def abort(self) -> None:
        """Makes its processes write where their threads are, and ends them by that.

        It takes PYTHONFAULTHANDLER in their environment. Those that do not end in time
        are left.
        """
        pids = set(self.pids())
        launchers = pids & {_parent(pid) for pid in pids}
        # When one of its tasks ends, a launcher ends the others.
        _send(signal.SIGSTOP, launchers)
        _send(signal.SIGABRT, pids - launchers)
        self._wait_for_ends(pids - launchers)
        _send(signal.SIGCONT, launchers)
        self._wait_for_ends(launchers)
        _send(signal.SIGABRT, launchers)
        self._wait_for_ends(launchers)
        self._last_lines.join(_ABORTED_END_SECS)

    def _wait_for_ends(self, pids: set[int]) -> None:
        with contextlib.suppress(AssertionError):
            waiting.until(lambda: not pids & {*self.pids()}, secs=_ABORTED_END_SECS)

    def wait_until_no_process_is_left(self) -> None:
        """Waits until `pids` is empty."""
        waiting.until(
            lambda: not self.pids(),
            lambda: f"left behind: {self.pids()}\n{self.output}",
        )

    def _read(self, stream: str) -> None:
        for line in getattr(self.process, stream):
            self._lines.add(line.rstrip(b"\n"), stream)

    def _end(self, readers: Sequence[threading.Thread]) -> None:
        for reader in readers:
            reader.join()
        self._lines.end()


def _send(signum: int, pids: set[int]) -> None:
    """Sends a signal to those of some processes that still run."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            # A process with TensorFlow would leave a core of gigabytes.
            resource.prlimit(pid, resource.RLIMIT_CORE, (0, 0))
            os.kill(pid, signum)


def _parent(pid: int) -> int | None:
    """The parent of a process; None if the process has ended."""
    with contextlib.suppress(OSError), open(f"/proc/{pid}/stat") as stat:
        return int(stat.read().rpartition(")")[2].split()[1])
    return None


def run(
    *args: object, env: Mapping[str, str | None] | None = None, **options
) -> Command:
    """Runs a command to its end; the result has `stdout`, `stderr`, `process`."""
    with Command(*args, env={**_SHOWS_THREADS, **(env or {})}, **options) as command:
        try:
            command.wait(_RUN_DEADLINE_SECS)
        except subprocess.TimeoutExpired as late:
            # What it said until then, and where its threads are, tells where it hangs.
            said = command.output[-5000:]
            command.abort()
            raise AssertionError(f"{late}:\n{said}\n{command.output}") from late
    return command


def run_on_terminal(
    *args: object, answers: Mapping[bytes, bytes] | None = None, no_color: bool = True
) -> tuple[int, bytes]:
    """Runs the command on a terminal; returns its status and the terminal's text.

    The terminal has 33 lines of 77 columns. Answers are typed, once each, when the text
    matches their patterns.
    """
    environ = {k: v for k, v in os.environ.items() if k != "NO_COLOR"}
    environ |= {"NO_COLOR": "1"} if no_color else {}
    pid, terminal = pty.fork()
    if pid == 0:
        fcntl.ioctl(1, termios.TIOCSWINSZ, struct.pack("4H", 33, 77, 0, 0))
        os.execve(CONSOLE_SCRIPT, [CONSOLE_SCRIPT, *map(str, args)], environ)
    shown = b""
    to_answer = dict(answers or {})
    end = time.monotonic() + _RUN_DEADLINE_SECS
    with contextlib.suppress(OSError):  # EIO: the last process has left the terminal
        while select.select([terminal], [], [], max(0.0, end - time.monotonic()))[0]:
            shown += os.read(terminal, 1000)
            for pattern in [p for p in to_answer if re.search(p, shown)]:
                os.write(terminal, to_answer.pop(pattern))
    is_late = time.monotonic() > end
    if is_late:
        os.killpg(pid, signal.SIGKILL)
    os.close(terminal)
    _, status = os.waitpid(pid, 0)
    assert not is_late, f"{args} ran longer than {_RUN_DEADLINE_SECS} s:\n{shown!r}"
    return os.waitstatus_to_exitcode(status), shown
