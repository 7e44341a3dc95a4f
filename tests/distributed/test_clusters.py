"""The clusters of the tests themselves."""

import os
import pathlib
import signal
import subprocess
import sys

import programs
import pytest
import waiting

pytestmark = pytest.mark.ci

SOURCE = """
import sys
import clusters

if __name__ == "__main__":
    with clusters.Cluster(num_workers=1, num_ps=1) as cluster:
        print(*map(cluster.pid, ("worker-0", "ps-0")), flush=True)
        sys.stdin.read()
"""


def runs(pid):
    """Whether a process has not ended; a zombie has ended."""
    try:
        stat = pathlib.Path(f"/proc/{pid}/stat").read_text(encoding="utf-8")
    except (FileNotFoundError, ProcessLookupError):  # before or after it was opened
        return False
    return stat.rpartition(")")[2].split()[0] != "Z"


def test_tasks_die_with_who_started_them(tmp_path):
    path = tmp_path / "program.py"
    path.write_text(SOURCE, encoding="utf-8")
    with subprocess.Popen(
        [sys.executable, str(path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=os.environ | programs.environment(),
    ) as process:
        assert process.stdout is not None
        pids = [int(pid) for pid in process.stdout.readline().split()]
        assert len(pids) == 2
        assert all(map(runs, pids))
        process.send_signal(signal.SIGKILL)
    waiting.until(lambda: not any(map(runs, pids)))


def test_programs_that_end_while_others_start_have_their_own_status():
    def start(status):
        command = [sys.executable, "-c", f"raise SystemExit({status})"]
        return programs.Program(command, os.environ, on_line=lambda *_: None)

    started = [start(status) for status in range(30)]
    assert [program.exit_status for program in started] == [*range(30)]
