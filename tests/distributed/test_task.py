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


def _tf_config(cluster, job, index=0):
    """TF_CONFIG as Kubeflow's operator writes it: other entries, no rpc_layer."""
    task = {"type": job, "index": index}
    return json.dumps({"cluster": cluster, "task": task, "environment": "cloud"})


def test_the_same_command_makes_a_cluster_with_the_chief_started_first(tmp_path):
    script = tmp_path / "train.py"
    script.write_text(_TRAINS)
    ports = local_cluster.LocalCluster(num_workers=2, num_ps=1, chief=True)
    cluster = json.loads(ports.tasks[0].config.to_json())["cluster"]
    ports.close()

    def start(job, index=0):
        return commands.Command(
            *("task", script),
            env={
                "TF_CONFIG": _tf_config(cluster, job, index),
                "TF_CPP_MIN_LOG_LEVEL": "2",
            },
        )

    with (
        start("chief") as chief,
        start("ps") as ps,
        start("worker", 1) as one,
        start("worker", 0) as other,
    ):
        assert chief.wait() == 0, chief.stderr
        assert any("3 servers answer after" in line for line in chief.stdout)
        assert any(
            "counted 6 on /job:ps/replica:0/task:0" in line for line in chief.stdout
        )
        # Servers go on: ending them is their scheduler's.
        assert {t.process.poll() for t in (ps, one, other)} == {None}


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
        (
            [__file__],
            'TF_CONFIG is not set. It must look like {"cluster": {"worker": '
            '["host:port"], "ps": ["host:port"]}, "task": {"type": "worker", '
            '"index": 0}}',
        ),
    ],
)
def test_bad_input_is_one_line_and_status_2(args, message):
    result = commands.run("task", *args, env={"TF_CONFIG": None})
    assert result.output == f"tf-syncrep task: error: {message}"
    assert result.process.returncode == 2
