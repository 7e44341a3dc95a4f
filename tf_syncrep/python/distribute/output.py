"""Prefixed, coloured lines of many processes on one terminal.

honcho's printer formats and colours them. Its `Manager` and `Process`, which would also
start the processes, are not used: they start everything at once (but a coordinator must
wait for its servers), end everything when anything ends (but a worker may be lost),
read a task's output to its end before they notice that it died (but a grandchild may
hold the pipe for ever), merge standard error into standard output, and leave the
processes running when the manager itself is killed.
"""

import datetime
import errno
import fcntl
import io
import os
import re
import struct
import sys
import termios
import threading
from collections.abc import Callable, Mapping

from honcho.colour import get_colours
from honcho.printer import Message, Printer

LAUNCHER_NAME = "launch"

# The beginning of a line of TensorFlow's log: absl's, and the one used before absl.
_LOG = rb"(?:[IWEF]0000 |\d{4}-\d\d-\d\d [^ ]+ [IWEF] )"

# A coordinator logs this several times when it ends: it frees functions that run on
# several tasks, and TensorFlow has not implemented that for parts on other tasks.
_UNIMPLEMENTED_RELEASE = re.compile(
    _LOG + rb".*\] (Ignoring error status when releasing multi-device function handle |"
    rb"Failed to clear function handle cache: )UNIMPLEMENTED: Releasing a multi-device "
    rb"component handle on a remote device is not yet implemented\.?$"
)

# It logs this several times when an error of a task ends it: the task has the error,
# and so does not remove functions any more. The error is repeated in further lines.
_UNREMOVED_FUNCTION = re.compile(
    _LOG + rb".*\] Failed to remove function remotely due to"
)
_UNREMOVED_FUNCTION_END = re.compile(
    rb"This could happen if the remote target has been "
)
# A line that is no part of it: another line of the log, or Python's.
_OTHERS = re.compile(_LOG + rb"|Traceback \(")

# Where CUDA_VISIBLE_DEVICES is empty, as in tasks that are to use no GPU.
_NO_GPU = re.compile(_LOG + rb".*\] failed call to cuInit: .*CUDA_ERROR_NO_DEVICE")

# An error of another task is repeated, escaped, below the message: once for each task
# through which it has come.
_REPEATED_MESSAGE = re.compile(
    rb"Additional GRPC error information from remote target /job:"
    rb"|:UNKNOWN:Error received from peer "
)

# Colours and cursor movements, which only terminals understand (ECMA-48, "CSI").
_CONTROL_SEQUENCE = re.compile(rb"\x1b\[[0-?]*[ -/]*[@-~]")

# The lines that TensorFlow logs before it reads TF_CPP_MIN_LOG_LEVEL.
_EARLY_LOG = re.compile(rb"I0000 |WARNING: All log messages before absl::InitializeLog")


class Output:
    """Prints the lines of all tasks. It may be used from several threads."""

    def __init__(
        self,
        names: list[str],
        on_closed: Callable[[], None],
        prefix: bool = True,
    ):
        for output in (sys.stdout, sys.stderr):
            if isinstance(output, io.TextIOWrapper):
                output.reconfigure(errors="replace")  # any locale can show the result
        width = max(map(len, [*names, LAUNCHER_NAME]))
        colour = not os.environ.get("NO_COLOR")  # https://no-color.org
        self._printers = {
            stream: Printer(output, width=width, colour=colour, prefix=prefix)
            for stream, output in (("stdout", sys.stdout), ("stderr", sys.stderr))
        }
        self._terminals = {s for s, p in self._printers.items() if p.output.isatty()}
        self._colours = dict(zip(names, get_colours(), strict=False))
        self._on_closed = on_closed
        self._closed = False  # Guarded by _lock.
        self._in_line = False  # whether `pass_on` ended within a line; guarded by _lock
        self._lock = threading.Lock()

    def write(self, name: str, line: bytes, stream: str = "stdout") -> None:
        """Prints one line of the task `name` on "stdout" or "stderr"."""
        if stream not in self._terminals:
            line = _CONTROL_SEQUENCE.sub(b"", line)
        message = Message(
            type="line",
            data=line or "\n",  # the printer would omit an empty line
            time=datetime.datetime.now(),
            name=name,
            colour=self._colours.get(name),
        )
        with self._lock:
            if self._closed:
                return
            try:
                if self._in_line and stream in self._terminals:
                    # This ends a line that a script has begun: a progress bar, for
                    # example.
                    print(file=self._printers[stream].output, flush=True)
                    self._in_line = False
                self._printers[stream].write(message)
                return
            except OSError as error:
                # A pipe has no reader, or a terminal is gone. Other errors, such as a
                # full disk, cost lines but do not end the run.
                if error.errno not in (errno.EPIPE, errno.EIO):
                    return
                self._closed = True
        self._on_closed()

    def pass_on(self, data: bytes) -> None:
        """Writes a script's output to standard output, which is a terminal."""
        with self._lock:
            if self._closed:
                return
            try:
                sys.stdout.flush()
                sys.stdout.buffer.write(data)
                sys.stdout.buffer.flush()
                self._in_line = not data.endswith(b"\n")
                return
            except OSError:  # the terminal is gone
                self._closed = True
        self._on_closed()

    def say(self, text: str) -> None:
        """Prints a line of the launcher itself, on standard error."""
        self.write(LAUNCHER_NAME, text.encode(), "stderr")


def open_terminal() -> tuple[int, int] | None:
    """Opens a terminal for a script, with the size of standard output's.

    Returns the end to read from, and the script's end; None if standard output is no
    terminal.
    """
    if not sys.stdout.isatty():
        return None
    ours, scripts = os.openpty()
    attributes = termios.tcgetattr(scripts)
    attributes[1] &= ~termios.OPOST  # the outer terminal turns \n into \r\n
    termios.tcsetattr(scripts, termios.TCSANOW, attributes)
    nothing = struct.pack("4H", 0, 0, 0, 0)  # Rows, columns, and both in pixels.
    size = fcntl.ioctl(sys.stdout.fileno(), termios.TIOCGWINSZ, nothing)
    fcntl.ioctl(scripts, termios.TIOCSWINSZ, size)
    return ours, scripts


class LogFilter:
    """Finds the lines of a task's standard error that tell nobody anything.

    TensorFlow writes a dozen lines before it reads TF_CPP_MIN_LOG_LEVEL. At the end of
    a coordinator it writes, below the error that ended it, this error again, escaped,
    and that it does not free what it never can free.
    """

    def __init__(self, environ: Mapping[str, str]):
        level = environ.get("TF_CPP_MIN_LOG_LEVEL", "0")
        self._early_is_unwanted = level in ("1", "2", "3")
        # whether the line before was unwanted, and may continue
        self._is_within = False

    def is_unwanted(self, line: bytes) -> bool:
        """Returns whether to omit a line; call it for each line, in order."""
        if _UNREMOVED_FUNCTION.match(line):
            self._is_within = True
            return True
        if self._is_within and not _OTHERS.match(line):
            self._is_within = _UNREMOVED_FUNCTION_END.match(line) is None
            return True
        self._is_within = False
        if any(
            pattern.match(line)
            for pattern in (_UNIMPLEMENTED_RELEASE, _REPEATED_MESSAGE, _NO_GPU)
        ):
            return True
        return self._early_is_unwanted and _EARLY_LOG.match(line) is not None
