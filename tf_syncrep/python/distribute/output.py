"""Prefixed, coloured lines of many processes on one terminal.

honcho's printer formats and colours them. Its `Manager` and `Process`, which would
also start the processes, are not used: they start everything at once (a coordinator
must wait for its servers), end everything when anything ends (a worker may be lost),
read a task's output to its end before they notice that it died (a grandchild may hold
the pipe for ever), merge standard error into standard output, and leave the processes
running when the manager itself is killed.
"""

import datetime
import errno
import io
import os
import re
import sys
import threading
from collections.abc import Callable, Mapping

from honcho.colour import get_colours
from honcho.printer import Message, Printer

LAUNCHER_NAME = "launch"

# What TensorFlow logs before it reads TF_CPP_MIN_LOG_LEVEL.
_EARLY_LOG = re.compile(rb"I0000 |WARNING: All log messages before absl::InitializeLog")


class Output:
    """Where the lines of all tasks go; may be used from several threads."""

    def __init__(
        self,
        names: list[str],
        on_closed: Callable[[], None],
        prefix: bool = True,
    ):
        """Chooses widths and colours.

        Args:
            names: the names of all tasks that will write.
            on_closed: called once, when nobody can read the output any more.
            prefix: whether a line begins with the time and the task's name.
        """
        for output in (sys.stdout, sys.stderr):
            if isinstance(output, io.TextIOWrapper):
                output.reconfigure(errors="replace")  # Whatever the locale can show.
        width = max(map(len, [*names, LAUNCHER_NAME]))
        colour = not os.environ.get("NO_COLOR")  # https://no-color.org
        self._printers = {
            stream: Printer(output, width=width, colour=colour, prefix=prefix)
            for stream, output in (("stdout", sys.stdout), ("stderr", sys.stderr))
        }
        self._colours = dict(zip(names, get_colours(), strict=False))
        self._on_closed = on_closed
        self._closed = False  # Guarded by _lock.
        self._lock = threading.Lock()

    def write(self, name: str, line: str | bytes, stream: str = "stdout") -> None:
        """Prints one line of the task `name` on "stdout" or "stderr"."""
        message = Message(
            type="line",
            data=line or "\n",  # The printer would leave an empty line out.
            time=datetime.datetime.now(),
            name=name,
            colour=self._colours.get(name),
        )
        with self._lock:
            if self._closed:
                return
            try:
                self._printers[stream].write(message)
                return
            except OSError as error:
                # A pipe without reader, a terminal that has gone. Anything else, such
                # as a full disk, costs lines and not the run.
                if error.errno not in (errno.EPIPE, errno.EIO):
                    return
                self._closed = True
        self._on_closed()

    def say(self, text: str) -> None:
        """Prints a line of the launcher itself, on standard error."""
        self.write(LAUNCHER_NAME, text, "stderr")


def is_unwanted_log(line: bytes, environ: Mapping[str, str]) -> bool:
    """Whether a line is below the log level that a task was started with.

    TensorFlow writes a dozen lines before it reads TF_CPP_MIN_LOG_LEVEL.

    Args:
        line: a line of the task's standard error.
        environ: the task's environment.

    Returns:
        True for these lines, if TF_CPP_MIN_LOG_LEVEL says that they are not wanted.
    """
    level = environ.get("TF_CPP_MIN_LOG_LEVEL", "0")
    return level in ("1", "2", "3") and _EARLY_LOG.match(line) is not None
