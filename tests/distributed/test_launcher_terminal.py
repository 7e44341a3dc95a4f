"""`tf-syncrep launch` on a terminal: the script has it for itself."""

import contextlib
import fcntl
import os
import pty
import re
import struct
import termios

import commands
import pytest

ONE_SCRIPT = ("launch", "--run-script-on", "workers", "--ps", "0")
SCRIPT = r"""
import os, sys
print(sys.stdout.isatty(), sys.stderr.isatty(), end="")
if sys.stdout.isatty():
    print(tuple(os.get_terminal_size()), end="")
for step in range(3):
    print(f"\r\x1b[1m{step}/2\x1b[0m", end="", flush=True)
sys.stderr.write("a warning\n")
sys.stderr.flush()
input()
print("\rdone")
"""


@pytest.fixture
def script(tmp_path):
    path = tmp_path / "script.py"
    path.write_text(SCRIPT)
    return path


def test_a_progress_bar_redraws_on_a_terminal_beside_lines_of_other_kinds(script):
    pid, terminal = pty.fork()
    if pid == 0:
        fcntl.ioctl(1, termios.TIOCSWINSZ, struct.pack("4H", 33, 77, 0, 0))
        command = [commands.console_script(), *ONE_SCRIPT, str(script)]
        os.execve(command[0], command, os.environ | {"NO_COLOR": "1"})
    bar = b"".join(b"\r\x1b[1m%d/2\x1b[0m" % step for step in range(3))
    shown, answered = b"", False
    with contextlib.suppress(OSError):  # EIO: the last process has left the terminal.
        while True:
            shown += os.read(terminal, 1000)
            if not answered and b"a warning" in shown and b"2/2" in shown:
                answered = True
                os.write(terminal, b"\n")
    os.close(terminal)
    _, status = os.waitpid(pid, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    # What else is said is on lines of its own, even where the script has begun one.
    said = rb"\d\d:\d\d:\d\d (worker-0|launch  ) \| [^\r]*\r\n"
    assert len(re.findall(rb"(?:\A|\r\n)(?=" + said + rb")", shown)) == 2
    rest = re.sub(rb"(?:\r\n)?" + said, b"", shown)
    assert b"True False(77, 33)" + bar in rest
    assert shown.endswith(b"\rdone\r\n")


def test_a_script_has_no_terminal_where_the_launcher_has_none(script):
    with commands.Command(*ONE_SCRIPT, script, stdin=-1) as command:
        command.wait_for_line("a warning")
        command.process.stdin.write("\n")
        command.process.stdin.flush()
        assert command.wait() == 0
    # Of what redraws, a line shows the last state.
    assert command.stdout[-1].endswith("worker-0 | done")
