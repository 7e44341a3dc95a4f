"""`tf-syncrep launch --evaluator`, and `task`: a task that follows the checkpoints."""

import json
import os
import pathlib
import re
import signal

import checkpoint_models as models
import commands
import programs
import pytest
import tensorflow as tf
import waiting

from tf_syncrep.python.checkpoint.directory import Directory
from tf_syncrep.python.distribute.cluster import TaskConfig

SCRIPT = pathlib.Path(__file__).with_name("checkpoint_script.py")
# Nothing imports TensorFlow: the script runs in a chief, and there are no servers.
QUICK = ("launch", "--run-script-on", "workers", "--ps", 0, "--evaluator")

_IS_EVALUATOR = """
import json, os, sys, time
config = json.loads(os.environ["TF_CONFIG"])
is_evaluator = config["task"] == {"type": "evaluator", "index": 0}
"""


@pytest.fixture
def script(script):
    """The function for scripts, which know whether they are the evaluator."""
    return lambda source: script(_IS_EVALUATOR + source)


def evaluations(folder, training_folder):
    """The evaluator's results, compared with the same training in one process."""
    found = json.loads((folder / "evaluations.json").read_text())
    last = Directory(training_folder).manifests()[-1]
    assert found[-1][0] == f"{training_folder}/ckpt-{last.number}"
    assert found[-1][1] == last.state["iterations"]
    model = models.make()
    ids, targets = (tf.constant(x) for x in models.batch())
    updates = 0
    for _, iterations, loss in found:
        for _ in range(iterations - updates):
            model.train_on_batch(ids, targets)
        updates = iterations
        expected = model.evaluate(ids, targets, verbose=0)
        assert loss == pytest.approx(expected, rel=1e-5)
    return found


@pytest.mark.ci
@pytest.mark.one_version
def test_checkpoints_of_tables_on_two_servers_are_evaluated_in_one_process(tmp_path):
    folder = tmp_path / "checkpoints"
    options = ("--workers", 2, "--ps", 2, "--evaluator")
    result = commands.run(
        *("launch", *options, SCRIPT, folder, tmp_path, 40), env=programs.environment()
    )
    assert result.process.returncode == 0, result.output
    assert "evaluator | The evaluator ends: training has ended." in result.output
    evaluations(tmp_path, folder)


@pytest.mark.slow
@pytest.mark.one_version
def test_task_of_a_scheduler_waits_for_checkpoints_and_for_no_server(tmp_path):
    """It is there before all others, and goes on after the servers have ended."""
    folder = tmp_path / "checkpoints"
    cluster = {"chief": ["h:1"], "worker": ["h:2"], "ps": ["h:3"], "evaluator": ["h:4"]}
    config = TaskConfig(cluster, "evaluator", 0)
    env = {**programs.environment(), "TF_CONFIG": config.to_json()}
    with commands.Command("task", SCRIPT, folder, tmp_path, env=env) as evaluator:
        evaluator.wait_for_line("Evaluating the checkpoints in")
        options = ("--workers", 2, "--ps", 1)
        trained = commands.run(
            *("launch", *options, SCRIPT, folder, tmp_path, 10),
            env=programs.environment(),
        )
        assert trained.process.returncode == 0, trained.output
        assert evaluator.wait() == 0, evaluator.output
    evaluations(tmp_path, folder)


def test_evaluator_is_no_part_of_the_cluster(script):
    source = 'print(config["task"]["type"], list(config["cluster"]))'
    result = commands.run(*QUICK, "--workers", 2, script(source))
    assert result.process.returncode == 0
    said = sorted(line.partition(" ")[2] for line in result.stdout)
    assert said == [
        "evaluator | evaluator ['worker']",
        "worker-0  | worker ['worker']",
        "worker-1  | worker ['worker']",
    ]


def test_evaluator_that_fails_is_started_again_and_then_done_without(script):
    """The status of the run is that of the training."""
    path = script("""
if is_evaluator:
    with open("starts", "a") as file:
        file.write("x")
    sys.exit(3)
while not os.path.exists("starts") or os.path.getsize("starts") < 3:
    time.sleep(0.01)
sys.stdin.read()
""")
    words = (*QUICK, "--max-restarts", 2, "--no-prefix", path)
    with commands.Command(*words, stdin=-1, cwd=path.parent) as launched:
        for restart in (1, 2):
            launched.wait_for_line(
                rf"evaluator \(pid \d+\) exited with status 3; restart {restart} of 2, "
            )
        launched.wait_for_line(
            r"evaluator \(pid \d+\) exited with status 3 after 2 restarts; going on "
            "without it"
        )
        # The only task that trains has the standard input.
        launched.process.stdin.close()
        assert launched.wait() == 0


def test_evaluator_has_a_while_to_end_when_training_has_ended(script):
    path = script("""
if is_evaluator:
    print("follows", flush=True)
    time.sleep(1000)
elif not sys.stdin.readline():
    sys.exit(1)
""")
    with commands.Command(*QUICK, "--grace", 0.5, path, stdin=-1) as launched:
        launched.wait_for_line("follows")
        launched.write("end\n")
        assert launched.wait_for_all() == 0
    assert re.search(
        r"evaluator \(pid \d+\) did not end within 0\.5 s of worker-0; ending it",
        launched.output,
    )


@pytest.mark.ci
@pytest.mark.one_version
def test_training_that_has_ended_does_without_its_servers(script):
    """The evaluator still works, and neither begins the run again nor fails it."""
    path = script("""
if is_evaluator:
    print("follows", flush=True)
    while not os.path.exists("end"):
        time.sleep(0.01)
elif not sys.stdin.readline():
    sys.exit(1)
""")
    words = ("launch", "--evaluator", "--on-ps-failure", "restart", path)
    with commands.Command(*words, stdin=-1, cwd=path.parent) as launched:
        chief = int(launched.wait_for_line(r"chief runs the script \(pid (\d+)\)")[1])
        launched.wait_for_line("follows")
        launched.write("end\n")
        waiting.until(lambda: chief not in launched.pids())
        for task in ("ps-0", "worker-0"):
            os.kill(launched.pid_of(task), signal.SIGKILL)
            launched.wait_for_line(
                rf"{task} \(pid \d+\) was killed by SIGKILL after the end of chief"
            )
        path.with_name("end").touch()
        assert launched.wait_for_all() == 0
    assert launched.output.count("runs the script") == 2


def test_children_of_a_task_end_before_it_is_started_again(script):
    path = script("""
import subprocess
if is_evaluator:
    sleep = [sys.executable, "-c", "import time; time.sleep(1000)"]
    print("child", subprocess.Popen(sleep).pid, flush=True)
    sys.exit(3)
sys.stdin.read()
""")
    words = (*QUICK, "--max-restarts", 2, "--no-prefix", path)
    with commands.Command(*words, stdin=-1) as launched:
        launched.wait_for_line("going on without it")
        children = [int(launched.wait_for_line(r"child (\d+)", n)[1]) for n in (1, 2)]
        waiting.until(lambda: not {*children} & {*launched.pids()})
        launched.process.stdin.close()
        assert launched.wait() == 0


def test_signal_is_passed_on_to_the_evaluator(script):
    path = script("""
import signal
signal.signal(signal.SIGTERM, lambda *_: sys.exit(5 * is_evaluator))
print("waits", flush=True)
time.sleep(1000)
""")
    with commands.Command(*QUICK, path) as launched:
        launched.wait_for_line("waits", occurrence=2)
        launched.process.send_signal(signal.SIGTERM)
        assert launched.wait() == 5
    assert "SIGTERM received, passed on to worker-0, evaluator" in launched.output
