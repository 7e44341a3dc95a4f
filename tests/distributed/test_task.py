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
def test_the_same_command_makes_a_cluster_with_the_chief_started_first():

    def start(job):
        env = {**_environment(cluster, job), **PROXY, "TF_CPP_MIN_LOG_LEVEL": "2"}
        return commands.Command("task", COUNTING_SCRIPT, env=env)

    with (
        _cluster(num_workers=1, num_ps=1) as cluster,
        start("chief") as chief,
        start("ps") as ps,
        start("worker") as worker,
    ):
        assert chief.wait() == 0, chief.stderr
        assert "2 servers answer after" in chief.output
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
