"""`tf-syncrep task`: one command for every task, whatever order they start in."""

import json
import socket

import commands
import pytest

from tf_syncrep.python.distribute import local_cluster

_TRAINS = """
import tensorflow as tf
import tf_syncrep as tfs

strategy = tf.distribute.ParameterServerStrategy(
    tf.distribute.cluster_resolver.TFConfigClusterResolver()
)
with strategy.scope():
    counter = tf.Variable(0)
coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
for _ in range(6):
    coordinator.schedule(tf.function(lambda: counter.assign_add(1)))
coordinator.join()
print("counted", counter.numpy(), "on", counter.device)
"""


def _tf_config(cluster, job):
    """TF_CONFIG as Kubeflow's operator writes it: other entries, no rpc_layer."""
    task = {"type": job, "index": 0}
    return json.dumps({"cluster": cluster, "task": task, "environment": "cloud"})


def test_the_same_command_makes_a_cluster_with_the_chief_started_first(tmp_path):
    script = tmp_path / "train.py"
    script.write_text(_TRAINS)
    ports = local_cluster.LocalCluster(num_workers=1, num_ps=1, chief=True)
    cluster = json.loads(ports.tasks[0].config.to_json())["cluster"]
    ports.close()

    def start(job):
        env = {"TF_CONFIG": _tf_config(cluster, job), "TF_CPP_MIN_LOG_LEVEL": "2"}
        return commands.Command("task", script, env=env)

    with start("chief") as chief, start("ps") as ps, start("worker") as worker:
        assert chief.wait() == 0, chief.stderr
        assert "2 servers answer after" in chief.output
        assert "counted 6 on /job:ps/replica:0/task:0" in chief.output
        # Servers go on: ending them is their scheduler's.
        assert (ps.process.poll(), worker.process.poll()) == (None, None)


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
        f"tf-syncrep task: error: no answer within 0.1 s from {address}"
    )
    assert result.process.returncode == 1


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (
            ["--ready-timeout", "-1", __file__],
            "--ready-timeout must be a number of seconds that is not negative. "
            "Received: -1.0",
        ),
        (["nowhere.py"], "the script 'nowhere.py' does not exist"),
        (["-m", "no_such_module"], "there is no module 'no_such_module'"),
    ],
)
def test_bad_input_is_one_line_and_status_2(args, message):
    result = commands.run("task", *args, env={"TF_CONFIG": None})
    assert result.output == f"tf-syncrep task: error: {message}"
    assert result.process.returncode == 2
