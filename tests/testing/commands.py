"""Runs `tf-syncrep` as a user does, and finds every process that it started."""

import contextlib
import os
import re
import signal
import subprocess
import sysconfig
import threading
import time
import uuid

# How long anything may take before a test gives up; nothing waits for it in vain.
DEADLINE_SECS = 120.0
_POLL_SECS = 0.02
_MARK = "TF_SYNCREP_TEST_RUN"


def console_script() -> str:
    """The installed command, wherever pytest was started."""
    return os.path.join(sysconfig.get_path("scripts"), "tf-syncrep")


class Command:
    """A running `tf-syncrep`; on leaving the context nothing of it is left."""

    def __init__(
        self, *args, env=None, stdin=subprocess.DEVNULL, program=None, **popen
    ):
        """Starts it.

        Args:
            *args: its arguments, turned to strings.
            env: variables to set; None as a value removes one.
            stdin: as in `subprocess.Popen`.
            program: the words of another command to run in its place.
            **popen: further arguments of `subprocess.Popen`.
        """
        self._mark = uuid.uuid4().hex
        environ = os.environ | {_MARK: self._mark} | (env or {})
        self.process = subprocess.Popen(
            [*(program or [console_script()]), *map(str, args)],
            env={k: v for k, v in environ.items() if v is not None},
            stdin=stdin,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            **popen,
        )
        self.stdout: list[str] = []
        self.stderr: list[str] = []
        self._open_streams = 2
        self._changed = threading.Condition()
        self._readers = [
            threading.Thread(target=self._read, args=pair, daemon=True)
            for pair in (
                (self.process.stdout, self.stdout),
                (self.process.stderr, self.stderr),
            )
        ]
        for reader in self._readers:
            reader.start()

    def __enter__(self):
        return self

    def __exit__(self, *exc_info):
        while pids := self.pids():
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(_POLL_SECS)
        self.process.wait()
        for reader in self._readers:
            reader.join()

    @property
    def output(self) -> str:
        """All lines so far, those of standard output first."""
        return "\n".join([*self.stdout, *self.stderr])

    def wait_for_line(self, pattern: str, occurrence: int = 1) -> re.Match:
        """Waits until as many lines match; returns the match of the last of them."""
        found = []

        def search():
            lines = [*self.stdout, *self.stderr]
            found[:] = filter(None, (re.search(pattern, line) for line in lines))
            return len(found) >= occurrence or self._open_streams == 0

        with self._changed:
            self._changed.wait_for(search, DEADLINE_SECS)
            if len(found) < occurrence:
                raise AssertionError(
                    f"{len(found)} lines match {pattern!r} in\n{self.output}"
                )
        return found[occurrence - 1]

    def wait(self) -> int:
        """Waits for the command's end and all of its output; returns its status."""
        status = self.process.wait(DEADLINE_SECS)
        for reader in self._readers:
            reader.join(DEADLINE_SECS)
        return status

    def send_signal(self, signum: int) -> None:
        """Sends a signal to the command's process, as `kill` does."""
        self.process.send_signal(signum)

    def pids(self) -> list[int]:
        """The processes that inherited this command's environment and still run."""
        mark = f"{_MARK}={self._mark}".encode()
        found = []
        for entry in filter(str.isdigit, os.listdir("/proc")):
            # A process that ends meanwhile, or a zombie: its environment is empty.
            with (
                contextlib.suppress(OSError),
                open(f"/proc/{entry}/environ", "rb") as environ,
            ):
                if mark in environ.read().split(b"\0"):
                    found.append(int(entry))
        return found

    def wait_until_no_process_is_left(self) -> None:
        """Waits until `pids` is empty."""
        deadline = time.monotonic() + DEADLINE_SECS
        while pids := self.pids():
            assert time.monotonic() < deadline, f"left behind: {pids}\n{self.output}"
            time.sleep(_POLL_SECS)

    def _read(self, pipe, lines):
        for line in pipe:
            with self._changed:
                lines.append(line.rstrip("\n"))
                self._changed.notify_all()
        with self._changed:
            self._open_streams -= 1
            self._changed.notify_all()


def run(*args, **options) -> Command:
    """Runs a command to its end; the result has `stdout`, `stderr`, `process`."""
    with Command(*args, **options) as command:
        command.wait()
    return command
