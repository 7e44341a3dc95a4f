"""What tests see of a command that does not end."""

import os
import pathlib
import subprocess

import commands
import pytest

HANGS = """
import time


def wait_for_ever():
    print("begun", flush=True)
    time.sleep(1000)


wait_for_ever()
"""


def test_a_command_that_does_not_end_shows_where_its_threads_are(tmp_path, monkeypatch):
    script = tmp_path / "script.py"
    script.write_text(HANGS)

    def wait(command, secs):
        command.wait_for_line("begun", occurrence=2)
        raise subprocess.TimeoutExpired("tf-syncrep", secs)

    monkeypatch.setattr(commands.Command, "wait", wait)
    args = ("launch", "--run-script-on", "workers", "--ps", 0, "--workers", 2)
    with pytest.raises(AssertionError, match="timed out after 240") as error:
        commands.run(*args, script)
    frames = [x for x in str(error.value).splitlines() if "in wait_for_ever" in x]
    assert {line.split()[1] for line in frames} == {"worker-0", "worker-1"}, frames


def test_a_command_on_a_terminal_that_does_not_end_is_killed(tmp_path):
    script = tmp_path / "script.py"
    script.write_text("import time; time.sleep(1000)")
    children = pathlib.Path(f"/proc/self/task/{os.getpid()}/children")
    before = children.read_text()
    with pytest.raises(AssertionError):
        commands.run_on_terminal("launch", "--workers", 1, script, secs=0.1)
    assert children.read_text() == before
