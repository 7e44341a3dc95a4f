"""`tf-syncrep launch` with the TensorFlow servers that it starts itself."""

import os
import re
import signal

import commands

COMPUTES = """
import os
import tensorflow as tf

print("the script begins", flush=True)
resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
strategy = tf.distribute.ParameterServerStrategy(resolver)
coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
with strategy.scope():
    total = tf.Variable(0.0)

@tf.function
def add(x):
    total.assign_add(x)

for x in range(10):
    coordinator.schedule(add, args=(tf.constant(float(x)),))
coordinator.join()
print("total", total.numpy(), total.device, flush=True)
# Not sys.exit: at the interpreter's end, ClusterCoordinator's destructor waits for ever
# for a lock that its own thread may hold while it waits for a lost worker.
os._exit(7)
"""

# Waits for a file, so that the test says when the script ends.
WAITS = """
import os, sys, time
print("waiting", flush=True)
while not os.path.exists(sys.argv[1]):
    time.sleep(0.01)
"""

COMPUTES_AFTER_A_PAUSE = COMPUTES.replace(
    "for x in range(10):",
    """
coordinator.schedule(add, args=(tf.constant(0.0),))
coordinator.join()
print("both workers are connected", flush=True)
input()
for x in range(10):""",
)


def pid_of(command, name):
    return int(command.wait_for_line(rf"{name} starts at \S+ \(pid (\d+)\)")[1])


def test_a_parameter_server_script_computes_on_servers_that_answered_before(tmp_path):
    path = tmp_path / "script.py"
    path.write_text(COMPUTES)
    with commands.Command("launch", "--workers", 1, "--ps", 1, path) as command:
        assert command.wait() == 7
        assert command.pids() == []
    assert re.search(r"chief    \| total 45\.0 /job:ps/", command.output)
    answer = next(
        i for i, ln in enumerate(command.stderr) if "all servers answer" in ln
    )
    first = next(i for i, ln in enumerate(command.stderr) if " chief " in ln)
    assert answer < first
    assert re.search(
        r"launch   \| chief \(pid \d+\) exited with status 7$", command.stderr[-1]
    )


def test_a_killed_ps_is_named_and_ends_the_run(tmp_path):
    path = tmp_path / "script.py"
    path.write_text(WAITS)
    with commands.Command("launch", path, tmp_path / "never") as command:
        command.wait_for_line("waiting")
        os.kill(pid_of(command, "ps-0"), signal.SIGKILL)
        assert command.wait() == 1
        assert command.pids() == []
    assert re.search(
        r"ps-0 \(pid \d+\) was killed by SIGKILL; its variables are lost, ending the "
        "run",
        command.output,
    )


def test_going_on_without_a_killed_worker_on_request_but_not_without_any(tmp_path):
    path = tmp_path / "script.py"
    path.write_text(WAITS)
    with commands.Command(
        "launch", "--workers", 2, "--on-worker-failure", "continue", path, "never"
    ) as command:
        command.wait_for_line("waiting")
        os.kill(pid_of(command, "worker-1"), signal.SIGKILL)
        command.wait_for_line(
            r"worker-1 \(pid \d+\) was killed by SIGKILL; going on without it"
        )
        os.kill(pid_of(command, "worker-0"), signal.SIGTERM)
        assert command.wait() == 1
        assert command.pids() == []
    assert re.search(
        r"worker-0 \(pid \d+\) exited with status 143; no worker is left, ending the "
        "run",
        command.output,
    )


def test_a_killed_worker_is_named_and_restarted_while_a_strategy_goes_on(tmp_path):
    path = tmp_path / "script.py"
    path.write_text(COMPUTES_AFTER_A_PAUSE)
    with commands.Command("launch", "--workers", 2, path, stdin=-1) as command:
        command.wait_for_line("both workers are connected")
        first = pid_of(command, "worker-1")
        os.kill(first, signal.SIGKILL)
        second = command.wait_for_line(
            rf"worker-1 \(pid {first}\) was killed by SIGKILL; restart 1 of 3, "
            r"pid (\d+)"
        )
        assert int(second[1]) in command.pids()
        command.process.stdin.write("\n")
        command.process.stdin.flush()
        assert command.wait() == 7
        assert command.pids() == []
    assert "total 45.0" in command.output


def test_a_server_that_never_answers_is_named(tmp_path):
    path = tmp_path / "script.py"
    path.write_text(WAITS)
    with commands.Command("launch", "--ready-timeout", 1, path, "never") as command:
        os.kill(pid_of(command, "worker-0"), signal.SIGSTOP)
        assert command.wait() == 1
        assert command.pids() == []
    assert re.search(
        r"worker-0 \(pid \d+\) did not answer within 1 s; ending the run",
        command.output,
    )
    assert "waiting" not in command.output


def test_a_server_that_cannot_start_says_why(tmp_path):
    path = tmp_path / "script.py"
    path.write_text(WAITS)
    (tmp_path / "tensorflow.py").write_text("raise ImportError('it is broken')")
    with commands.Command(
        "launch", path, "never", env={"PYTHONPATH": str(tmp_path)}
    ) as command:
        assert command.wait() == 1
        assert command.pids() == []
    assert "TensorFlow cannot be imported here (it is broken)" in command.output
    assert re.search(
        r"(worker|ps)-0 \(pid \d+\) exited with status 1 before it answered; ending "
        "the run",
        command.output,
    )
    assert "waiting" not in command.output


def test_ctrl_c_while_the_servers_start(tmp_path):
    path = tmp_path / "script.py"
    path.write_text(WAITS)
    with commands.Command("launch", path, "never") as command:
        pid_of(command, "ps-0")
        command.send_signal(signal.SIGINT)
        assert command.wait() == 128 + signal.SIGINT
        assert command.pids() == []
    assert "SIGINT received before the script began" in command.output
