"""`--allow`: which hosts reach the tasks of a cluster, tried from another network."""

import contextlib
import ipaddress
import json
import os
import pathlib
import re
import socket
import subprocess
import sys

import commands
import network_namespaces
import pytest
import waiting

from tf_syncrep.python.distribute import allow, local_cluster, readiness
from tf_syncrep.python.distribute.cluster import TaskConfig
from tf_syncrep.python.distribute.errors import UsageError

SCRIPT = pathlib.Path(__file__).with_name("listening_script.py")

# The answer of gRPC's servers, and of the script's.
_TRY = """
import json, socket, sys

def outcome(host, port):
    try:
        with socket.create_connection((host, port), 5.0) as connection:
            connection.sendall(bytes.fromhex(sys.argv[2]))
            return "answered" if connection.recv(1) else "refused"
    except ConnectionError:
        return "refused"

print(json.dumps([outcome(*address) for address in json.loads(sys.argv[1])]))
"""

# The id of root without its privileges, which nothing here needs.
_UNPRIVILEGED = ["setpriv", "--bounding-set=-all", "--inh-caps=-all", "--no-new-privs"]
_LAUNCH = ["launch", "--workers", 1, "--ps", 0, "--run-script-on", "workers"]


@pytest.fixture(name="namespace")
def _namespace():
    with network_namespaces.namespace() as made:
        yield made


def _outcomes(addresses, within=()):
    command = [
        *within,
        sys.executable,
        "-c",
        _TRY,
        json.dumps(addresses),
        readiness.CLIENT_PREFACE.hex(),
    ]
    ran = subprocess.run(command, check=True, capture_output=True, text=True)
    return json.loads(ran.stdout)


def _ports(command):
    """The script listens by IPv4, by both families, and in a child process."""
    command.wait_for_line("complete")
    return [int(port) for port in re.findall(r"listening (\d+)", command.output)]


def _end(port, host="127.0.0.1"):
    with socket.create_connection((host, port)) as connection:
        connection.sendall(b"end")


@pytest.mark.parametrize(
    ("options", "outcome"),
    [
        ([], "refused"),
        (["--allow", "all"], "answered"),
        (["--allow", "{inside}"], "answered"),
        (["--allow", "10.0.0.0/8"], "refused"),
    ],
)
def test_launch_lets_in_this_machine_and_whom_it_is_told_to(
    namespace, options, outcome
):
    options = [option.format(inside=namespace.inside) for option in options]
    with commands.Command(
        *(*_LAUNCH, *options, SCRIPT),
        program=[*_UNPRIVILEGED, commands.CONSOLE_SCRIPT],
    ) as launched:
        ports = _ports(launched)
        assert len(ports) == 3
        addresses = [(namespace.outside, port) for port in ports]
        assert _outcomes(addresses, namespace.within) == [outcome] * 3
        own = [*addresses, *(("127.0.0.1", p) for p in ports), ("::1", ports[1])]
        assert _outcomes(own) == ["answered"] * 7
        if outcome == "refused":
            launched.wait_for_line(
                f"tf_syncrep: a connection from {namespace.inside} to port {ports[0]} "
                "was refused: --allow does not name that host"
            )
        _end(ports[0])
        assert launched.wait() == 0, launched.output


@pytest.mark.ci
def test_servers_and_coordinator_of_launch_are_closed(namespace, tmp_path):
    """TensorFlow's own sockets, those of a coordinator that is also a server."""
    script = tmp_path / "train.py"
    script.write_text(
        "import os, sys, tensorflow as tf\n"
        "resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()\n"
        "strategy = tf.distribute.ParameterServerStrategy(resolver)\n"
        "print('cluster', os.environ['TF_CONFIG'], flush=True)\n"
        "sys.stdin.read()\n"
    )
    with commands.Command("launch", script, stdin=subprocess.PIPE) as launched:
        line = launched.wait_for_line(r"cluster ({.*})")
        cluster = json.loads(line[1])["cluster"]
        hosts = [address.split(":") for tasks in cluster.values() for address in tasks]
        assert len(hosts) == 3
        assert _outcomes(hosts) == ["answered"] * 3
        others = [(namespace.outside, port) for _, port in hosts]
        assert _outcomes(others, namespace.within) == ["refused"] * 3


def _task_within(namespace, peer, *args):
    """A chief within the namespace, in whose cluster there is one peer."""
    cluster = {"chief": [f"{namespace.inside}:1"], "evaluator": [f"{peer}:1"]}
    config = TaskConfig(cluster, "chief", 0)
    return commands.Command(
        *("task", *args, SCRIPT),
        program=[*namespace.within, commands.CONSOLE_SCRIPT],
        env={"TF_CONFIG": config.to_json()},
    )


def test_a_task_lets_in_the_hosts_of_its_cluster_as_their_addresses_change(namespace):
    hosts = namespace.hosts_file()
    hosts.write_text("198.18.255.254 peer.test\n")
    with _task_within(namespace, "peer.test") as task:
        address = (namespace.inside, _ports(task)[0])
        assert _outcomes([address]) == ["refused"]
        assert _outcomes([address], namespace.within) == ["answered"]
        # The peer was started again at another address.
        hosts.write_text(f"{namespace.outside} peer.test\n")
        waiting.until(lambda: _outcomes([address]) == ["answered"])
        _end(address[1], namespace.inside)
        assert task.wait() == 0, task.output


@pytest.mark.ci
def test_a_name_without_an_address_is_told_when_somebody_is_refused(namespace):
    with _task_within(namespace, "nowhere.invalid") as task:
        address = (namespace.inside, _ports(task)[0])
        assert _outcomes([address]) == ["refused"]
        task.wait_for_line(
            f"a connection from {namespace.outside} to port {address[1]} was refused: "
            r"--allow does not name that host.*; nowhere\.invalid has no address"
        )


@pytest.mark.parametrize(
    ("args", "outcome"),
    [
        ([], "refused"),
        (["--allow", "{pair}"], "answered"),
        (["--allow", "local"], "refused"),
        (["--allow", "all"], "answered"),
    ],
)
def test_a_task_lets_in_whom_it_is_told_to(namespace, args, outcome):
    pair = ipaddress.ip_network(f"{namespace.outside}/31", strict=False)
    args = [arg.format(pair=pair) for arg in args]
    with _task_within(namespace, "198.18.255.254", *args) as task:
        assert _outcomes([(namespace.inside, _ports(task)[0])]) == [outcome]


@pytest.mark.ci
@pytest.mark.parametrize(
    "args", [[], pytest.param(["--allow", "all"], marks=pytest.mark.slow)]
)
def test_a_server_lets_in_whom_it_is_told_to(namespace, args):
    ports = local_cluster.LocalCluster(0, 1, chief=False)
    port = ports.tasks[0].port
    ports.close()
    config = TaskConfig({"ps": [f"{namespace.inside}:{port}"]}, "ps", 0)
    with commands.Command(
        *("serve", *args),
        program=[*namespace.within, commands.CONSOLE_SCRIPT],
        env={"TF_CONFIG": config.to_json()},
    ) as server:
        server.wait_for_line("serving ps 0")
        address = (namespace.inside, port)
        assert _outcomes([address]) == ["answered" if args else "refused"]
        assert _outcomes([address], namespace.within) == ["answered"]


@contextlib.contextmanager
def _listening(*args, **options):
    """A program that is kept to the hosts of CONFIG; it is killed in the end."""
    environ = allow.environment("local", CONFIG, os.environ)
    with subprocess.Popen(
        [sys.executable, *args],
        stdout=subprocess.PIPE,
        env=environ,
        text=True,
        **options,
    ) as program:
        try:
            yield program
        finally:
            program.kill()


def test_a_full_pipe_that_nobody_reads_keeps_nobody_out(namespace):
    unread, full = os.pipe()
    os.set_blocking(full, False)
    with contextlib.suppress(BlockingIOError):
        while True:
            os.write(full, bytes(4096))
    os.set_blocking(full, True)
    with _listening(SCRIPT, "child", stdin=subprocess.PIPE, stderr=full) as program:
        port = int(program.stdout.readline().split()[1])
        outside = (namespace.outside, port)
        assert _outcomes([outside], namespace.within) == ["refused"]
        assert _outcomes([outside, ("127.0.0.1", port)]) == ["answered"] * 2
    os.close(unread)
    os.close(full)


_ACCEPTING = """
import select, socket, sys
server = socket.create_server(("", 0))
print(server.getsockname()[1], flush=True)
if sys.argv[1] == "polls":
    select.select([server], [], [])
try:
    server.accept()[0].sendall(b"yes")
    print("accepted")
except ConnectionAbortedError:
    print("aborted")
"""


@pytest.mark.parametrize(
    ("first", "end"), [("polls", "aborted"), ("waits", "accepted")]
)
def test_a_refused_connection_holds_up_nobody_who_has_polled(namespace, first, end):
    """Who waits for connections without polling goes on waiting."""
    with _listening("-c", _ACCEPTING, first) as accepting:
        port = int(accepting.stdout.readline())
        status = pathlib.Path(f"/proc/{accepting.pid}/status")
        waiting.until(lambda: "State:\tS" in status.read_text())
        outside = (namespace.outside, port)
        assert _outcomes([outside], namespace.within) == ["refused"]
        if first == "waits":
            assert _outcomes([outside]) == ["answered"]
        said, _ = accepting.communicate(timeout=commands.DEADLINE_SECS)
        assert said.strip() == end


_RULE = (
    "--allow must be 'all', or some of 'local', 'cluster' and networks such as "
    "10.0.0.0/8, separated by commas"
)


@pytest.mark.parametrize("command", ["launch", "task", "serve"])
@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ("nobody", ""),
        ("", ""),
        ("local,all", ""),
        ("10.0.0.1/8", " (10.0.0.1/8 has host bits set)"),
        (
            "local,10.0.0.0/33",
            " ('10.0.0.0/33' does not appear to be an IPv4 or IPv6 network)",
        ),
    ],
)
def test_bad_input_is_one_line_and_status_2(command, value, reason):
    config = TaskConfig({"ps": ["h:1024"]}, "ps", 0)
    args = [] if command == "serve" else [SCRIPT]
    result = commands.run(
        *(command, "--allow", value, *args), env={"TF_CONFIG": config.to_json()}
    )
    said = f"tf-syncrep {command}: error: {_RULE}{reason}. Received: {value!r}"
    assert result.output == said
    assert result.process.returncode == 2


CONFIG = TaskConfig({"worker": ["[fd00::1]:1", "w:1"], "ps": ["10.0.0.1:1"]}, "ps", 0)


# They keep gRPC away from proxies.
NO_PROXY = dict.fromkeys(["no_proxy", "NO_PROXY"], "fd00::1,w,10.0.0.1")


def test_environment_keeps_what_else_is_preloaded():
    base = {"LD_PRELOAD": "libtcmalloc.so /x/y.so", "HOME": "/h"}
    environ = allow.environment("cluster, ::ffff:10.1.0.0/112", CONFIG, base)
    assert environ["HOME"] == "/h"
    assert environ["TF_SYNCREP_ALLOW"] == "10.1.0.0/16,fd00::1,w,10.0.0.1"
    *others, ours = environ["LD_PRELOAD"].split(":")
    assert others == ["libtcmalloc.so", "/x/y.so"]
    assert pathlib.Path(ours).name == "libtf_syncrep_allow.so"
    # A setting of an earlier launcher is not inherited.
    assert allow.environment("local", CONFIG, environ) == environ | {
        "TF_SYNCREP_ALLOW": ""
    }
    assert allow.environment("all", CONFIG, environ) == environ | {
        "TF_SYNCREP_ALLOW": "0.0.0.0/0,::/0"
    }


@pytest.mark.parametrize(
    ("folder", "message"),
    [("none", "was not built"), ("a b", "no path with a space or a colon")],
)
def test_a_library_that_cannot_be_preloaded_opens_no_port(
    folder, message, tmp_path, monkeypatch
):
    folder = tmp_path / folder
    folder.mkdir()
    monkeypatch.setattr(
        allow.op_library, "library_path", lambda: str(folder / "libtf_syncrep.so")
    )
    if message != "was not built":
        (folder / "libtf_syncrep_allow.so").touch()
    with pytest.raises(UsageError, match=f"{message}.*; --allow all opens"):
        allow.environment("local", CONFIG, {})
    base = {"LD_PRELOAD": "/x/y.so"}
    assert allow.environment("all", CONFIG, base) == base | NO_PROXY


_WITHOUT_THREAD = """
import resource, socket
server = socket.socket()
server.bind(("", 0))
status = dict(line.split(":", 1) for line in open("/proc/self/status"))
bytes = int(status["VmData"].split()[0]) * 1024 + (1 << 20)  # and no stack of a thread
resource.setrlimit(resource.RLIMIT_DATA, (bytes, resource.RLIM_INFINITY))
server.listen()
client = socket.create_connection(server.getsockname())
server.accept()[0].sendall(b"yes")
print(client.recv(3))
"""


def test_process_that_gets_no_thread_for_names_goes_on_and_says_so():
    environ = {"LD_PRELOAD": allow._library_path(), "TF_SYNCREP_ALLOW": "name.invalid"}
    command = [sys.executable, "-c", _WITHOUT_THREAD]
    ran = subprocess.run(
        command, env=os.environ | environ, capture_output=True, text=True
    )
    assert (ran.returncode, ran.stdout) == (0, "b'yes'\n"), ran.stderr
    assert "hosts are not let in, because there is no thread" in ran.stderr
