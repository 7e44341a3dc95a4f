"""`tf-syncrep serve`: one task of TF_CONFIG, its errors and its end."""

import json
import signal
import socket

import clusters
import commands
import pytest

from tf_syncrep.python.distribute import server
from tf_syncrep.python.distribute.readiness import grpc_answers


def config(cluster=None, task_type="worker", index=0):
    cluster = cluster or {"ps": ["h:20001"], "worker": ["h:20002", "h:20003"]}
    return {"cluster": cluster, "task": {"type": task_type, "index": index}}


OF_INDEX = "TF_CONFIG['task']['index'] must be"
OF_TYPE = "TF_CONFIG['task']['type'] must be"
PLACE = "an address in a cluster must be 'host:port' with a port between 1 and 65535."


@pytest.mark.parametrize(
    ("tf_config", "message", "received"),
    [
        (["a"], "TF_CONFIG must be a JSON object.", ["a"]),
        ({}, "TF_CONFIG must have an entry 'cluster'.", {}),
        ({"cluster": 1}, "TF_CONFIG['cluster'] must be a JSON object.", 1),
        (
            config({"ps": "a:1"}),
            *(
                "TF_CONFIG['cluster']['ps'] must be a list of 'host:port' strings.",
                "a:1",
            ),
        ),
        (config({"worker": ["localhost"]}), PLACE, "localhost"),
        (config({"worker": ["h:65536"]}), PLACE, "h:65536"),
        ({"cluster": {}}, "TF_CONFIG must have an entry 'task'.", {"cluster": {}}),
        (
            {"cluster": {}, "task": {"index": 0}},
            *("TF_CONFIG['task'] must have an entry 'type'.", {"index": 0}),
        ),
        (config(task_type=3), f"{OF_TYPE} a string.", 3),
        (
            config(task_type="master"),
            f"{OF_TYPE} one of the task types of the cluster ('ps', 'worker').",
            "master",
        ),
        (
            config({"chief": ["a:1"]}, "chief"),
            f"{OF_TYPE} 'ps' or 'worker' for a task that is served; others run the "
            "training script.",
            "chief",
        ),
        (
            config(index=2),
            f"{OF_INDEX} below the number of 'worker' tasks in the cluster, 2.",
            2,
        ),
        (config(index=-1), f"{OF_INDEX} an integer that is not negative.", -1),
        (config(index="one"), f"{OF_INDEX} an integer that is not negative.", "one"),
        (config() | {"rpc_layer": 1}, "TF_CONFIG['rpc_layer'] must be a string.", 1),
    ],
)
def test_a_bad_tf_config_is_one_line_and_status_2(tf_config, message, received):
    result = commands.run("serve", env={"TF_CONFIG": json.dumps(tf_config)})
    said = f"tf-syncrep serve: error: {message} Received: {received!r}"
    assert result.output == said
    assert result.process.returncode == 2


@pytest.mark.parametrize("command", [["serve"], ["task", __file__]])
@pytest.mark.parametrize(
    ("text", "message"),
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
    ],
    ids=["none", "no_json"],
)
def test_no_tf_config_is_one_line_and_status_2(command, text, message):
    result = commands.run(*command, env={"TF_CONFIG": text})
    assert result.output == f"tf-syncrep {command[0]}: error: {message}"
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


def test_more_threads_than_cores_do_not_spin():
    few, many = server.config_for(2), server.config_for(8)
    assert few.inter_op_parallelism_threads > 2
    assert few.experimental.disable_thread_spinning
    # TensorFlow's own choice: as many as cores.
    assert many.inter_op_parallelism_threads == 0
    assert not many.experimental.disable_thread_spinning


def test_serves_the_task_at_its_address_again_after_a_kill_and_ends_by_signals():
    with clusters.Cluster() as cluster:
        address = cluster.address("worker-0")
        serving = f"serving worker 0 at {address} (grpc://{address}, TensorFlow "
        cluster.wait_for_output("worker-0", serving)
        cluster.kill("worker-0")
        assert cluster.status("worker-0") == -signal.SIGKILL
        assert not grpc_answers(address)
        cluster.restart("worker-0")
        cluster.wait_for_output("worker-0", serving, occurrence=2)
        cluster.kill("worker-0", signal.SIGTERM)
        assert cluster.status("worker-0") == 128 + signal.SIGTERM
        cluster.kill("ps-0", signal.SIGINT)
        assert cluster.status("ps-0") == 128 + signal.SIGINT
        assert "Traceback" not in cluster.output("ps-0")


def test_a_suspended_server_does_not_answer_although_its_port_accepts():
    with clusters.Cluster(num_ps=0) as cluster:
        address = cluster.address("worker-0")
        cluster.suspend("worker-0")
        host, port = address.split(":")
        socket.create_connection((host, int(port))).close()
        assert not grpc_answers(address, timeout_secs=0.5)
        cluster.resume("worker-0")
        cluster.wait_until_ready("worker-0")
