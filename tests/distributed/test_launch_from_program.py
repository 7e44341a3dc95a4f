"""`tfs.distribute.launch`: the launcher for programs, whatever threads they have."""

import signal
import socket
import sys

import commands
import pytest

import tf_syncrep as tfs

# As programs are: TensorFlow is loaded and has threads, and there is one more.
PROGRAM = """
import sys, threading
import tensorflow as tf
import tf_syncrep as tfs

tf.linalg.matmul(tf.ones([500, 500]), tf.ones([500, 500])).numpy()
began = threading.Event()
threading.Thread(
    target=lambda: (began.set(), threading.Event().wait()), daemon=True
).start()
began.wait()
options = tfs.distribute.LaunchOptions(
    script=sys.argv[1], args=sys.argv[2:], run_script_on="workers",
    num_workers=2, num_ps=0, grace_secs=5.0,
)
statuses = []
def launch():
    statuses.append(tfs.distribute.launch(options))

if "thread" in sys.argv:
    thread = threading.Thread(target=launch)
    thread.start()
    thread.join()
else:
    launch()
print("launched", statuses, flush=True)
"""
SCRIPT = """
import os, sys, time
print("runs", os.environ["TF_CONFIG"][-45:], sys.argv[1:], flush=True)
if "waits" in sys.argv:
    try:
        time.sleep(1000)
    except KeyboardInterrupt:
        print("interrupted", flush=True)
        sys.exit(9)
"""


def program(folder, *args):
    """A running program that launches, watched as the command is."""
    for name, source in (("program.py", PROGRAM), ("script.py", SCRIPT)):
        (folder / name).write_text(source)
    return commands.Command(
        folder / "program.py", folder / "script.py", *args, program=[sys.executable]
    )


@pytest.mark.parametrize("where", ["main", "thread"])
def test_runs_a_script_from_a_process_with_threads(tmp_path, where):
    with program(tmp_path, where, "it's") as command:
        assert command.wait() == 0, command.output
        assert command.pids() == []
    ran = [line for line in command.stdout if "runs" in line]
    assert len(ran) == 2
    assert all(line.endswith(f"['{where}', \"it's\"]") for line in ran)
    assert command.stdout[-1] == "launched [0]"


def test_passes_signals_on_and_returns_the_status(tmp_path):
    with program(tmp_path, "waits") as command:
        command.wait_for_line("runs", occurrence=4)  # Also said by the launcher.
        command.send_signal(signal.SIGINT)
        assert command.wait() == 0, command.output
        assert command.pids() == []
    assert command.output.count("interrupted") == 2
    assert command.stdout[-1] == "launched [9]"


def test_nothing_is_left_when_the_program_is_killed(tmp_path):
    with program(tmp_path, "waits") as command:
        command.wait_for_line("runs", occurrence=4)
        command.send_signal(signal.SIGKILL)
        command.wait_until_no_process_is_left()


def test_what_cannot_be_launched_is_raised(tmp_path):
    with pytest.raises(tfs.distribute.LaunchError, match=r"script '.*' does not exist"):
        tfs.distribute.LaunchOptions(tmp_path / "none.py")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        options = tfs.distribute.LaunchOptions(__file__, base_port=port - 1)
        with pytest.raises(
            tfs.distribute.PortUnavailableError,
            match=f"port {port} is in use; worker-0 needs it",
        ):
            tfs.distribute.launch(options)
