"""The protocol "grpc+tfs": who talks by it to whom, and what comes in at its port."""

import ctypes
import json
import os
import pathlib
import re
import socket
import struct
import time

import clusters
import numpy as np
import programs
import pytest
import shared_libraries
import tensorflow as tf
import waiting
from keras_sync_replicas import make_strategy

import tf_syncrep as tfs
from tf_syncrep.python.distribute import wire
from tf_syncrep.python.distribute.errors import UsageError
from tf_syncrep.python.distribute.readiness import grpc_answers

TELLS = {"TF_CPP_MIN_LOG_LEVEL": "0"}
PREFACE = b"tfswire1"
FOUND_NOWHERE = (
    f"{os.path.dirname(tfs.__file__)}/libtf_syncrep_allow.so has loaded, but this "
    "TensorFlow does not find its server"
)
CLUSTER = {"worker": ["localhost:1"], "ps": ["localhost:2"]}


@pytest.fixture(autouse=True)
def _by_the_protocol(monkeypatch):
    """What these tests are about, whatever others talk by."""
    monkeypatch.delenv(wire.VARIABLE, raising=False)


def train():
    """Trains for some steps, and returns the last weights."""
    tf.keras.utils.set_random_seed(1)
    with make_strategy().scope():
        model = tf.keras.Sequential([tf.keras.layers.Dense(3, use_bias=False)])
        model.compile(tfs.keras.AdamAsync(0.1), loss="mse")
    x = np.linspace(0, 1, 32, dtype=np.float32).reshape([8, 4])

    def data(context):
        del context
        return tf.data.Dataset.from_tensor_slices((x, x[:, :3])).batch(2).repeat()

    tfs.keras.fit(model, data, epochs=2, steps_per_epoch=8, verbose=0)
    return model.get_weights()[0].tolist()


def start(cluster, *names, rpc_layer=wire.WIRE):
    """Starts servers that tell whom they talk to."""
    for name in names:
        # What comes from the fork server tells as much as that was started with.
        env = {**TELLS, wire.VARIABLE: rpc_layer}
        cluster.start(name, from_fork_server=False, env=env)


def trained(coordinator=wire.WIRE, **tasks):
    """The weights, and what each task says of the others, with their protocols."""
    with clusters.Cluster(1, 1, serving=()) as cluster:
        for name in ("worker-0", "ps-0"):
            layer = tasks.get(name.partition("-")[0], wire.WIRE)
            start(cluster, name, rpc_layer=layer)
        cluster.wait_until_ready()
        env = cluster.environment() | {wire.VARIABLE: coordinator}
        weights = programs.call(train, env=env)
        outputs = {name: cluster.output(name) for name in ("worker-0", "ps-0")}
    said = {
        name: set(re.findall(r"grpc\+tfs with /job:(\w+)/.*?: (yes|no)", output))
        for name, output in outputs.items()
    }
    return weights, said


def test_training_by_it_has_the_weights_of_grpc():
    weights, said = trained()
    assert said["worker-0"] == {("chief", "yes"), ("ps", "yes")}
    assert said["ps-0"] == {("chief", "yes"), ("worker", "yes")}
    by_grpc, said = trained(wire.GRPC, worker=wire.GRPC, ps=wire.GRPC)
    assert said == {"worker-0": set(), "ps-0": set()}
    assert weights == by_grpc


@pytest.mark.parametrize("without", ["coordinator", "worker", "ps"])
def test_with_a_task_that_does_not_have_it_others_talk_by_grpc(without):
    weights, said = trained(**{without: wire.GRPC})
    found = {job for found in said.values() for job, answer in found if answer == "yes"}
    assert found == ({"worker", "ps"} if without == "coordinator" else {"chief"})
    assert np.shape(weights) == (4, 3)


class Until(tf.keras.callbacks.Callback):
    """Says at times that steps are made, and ends the training when there is a file."""

    def __init__(self, file):
        super().__init__()
        self._file = pathlib.Path(file)

    def on_train_batch_end(self, batch, logs=None):
        if batch % 100 == 0:
            print("UNDER WAY", flush=True)
        if self._file.exists():
            self.model.stop_training = True


def train_until(file):
    """Trains until there is a file."""
    with make_strategy().scope():
        model = tf.keras.Sequential([tf.keras.layers.Dense(3)])
        model.compile(tfs.keras.AdamAsync(0.1), loss="mse")
    ones = np.ones([2, 3], np.float32)
    data = tf.data.Dataset.from_tensors((ones, ones)).repeat()
    steps = {"steps_per_epoch": 1_000_000}
    tfs.keras.fit(model, data, callbacks=[Until(file)], verbose=0, **steps)


def test_workers_that_come_back_with_it_use_it(tmp_path):
    stop = tmp_path / "stop"
    with clusters.Cluster(2, 1, serving=()) as cluster:
        workers = cluster.names("worker")
        start(cluster, *workers, rpc_layer=wire.GRPC)
        start(cluster, "ps-0")
        cluster.wait_until_ready()
        cluster.start("chief", programs.call_command(train_until, str(stop)))
        cluster.wait_for_output("chief", "UNDER WAY")
        for number, name in enumerate(workers):
            cluster.kill(name)
            start(cluster, name)
            cluster.wait_until_ready(name)
            task = f"/job:worker/replica:0/task:{number}"
            cluster.wait_for_output("ps-0", f"grpc+tfs with {task}: yes")
        stop.touch()
        assert cluster.wait("chief") == 0, cluster.output("chief")


def start_chief(cluster, function, *args, **env):
    """Starts a coordinator that tells whom it talks to; `env` is for it alone."""
    command = programs.call_command(function, *args)
    env = {**programs.environment(), **TELLS, **env}
    cluster.start("chief", command, from_fork_server=False, env=env)


def test_the_coordinator_asks_again_while_tasks_are_not_there():
    with clusters.Cluster(1, 1, serving=()) as cluster:
        start(cluster, "worker-0", rpc_layer=wire.GRPC)
        cluster.wait_until_ready("worker-0")
        start_chief(cluster, train)
        cluster.wait_for_output("chief", "task:0: no: it does not speak this protocol")
        cluster.wait_for_output("chief", "task:0: no: Connection refused")
        # What a task has is known when all have answered.
        cluster.kill("worker-0")
        start(cluster, "worker-0", "ps-0")
        assert cluster.wait("chief") == 0, cluster.output("chief")
        assert "calls of the coordinator go by grpc+tfs" in cluster.output("chief")


def test_a_worker_that_comes_back_without_it_is_named_and_used_when_it_has_it(tmp_path):
    stop = tmp_path / "stop"
    with clusters.Cluster(2, 1, serving=()) as cluster:
        start(cluster, "ps-0", *cluster.names("worker"))
        cluster.wait_until_ready()
        start_chief(cluster, train_until, str(stop))
        cluster.wait_for_output("chief", "UNDER WAY")
        cluster.kill("worker-1")
        start(cluster, "worker-1", rpc_layer=wire.GRPC)
        task = "/job:worker/replica:0/task:1"
        named = f"no connection to {task}, which answers, but"
        cluster.wait_for_output("chief", named)
        since = time.monotonic()
        # The other one goes on.
        so_far = cluster.output("chief").count("UNDER WAY")
        cluster.wait_for_output("chief", "UNDER WAY", occurrence=so_far + 2)
        # TensorFlow asks for it again and again.
        times = cluster.output("chief").count(named)
        assert times < 10 + 5 * (time.monotonic() - since)
        cluster.kill("worker-1")
        start(cluster, "worker-1")
        cluster.wait_for_output("worker-1", "with /job:ps/replica:0/task:0: yes")
        stop.touch()
        assert cluster.wait("chief") == 0, cluster.output("chief")


@pytest.fixture(scope="module")
def server():
    with clusters.Cluster(1, 1, serving=()) as cluster:
        start(cluster, "ps-0")
        cluster.wait_until_ready("ps-0")
        yield cluster


def connect(cluster, name):
    host, port = cluster.address(name).rsplit(":", 1)
    connection = socket.create_connection((host, int(port)), timeout=30)
    connection.settimeout(30)
    return connection


def hello(to="/job:ps/replica:0/task:0", version="0"):
    """A task's first frame, behind the preface of who dials."""
    texts = [version, "/job:worker/replica:0/task:7", to]
    meta = b"".join(struct.pack("<I", len(text)) + text.encode() for text in texts)
    meta += struct.pack("<Q", 1)
    return PREFACE + frame(1, meta)


def frame(kind, meta=b"", number=0, body=0, code=0):
    head = struct.pack(
        "<IBBHIIQQ", 0x77736674, kind, code, 0, len(meta), 0, number, body
    )
    return head + meta


def test_other_versions_are_told_this_one_and_left_to_grpc(server):
    with connect(server, "ps-0") as connection:
        connection.sendall(hello())
        answer = connection.makefile("rb").read()
    assert f"TensorFlow {tf.__version__}".encode() in answer
    server.wait_for_output("ps-0", "it has version 0, and this task ")
    assert grpc_answers(server.address("ps-0"))


@pytest.mark.parametrize(
    "sent",
    [
        PREFACE[:3] + b"?" * 100,
        PREFACE + b"\0" * 200,
        PREFACE + frame(2, number=5),  # a request before a hello
        PREFACE + frame(1, b"short"),
        PREFACE + frame(1, body=1 << 62),
    ],
)
def test_what_is_no_frame_ends_the_connection_and_nothing_else(server, sent):
    with connect(server, "ps-0") as connection:
        connection.sendall(sent)
        assert connection.makefile("rb").read() == b""
    assert server.status("ps-0") is None
    assert grpc_answers(server.address("ps-0"))


def test_a_hello_for_another_task_is_not_answered_by_calls(server):
    with connect(server, "ps-0") as connection:
        connection.sendall(hello(to="/job:ps/replica:0/task:9"))
        connection.makefile("rb").read()  # to the end
    assert server.status("ps-0") is None


@pytest.mark.parametrize(
    ("rpc_layer", "asked", "chosen"),
    [
        (None, wire.WIRE, wire.WIRE),
        ("grpc", wire.WIRE, wire.WIRE),
        (None, None, None),
        ("grpc", wire.GRPC, "grpc"),
        ("grpc+tfs", None, wire.WIRE),
        ("grpc+verbs", wire.WIRE, "grpc+verbs"),
    ],
)
def test_tf_config_names_what_was_asked_for(rpc_layer, asked, chosen):
    config = {"cluster": CLUSTER, "task": {"type": "worker", "index": 0}}
    if rpc_layer is not None:
        config["rpc_layer"] = rpc_layer
    environ = {"TF_CONFIG": json.dumps(config)}
    if asked is not None:
        environ[wire.VARIABLE] = asked
    wire.choose(environ)
    assert json.loads(environ["TF_CONFIG"]).get("rpc_layer") == chosen


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "7", '{"cluster": {"worker": ["a:1"]}}', '{"cluster": 3}']
)
def test_other_configurations_are_left_as_they_are(text):
    environ = {"TF_CONFIG": text, wire.VARIABLE: wire.WIRE}
    wire.choose(environ)
    assert environ["TF_CONFIG"] == text


def test_where_it_does_not_load_a_line_says_so_and_it_is_grpc(monkeypatch, capfd):
    monkeypatch.setattr(wire, "problem", lambda: "a reason")
    assert wire.usable(wire.WIRE) == wire.GRPC
    assert capfd.readouterr().err == (
        "tf_syncrep: tasks talk to this one by gRPC alone: a reason\n"
    )
    assert wire.usable(wire.GRPC) == wire.GRPC
    assert capfd.readouterr().err == ""


def test_where_its_server_is_not_registered_a_line_says_so_and_it_is_grpc():
    finished = programs.run_source("""
import tf_syncrep as tfs
from tf_syncrep.python.distribute import wire
wire._LIBRARY_NAME = "libtf_syncrep_allow.so"  # It loads, and registers nothing.
print(tfs.distribute.Server({"worker": ["localhost:0"]}).target)
""")
    assert finished.stdout.startswith("grpc://"), finished.stderr
    assert re.findall("^tf_syncrep: .*", finished.stderr, re.MULTILINE) == [
        f"tf_syncrep: tasks talk to this one by gRPC alone: {FOUND_NOWHERE}"
    ]


def test_a_variable_with_another_protocol_is_an_error():
    with pytest.raises(UsageError, match=r"one of grpc\+tfs, grpc. Received: 'http'"):
        wire.asked_for({wire.VARIABLE: "http"})


def session_of(target):
    """The sum of what two devices have, by a session of TensorFlow 1."""
    graph = tf.Graph()
    with graph.as_default():
        with tf.device("/job:ps/task:0"):
            there = tf.compat.v1.get_variable("v", initializer=tf.range(3.0))
        with tf.device("/job:worker/task:0"):
            total = tf.reduce_sum(there)
        with tf.compat.v1.Session(target) as session:
            session.run(there.initializer)
            return float(session.run(total))


def serve_a_session():
    """Starts this task's own server, and runs a session on it in both ways."""
    config = json.loads(os.environ["TF_CONFIG"])
    server = tfs.distribute.Server(tf.train.ClusterSpec(config["cluster"]), "worker", 0)
    resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
    return [session_of(server.target), session_of(resolver.master())], resolver.master()


def test_a_server_of_a_script_has_it():
    with clusters.Cluster(1, 1, chief=False, serving=()) as cluster:
        start(cluster, "ps-0")
        cluster.wait_until_ready("ps-0")
        sums, master = programs.call(
            serve_a_session, env=cluster.environment("worker-0")
        )
        assert sums == [3.0, 3.0]
        assert master.startswith("grpc+tfs://")
        assert "grpc+tfs with /job:worker/replica:0/task:0: yes" in cluster.output(
            "ps-0"
        )


# A thread of TensorFlow's draws numbers for requests beginning with 32 random bits, and
# each step of a session is in a thread of its own.
SAME_BITS = """
extern "C" unsigned _ZNSt13random_device9_M_getvalEv(void*) { return 4; }
"""


def test_steps_whose_requests_have_the_same_random_number_are_no_error(tmp_path):
    library = shared_libraries.build(
        tmp_path / "same_bits.so", "-x", "c++", "-", text=SAME_BITS
    )
    with clusters.Cluster(1, 1, chief=False, serving=()) as cluster:
        start(cluster, "ps-0")
        cluster.wait_until_ready("ps-0")
        cluster.start(
            "worker-0",
            programs.call_command(serve_a_session),
            from_fork_server=False,
            env={**programs.environment(), "LD_PRELOAD": library},
        )
        assert cluster.wait("worker-0") == 0, cluster.output("worker-0")


# TensorFlow calls it while it calls a function of another task.
FILL_ATTRIBUTES = (
    "_ZNK10tensorflow11AttrBuilder16FillAttrValueMapEPN6google8protobuf3MapI"
    "NSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEENS_9AttrValueEEE"
)
# The first such call after `gate` is 1 waits until it is 3.
GATE = """
#include <atomic>
#include <dlfcn.h>
#include <unistd.h>
extern "C" {
std::atomic<int> gate{0};
void FILL_ATTRIBUTES(const void* attributes, void* map) {
  using Fill = void (*)(const void*, void*);
  // Some versions of it are not among the libraries that all others see.
  static void* const library = dlopen("libtensorflow_cc.so.2", RTLD_NOW | RTLD_NOLOAD);
  static const auto fill = reinterpret_cast<Fill>(dlsym(library, "FILL_ATTRIBUTES"));
  fill(attributes, map);
  int shut = 1;
  if (gate.compare_exchange_strong(shut, 2)) {
    while (gate != 3) usleep(1000);
  }
}
}
""".replace("FILL_ATTRIBUTES", FILL_ATTRIBUTES)
# Memory that is freed does not keep what it had.
TUNABLES = "glibc.malloc.perturb=165:glibc.malloc.tcache_count=0"


def call_while_others_are_called_first():
    """Calls a function on a server while so many others are called as never before."""
    make_strategy()
    gate = ctypes.c_int.in_dll(ctypes.CDLL(None), "gate")
    device = tf.device("/job:ps/replica:0/task:0/device:CPU:0")
    with device:
        variable = tf.Variable(3.0)

    def new_function(addend):
        @tf.function
        def function():
            with device:
                return variable.read_value() + addend

        return function

    function = new_function(1.0)
    function()
    gate.value = 1
    called = waiting.in_thread(lambda: float(function()))
    waiting.until(lambda: gate.value == 2)
    for number in range(40):
        new_function(float(number))()
    gate.value = 3
    return called.result(60)


def test_a_function_is_called_while_others_are_for_the_first_time(tmp_path):
    library = shared_libraries.build(tmp_path / "gate.so", "-x", "c++", "-", text=GATE)
    with clusters.Cluster(1, 1, serving=()) as cluster:
        start(cluster, "ps-0", "worker-0")
        cluster.wait_until_ready()
        start_chief(
            cluster,
            call_while_others_are_called_first,
            LD_PRELOAD=library,
            GLIBC_TUNABLES=TUNABLES,
        )
        assert cluster.wait("chief") == 0, cluster.output("chief")
        assert programs.result_in(cluster.output("chief")) == 4.0
