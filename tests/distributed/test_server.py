"""`tf-syncrep serve`: one task of TF_CONFIG, its errors and its end."""

import json
import signal
import socket

import clusters
import commands
import pytest

from tf_syncrep.python.distribute import server
from tf_syncrep.python.distribute.readiness import grpc_answers

CLUSTER = {"ps": ["127.0.0.1:20001"], "worker": ["127.0.0.1:20002", "h:20003"]}


def config(cluster=CLUSTER, task_type="worker", index=0):
    return {"cluster": cluster, "task": {"type": task_type, "index": index}}


@pytest.mark.parametrize(
    ("tf_config", "message"),
    [
        (
            None,
            'TF_CONFIG is not set. It must look like {"cluster": {"worker": '
            '["host:port"], "ps": ["host:port"]}, "task": {"type": "worker", '
            '"index": 0}}',
        ),
        (
            "{cluster",
            "TF_CONFIG is not valid JSON (Expecting property name enclosed in double "
            "quotes: line 1 column 2 (char 1)). Received: '{cluster'",
        ),
        (["a"], "TF_CONFIG must be a JSON object. Received: ['a']"),
        ({}, "TF_CONFIG must have an entry 'cluster'. Received: {}"),
        (
            {"cluster": ["a:1"]},
            "TF_CONFIG['cluster'] must be a JSON object. Received: ['a:1']",
        ),
        (
            config({"worker": "a:1"}),
            "TF_CONFIG['cluster']['worker'] must be a list of 'host:port' strings. "
            "Received: 'a:1'",
        ),
        (
            config({"worker": ["localhost"]}),
            "an address in a cluster must be 'host:port' with a port between 1 and "
            "65535. Received: 'localhost'",
        ),
        (
            config({"worker": ["localhost:65536"]}),
            "an address in a cluster must be 'host:port' with a port between 1 and "
            "65535. Received: 'localhost:65536'",
        ),
        (
            {"cluster": {}},
            "TF_CONFIG must have an entry 'task'. Received: {'cluster': {}}",
        ),
        (
            {"cluster": {}, "task": {"index": 0}},
            "TF_CONFIG['task'] must have an entry 'type'. Received: {'index': 0}",
        ),
        (
            config(task_type=3),
            "TF_CONFIG['task']['type'] must be a string. Received: 3",
        ),
        (
            config(task_type="master"),
            "TF_CONFIG['task']['type'] must be one of the task types of the cluster "
            "('ps', 'worker'). Received: 'master'",
        ),
        (
            config({"chief": ["a:1"]}, "chief"),
            "TF_CONFIG['task']['type'] must be 'ps' or 'worker' for a task that is "
            "served; others run the training script. Received: 'chief'",
        ),
        (
            config(index=2),
            "TF_CONFIG['task']['index'] must be below the number of 'worker' tasks in "
            "the cluster, 2. Received: 2",
        ),
        (
            config(index=-1),
            "TF_CONFIG['task']['index'] must be an integer that is not negative. "
            "Received: -1",
        ),
        (
            config(index="one"),
            "TF_CONFIG['task']['index'] must be an integer that is not negative. "
            "Received: 'one'",
        ),
        (
            config() | {"rpc_layer": 1},
            "TF_CONFIG['rpc_layer'] must be a string. Received: 1",
        ),
    ],
)
def test_a_bad_tf_config_is_one_line_and_status_2(tf_config, message):
    text = tf_config if isinstance(tf_config, str | None) else json.dumps(tf_config)
    result = commands.run("serve", env={"TF_CONFIG": text})
    assert result.output == f"tf-syncrep serve: error: {message}"
    assert result.process.returncode == 2


def test_a_port_in_use_is_one_line_and_status_2():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        tf_config = json.dumps(config({"ps": [f"127.0.0.1:{port}"]}, "ps"))
        result = commands.run("serve", env={"TF_CONFIG": tf_config})
    assert result.output == f"tf-syncrep serve: error: port {port} is in use"
    assert result.process.returncode == 2


def test_a_tensorflow_that_cannot_be_imported_is_status_1(tmp_path):
    (tmp_path / "tensorflow.py").write_text("raise ImportError('it is broken')")
    tf_config = json.dumps(config())
    result = commands.run(
        "serve", env={"TF_CONFIG": tf_config, "PYTHONPATH": str(tmp_path)}
    )
    assert "TensorFlow cannot be imported here (it is broken)" in result.output
    assert "Traceback" not in result.output
    assert result.process.returncode == 1


def test_more_threads_than_cores_do_not_spin():
    few, many = server.config_for(2), server.config_for(8)
    assert few.inter_op_parallelism_threads > 2
    assert few.experimental.disable_thread_spinning
    # TensorFlow's own choice: as many as cores.
    assert many.inter_op_parallelism_threads == 0
    assert not many.experimental.disable_thread_spinning


def test_serves_the_task_and_ends_on_sigterm_with_status_143():
    with clusters.Cluster() as cluster:
        address = cluster.address("worker-0")
        cluster.wait_for_output(
            "worker-0", f"serving worker 0 at {address} (grpc://{address}, TensorFlow "
        )
        cluster.kill("worker-0", signal.SIGTERM)
        assert cluster.status("worker-0") == 128 + signal.SIGTERM
        cluster.kill("ps-0", signal.SIGINT)
        assert cluster.status("ps-0") == 128 + signal.SIGINT
        assert "Traceback" not in cluster.output("ps-0")


USES_AN_OP_OF_THE_LIBRARY = """
import tensorflow as tf
import tf_syncrep as tfs

resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
strategy = tf.distribute.ParameterServerStrategy(resolver)
coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
with strategy.scope():
    var, m, v = (tf.Variable(tf.ones([3]) * x) for x in (1.0, 0.0, 0.0))
    beta1_power, beta2_power = tf.Variable(0.9), tf.Variable(0.999)
print(var.device)

@tf.function
def step():
    tfs.ops.resource_apply_adam_async(
        var.handle, m.handle, v.handle, beta1_power.handle, beta2_power.handle,
        lr=0.1, beta1=0.9, beta2=0.999, epsilon=1e-7, grad=tf.ones([3]))
    return tf.constant(7)

print(coordinator.schedule(step).fetch())
coordinator.join()
print(var.numpy().round(4))
"""


def test_the_op_library_is_loaded_in_workers_and_parameter_servers():
    with clusters.Cluster() as cluster:
        result = cluster.run_script(USES_AN_OP_OF_THE_LIBRARY)
    assert result.returncode == 0, result.stderr
    assert result.stdout.splitlines() == [
        "/job:ps/replica:0/task:0/device:CPU:0",
        "7",
        "[0.9 0.9 0.9]",
    ]


def test_a_killed_worker_is_restarted_at_its_address():
    with clusters.Cluster(num_ps=0) as cluster:
        cluster.wait_for_output("worker-0", "serving worker 0")
        cluster.kill("worker-0")
        assert cluster.status("worker-0") == -signal.SIGKILL
        assert not grpc_answers(cluster.address("worker-0"))
        cluster.restart("worker-0")
        cluster.wait_for_output("worker-0", "serving worker 0", occurrence=2)


def test_a_suspended_server_does_not_answer_although_its_port_accepts():
    with clusters.Cluster(num_ps=0) as cluster:
        address = cluster.address("worker-0")
        cluster.suspend("worker-0")
        host, port = address.split(":")
        socket.create_connection((host, int(port))).close()
        assert not grpc_answers(address, timeout_secs=0.5)
        cluster.resume("worker-0")
        cluster.wait_until_ready("worker-0")
