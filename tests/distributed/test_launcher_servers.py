"""`tf-syncrep launch` with the TensorFlow servers that it starts itself."""

import os
import re
import signal

import commands
import pytest

COMPUTES = """
import os
import tensorflow as tf

resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
strategy = tf.distribute.ParameterServerStrategy(resolver)
coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
with strategy.scope():
    total = tf.Variable(0.0)

@tf.function
def add(x):
    total.assign_add(x)

coordinator.schedule(add, args=(tf.constant(0.0),))
coordinator.join()
print("both workers are connected", flush=True)
input()
for x in range(10):
    coordinator.schedule(add, args=(tf.constant(float(x)),))
coordinator.join()
print("total", total.numpy(), total.device, flush=True)
# Not sys.exit: at the interpreter's end, ClusterCoordinator's destructor waits for ever
# for a lock that its own thread may hold while it waits for a lost worker.
os._exit(7)
"""


@pytest.fixture
def sleeper(script):
    """The path of a script that waits for long."""
    return script("import time; print('waiting', flush=True); time.sleep(1000)")


@pytest.mark.ci
def test_a_strategy_computes_on_servers_that_answered_and_goes_on_when_one_is_restarted(
    script,
):
    with commands.Command(
        "launch", "--workers", 2, script(COMPUTES), stdin=-1
    ) as command:
        command.wait_for_line("both workers are connected")
        first = command.pid_of("worker-1")
        os.kill(first, signal.SIGKILL)
        second = command.wait_for_line(
            rf"worker-1 \(pid {first}\) was killed by SIGKILL; restart 1 of 3, "
            r"pid (\d+)"
        )
        assert int(second[1]) in command.pids()
        command.write("\n")
        assert command.wait_for_all() == 7
    assert re.search(r"chief    \| total 45\.0 /job:ps/", command.output)
    said = [line.partition(" ")[2] for line in command.stderr]
    answer = next(i for i, line in enumerate(said) if "all servers answer" in line)
    assert answer < next(i for i, line in enumerate(said) if " chief " in line)
    assert re.fullmatch(r"launch   \| chief \(pid \d+\) exited with status 7", said[-1])


def test_going_on_without_a_killed_worker_on_request_but_not_without_any(
    sleeper,
):
    options = ("--workers", 2, "--ps", 0, "--on-worker-failure", "continue")
    with commands.Command("launch", *options, sleeper) as command:
        command.wait_for_line("waiting")
        os.kill(command.pid_of("worker-1"), signal.SIGKILL)
        command.wait_for_line(
            r"worker-1 \(pid \d+\) was killed by SIGKILL; going on without it"
        )
        os.kill(command.pid_of("worker-0"), signal.SIGTERM)
        assert command.wait_for_all() == 1
    assert re.search(
        r"worker-0 \(pid \d+\) exited with status 143; no worker is left, ending the "
        "run",
        command.output,
    )


def test_a_server_that_never_answers_is_named(sleeper):
    with commands.Command("launch", "--ready-timeout", 1, sleeper) as command:
        os.kill(command.pid_of("worker-0"), signal.SIGSTOP)
        assert command.wait_for_all() == 1
    assert re.search(
        r"worker-0 \(pid \d+\) did not answer within 1 s; ending the run",
        command.output,
    )
    assert "waiting" not in command.output


def test_a_server_that_cannot_start_says_why(sleeper, tmp_path):
    (tmp_path / "tensorflow.py").write_text("raise ImportError('it is broken')")
    env = {"PYTHONPATH": str(tmp_path)}
    with commands.Command("launch", sleeper, env=env) as command:
        assert command.wait_for_all() == 1
    assert "TensorFlow cannot be imported here (it is broken)" in command.output
    assert "Traceback" not in command.output
    assert re.search(
        r"(worker|ps)-0 \(pid \d+\) exited with status 1 before it answered; ending "
        "the run",
        command.output,
    )
    assert "waiting" not in command.output


def test_ctrl_c_while_the_servers_start(sleeper):
    with commands.Command("launch", sleeper) as command:
        command.pid_of("ps-0")
        command.process.send_signal(signal.SIGINT)
        assert command.wait_for_all() == 128 + signal.SIGINT
    assert "SIGINT received before the script began" in command.output
