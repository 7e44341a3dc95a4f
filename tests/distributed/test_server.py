"""`tf-syncrep serve`: one task of TF_CONFIG, its errors and its end."""

import os
import pathlib
import signal
import socket

import clusters
import commands
import programs
import pytest
import tensorflow as tf
import waiting
from process_threads import threads_named

from tf_syncrep.python.distribute import local_cluster, server, threads, wire
from tf_syncrep.python.distribute.cluster import TaskConfig
from tf_syncrep.python.distribute.readiness import grpc_answers

_INTRA = "TF_NUM_INTRAOP_THREADS"
NAMES_THREADS = tuple(map(int, tf.__version__.split(".")[:2])) >= (2, 16)


def test_a_port_in_use_is_one_line_and_status_2():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        config = TaskConfig({"ps": [f"127.0.0.1:{port}"]}, "ps", 0)
        result = commands.run("serve", env={"TF_CONFIG": config.to_json()})
    assert result.output == f"tf-syncrep serve: error: port {port} is in use"
    assert result.process.returncode == 2


def test_more_threads_than_cores_do_not_spin():
    few, many = threads.config_for(2, {}), threads.config_for(8, {})
    assert few.inter_op_parallelism_threads > 2
    assert few.experimental.disable_thread_spinning
    # TensorFlow itself would choose the number of cores.
    assert many.inter_op_parallelism_threads == 0
    assert not many.experimental.disable_thread_spinning


@pytest.mark.parametrize("num_cores", [1, 2, 8])
def test_no_server_has_a_single_thread_for_ops(num_cores):
    for told in ("1", " 1"):
        config = threads.config_for(num_cores, {threads.INTER_OP_VARIABLE: told})
        assert config.inter_op_parallelism_threads == threads.MIN_INTER_OP_THREADS == 2
    assert threads.config_for(1, {}).inter_op_parallelism_threads > 1


def test_the_environment_says_how_many_threads_there_are():
    environ = threads.environment(2, None, {threads.INTRA_OP_VARIABLE: "3"})
    assert environ == {"TF_NUM_INTEROP_THREADS": "2", "TF_NUM_INTRAOP_THREADS": "3"}
    assert threads.config_for(2, environ).inter_op_parallelism_threads == 0


@pytest.mark.parametrize(
    ("workers", "base", "wanted"),
    [(0, {}, "5"), (1, {}, "5"), (2, {}, "2"), (9, {}, "1"), (2, {_INTRA: "7"}, "7")],
)
def test_workers_of_a_machine_share_its_cores(monkeypatch, workers, base, wanted):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(5)))
    task = TaskConfig({"worker": ["here:1"] * workers, "ps": ["here:2"]}, "ps", 0)
    assert local_cluster.environment(task, base)[_INTRA] == wanted


@pytest.mark.slow
def test_the_memory_of_large_messages_is_used_again():
    """Of a tensor's 4096 pages, some 2700 would be new in every step."""
    program = pathlib.Path(__file__).with_name("large_messages_program.py")
    with clusters.Cluster() as cluster:
        pid = cluster.pid("worker-0")
        assert programs.run(program, pid, env=cluster.environment()) < 700


def test_what_the_environment_says_of_memory_is_left_alone():
    assert not server.keep_memory_for_messages({"MALLOC_ARENA_MAX": "2"})


def test_serves_the_task_at_its_address_again_after_a_kill_and_ends_by_signals(
    monkeypatch,
):
    monkeypatch.setenv(threads.INTER_OP_VARIABLE, "3")
    with clusters.Cluster() as cluster:
        address = cluster.address("worker-0")
        protocol = wire.asked_for(os.environ)
        serving = f"serving worker 0 at {address} ({protocol}, TensorFlow "
        cluster.wait_for_output("worker-0", serving)
        # TensorFlow 2.15 gives its threads no names, and others name themselves.
        wanted = 3 if NAMES_THREADS else 0
        pid = cluster.pid("worker-0")
        waiting.until(lambda: len(threads_named("tf_Compute", pid)) >= wanted)
        assert len(threads_named("tf_Compute", pid)) == wanted
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
