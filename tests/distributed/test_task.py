"""`tf-syncrep task`: one command for every task, in whatever order they start."""

import contextlib
import json
import pathlib
import re
import socket

import checkpoint_models
import commands
import programs
import pytest

from tf_syncrep.python.distribute import local_cluster, ports

CHECKPOINT_SCRIPT = pathlib.Path(__file__).with_name("checkpoint_script.py")

COUNTING_SCRIPT = pathlib.Path(__file__).with_name("counting_script.py")

# The proxy, at which nobody listens, is not for the tasks' calls.
PROXY = {
    "http_proxy": "http://127.0.0.1:1",
    **dict.fromkeys(("no_proxy", "NO_PROXY", "no_grpc_proxy"), "a.example"),
}


@contextlib.contextmanager
def _cluster(**options):
    """Addresses of a cluster, at which nobody else can listen meanwhile."""
    reserved = local_cluster.LocalCluster(chief=True, **options)
    try:
        yield json.loads(reserved.tasks[0].to_json())["cluster"]
    finally:
        reserved.close()


def _environment(cluster, job, index=0):
    """The environment of a task at its reserved port."""
    return {
        "TF_CONFIG": _tf_config(cluster, job, index),
        ports.REUSE_PORT_VARIABLE: "true",
    }


def _tf_config(cluster, job, index=0):
    """TF_CONFIG as Kubeflow's operator writes it: other entries, and no rpc_layer."""
    task = {"type": job, "index": index}
    return json.dumps({"cluster": cluster, "task": task, "environment": "cloud"})


@pytest.mark.ci
@pytest.mark.parametrize(
    ("chief_job", "others", "left_out"),
    [
        ("chief", {}, ""),
        # Nobody is there, and nobody is waited for.
        (
            *("master", {"evaluator": ["localhost:1"], "tensorboard": ["localhost:2"]}),
            "would wait for: evaluator, tensorboard",
        ),
    ],
)
def test_the_same_command_makes_a_cluster_with_the_chief_started_first(
    chief_job, others, left_out
):

    def start(job):
        env = {**_environment(cluster, job), **PROXY, "TF_CPP_MIN_LOG_LEVEL": "2"}
        return commands.Command("task", COUNTING_SCRIPT, env=env)

    with contextlib.ExitStack() as tasks:
        cluster = tasks.enter_context(_cluster(num_workers=1, num_ps=1))
        cluster[chief_job] = cluster.pop("chief")
        cluster |= others
        chief, ps, worker = (
            tasks.enter_context(start(job)) for job in (chief_job, "ps", "worker")
        )
        assert chief.wait() == 0, chief.stderr
        assert "2 servers answer after" in chief.output
        assert left_out in chief.output
        assert ("left out of" in chief.output) == bool(left_out)
        assert "counted 6 on /job:ps/replica:0/task:0" in chief.output
        # Servers go on, since their scheduler ends them.
        assert (ps.process.poll(), worker.process.poll()) == (None, None)


@pytest.mark.slow
def test_lost_server_is_an_interruption_where_a_scheduler_starts_tasks_again(tmp_path):
    """The loss ends the chief; both are started again, and training goes on."""
    updates = 30
    (tmp_path / "result").mkdir()
    script = (CHECKPOINT_SCRIPT, tmp_path / "ckpt", tmp_path / "result", updates)

    def start(job, index=0):
        env = {**programs.environment(), **_environment(cluster, job, index)}
        return commands.Command("task", *script, env=env)

    with (
        _cluster(num_workers=2, num_ps=2) as cluster,
        contextlib.ExitStack() as tasks,
    ):
        for job, index in (("worker", 0), ("worker", 1), ("ps", 0)):
            tasks.enter_context(start(job, index))
        with start("ps", 1) as lost, start("chief") as chief:
            chief.wait_for_line("a checkpoint is there")
            lost.process.kill()
            assert chief.wait() == 1, chief.output
        with start("ps", 1), start("chief") as chief:
            assert chief.wait() == 0, chief.output
    assert re.search(r"Training goes on from .*ckpt-\d+, in epoch", chief.output)
    checkpoint_models.assert_trained(tmp_path / "result" / "result.npz", updates)


def test_a_script_uses_no_proxy_for_the_hosts_of_the_cluster(tmp_path):
    script = tmp_path / "train.py"
    script.write_text(f"import os\nprint(*[os.environ[x] for x in {list(PROXY)}])")
    cluster = {"chief": ["a.example:1"], "worker": ["b:1", "b:2"], "ps": ["[::1]:1"]}
    result = commands.run(
        *("task", "--run-script-on", "all", "--allow", "all", script),
        env={"TF_CONFIG": _tf_config(cluster, "chief"), **PROXY},
    )
    hosts = "a.example,b,::1"
    assert result.stdout == [f"http://127.0.0.1:1 {hosts} {hosts} {hosts}"]


SHOWS_TF_CONFIG = """
import json, os
config = json.loads(os.environ["TF_CONFIG"])
print(sorted(config["cluster"]), *config["task"].values(), config["environment"])
"""


@pytest.mark.parametrize(
    ("run_script_on", "job", "found"),
    [
        ("all", "master", "['master', 'ps', 'reader'] master 0 cloud"),
        ("all", "reader", "['master', 'ps', 'reader'] reader 0 cloud"),
        ("all", "evaluator", "['master', 'ps', 'reader'] evaluator 0 cloud"),
        ("coordinator", "evaluator", "['chief', 'ps'] evaluator 0 cloud"),
    ],
)
def test_a_script_finds_jobs_for_which_tensorflow_may_wait(
    tmp_path, run_script_on, job, found
):
    """Scripts that start their own servers have jobs of their own."""
    script = tmp_path / "train.py"
    script.write_text(SHOWS_TF_CONFIG)
    jobs = ("evaluator", "master", "ps", "reader")
    cluster = {name: [f"h:{port}"] for port, name in enumerate(jobs, 1)}
    result = commands.run(
        *("task", "--run-script-on", run_script_on, "--allow", "all", script),
        env={"TF_CONFIG": _tf_config(cluster, job)},
    )
    assert result.stdout[-1] == found
    assert "tf-syncrep task: left out of the cluster of TF_CONFIG" in result.stdout[0]


@pytest.mark.parametrize(
    ("cluster", "job", "rule"),
    [
        (
            {"chief": ["h:1"], "reader": ["h:2"]},
            "reader",
            "['task']['type'] must be 'chief', 'master', 'worker', 'ps' or "
            "'evaluator'. Received: 'reader'",
        ),
        (
            {"chief": ["h:1"], "master": ["h:2"]},
            "chief",
            "['cluster'] must have a 'chief' or a 'master', not both. Received: "
            "{'chief': ['h:1'], 'master': ['h:2']}",
        ),
    ],
)
def test_task_without_a_part_in_a_training_is_refused(tmp_path, cluster, job, rule):
    script = tmp_path / "train.py"
    script.write_text("raise SystemExit('was run')")
    result = commands.run("task", script, env={"TF_CONFIG": _tf_config(cluster, job)})
    assert result.output == f"tf-syncrep task: error: TF_CONFIG{rule}"
    assert result.process.returncode == 2


def test_script_that_cannot_be_executed_is_named(tmp_path):
    path = tmp_path / "train"
    path.write_bytes(b"\0")
    path.chmod(0o755)
    env = {"TF_CONFIG": _tf_config({"chief": ["h:1"]}, "chief")}
    result = commands.run("task", path, env=env)
    assert result.output == (
        f"tf-syncrep task: error: the script {str(path)!r} cannot be executed: "
        "Exec format error"
    )
    assert result.process.returncode == 2


def test_servers_that_do_not_answer_are_named(tmp_path):
    script = tmp_path / "train.py"
    script.write_text("raise SystemExit('was run')")
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        cluster = {"chief": ["127.0.0.1:1"], "ps": [address]}
        result = commands.run(
            *("task", "--ready-timeout", 0.1, script),
            env={"TF_CONFIG": _tf_config(cluster, "chief")},
        )
    assert result.output == (
        f"tf-syncrep task: error: no answer within 0.1 s from {address}; each must run "
        "and let this host in (--allow)"
    )
    assert result.process.returncode == 1
