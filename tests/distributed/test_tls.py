"""`--tls`: tasks in different networks talk through TLS, and strangers cannot."""

import contextlib
import os
import pathlib
import shutil
import signal
import socket
import ssl
import subprocess
import types

import certificates
import commands
import network_namespaces
import process_threads
import pytest

from tf_syncrep.python.distribute import ports, readiness, tls, tunnels
from tf_syncrep.python.distribute.cluster import TaskConfig
from tf_syncrep.python.distribute.errors import UsageError

_PORT = 2222
COUNTING_SCRIPT = pathlib.Path(__file__).with_name("counting_script.py")


@pytest.fixture(name="files", scope="module")
def _files(tmp_path_factory):
    """Paths of a task's files, and of a stranger's, which another authority signed."""
    if shutil.which("openssl") is None:
        pytest.skip("certificates take the program openssl")
    folder = tmp_path_factory.mktemp("certificates")
    owners = ("task", "stranger")
    made = {owner: certificates.make(folder, owner) for owner in owners}
    return types.SimpleNamespace(folder=folder, **made)


@pytest.fixture(name="stunnel")
def _stunnel():
    """Skips the test where there is no stunnel."""
    if shutil.which("stunnel") is None:
        pytest.skip("--tls takes the program stunnel, of Debian's package stunnel4")


def _option(files):
    return ",".join(map(str, files))


class _Cluster:
    """A chief, a worker and a parameter server, in a namespace each."""

    def __init__(self, namespaces, files):
        self._names = ("chief", "worker", "ps")
        self._namespaces = dict(zip(self._names, namespaces, strict=True))
        self.addresses = {
            name: (namespace.inside, _PORT)
            for name, namespace in self._namespaces.items()
        }
        self._files = files

    def start(self, name):
        cluster = {n: [f"{h}:{p}"] for n, (h, p) in self.addresses.items()}
        config = TaskConfig(cluster, name, 0)
        return commands.Command(
            # This makes sure that it is TLS that keeps strangers out.
            *("task", "--allow", "all", "--tls", _option(self._files)),
            *(COUNTING_SCRIPT, "stays"),
            program=[*self._namespaces[name].within, commands.CONSOLE_SCRIPT],
            env={"TF_CONFIG": config.to_json(), "TF_CPP_MIN_LOG_LEVEL": "2"},
            stdin=subprocess.PIPE,
        )


def _greeting(address, context=None):
    """The answer of a gRPC server to a client; empty if there is none."""
    answer = b""
    with (
        contextlib.suppress(OSError),
        socket.create_connection(address, 10.0) as plain,
        context.wrap_socket(plain) if context else plain as connection,
    ):
        connection.sendall(readiness.CLIENT_PREFACE)
        answer = connection.recv(9)
    return answer


def _context(files=None):
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    if files:
        context.load_cert_chain(*files[:2])
    return context


@pytest.mark.ci
@pytest.mark.usefixtures("stunnel")
def test_a_cluster_trains_through_tls_and_nobody_else_gets_in(files):
    with network_namespaces.namespaces(3) as namespaces:
        cluster = _Cluster(namespaces, files.task)
        with (
            cluster.start("ps") as ps,
            cluster.start("worker") as worker,
            cluster.start("chief") as chief,
        ):
            chief.wait_for_line("counted 6 on /job:ps/replica:0/task:0")
            for address in cluster.addresses.values():
                assert _greeting(address) == b"", "without TLS"
                assert _greeting(address, _context()) == b"", "without a certificate"
                stranger = _context(files.stranger)
                assert _greeting(address, stranger) == b"", "of another authority"
                assert _greeting(address, _context(files.task))[3:4] == b"\x04"
            # Behind its stunnel, each server is reachable only from its own machine.
            for host, _ in cluster.addresses.values():
                for port in range(3):
                    port += ports.TLS_BASE_PORT
                    assert _greeting((host, port)) == b""
            chief.process.stdin.close()
            assert chief.wait() == 0, chief.output
            # Servers go on, since their scheduler ends them.
            assert (ps.process.poll(), worker.process.poll()) == (None, None)
            for server in (ps, worker):
                server.process.send_signal(signal.SIGTERM)
                assert server.wait() == 128 + signal.SIGTERM
                server.wait_until_no_process_is_left()


@pytest.mark.usefixtures("stunnel")
def test_a_task_ends_with_its_stunnel(files):
    with network_namespaces.namespaces(3) as namespaces:
        cluster = _Cluster(namespaces, files.task)
        with cluster.start("ps") as ps:
            ps.wait_for_line("serving ps 0 at 127.0.0.1:")
            watcher = process_threads.only_child(ps.process.pid)
            os.kill(process_threads.only_child(watcher), signal.SIGKILL)
            assert ps.wait() == 128 + signal.SIGTERM
            assert "error: stunnel ended with status -9, and the task" in ps.output


def test_bad_files_are_one_sentence(files, tmp_path):
    certificate, key, authority = files.task
    empty = tmp_path / "empty.pem"
    empty.touch()
    for value, message in {
        "a,b": "--tls must be three files, CERT,KEY,CA. Received: 'a,b'",
        f"{certificate},,{authority}": "--tls must be three files, CERT,KEY,CA.",
        f"{certificate},{key},/no/where": (
            "--tls: CA cannot be read (No such file or directory). Received: "
            "'/no/where'"
        ),
        _option((certificate, files.stranger[1], authority)): (
            "--tls: KEY is not the key, without a password, of the certificate in CERT "
            "(key values mismatch)."
        ),
        _option((certificate, empty, authority)): "--tls: KEY is not the key,",
        _option((certificate, key, empty)): "--tls: CA has no certificate (",
        _option((*files.task[:2], files.stranger[2])): (
            "--tls: CA does not vouch for CERT (unable to get local issuer certificate)"
        ),
    }.items():
        with pytest.raises(UsageError) as error:
            tls.Credentials.parse(value)
        assert str(error.value).startswith(message), str(error.value)
        assert "\n" not in str(error.value)


CONFIG = TaskConfig({"worker": ["w0:1", "w1:1"], "ps": ["p:1"]}, "worker", 1)


def test_local_ports_are_the_same_whatever_the_order_of_the_task_types():
    local = tunnels.local_config(CONFIG, 100)
    assert local.cluster == {
        "ps": ["127.0.0.1:100"],
        "worker": ["127.0.0.1:101", "127.0.0.1:102"],
    }
    assert (local.task_type, local.task_index) == ("worker", 1)
    for base_port in (0, 65534):
        with pytest.raises(UsageError, match="must leave room for 3 ports"):
            tunnels.local_config(CONFIG, base_port)


def _command(command, files, *options):
    """The words of a command with TLS, and the environment in which it is run."""
    config = TaskConfig({"ps": ["h:1024"]}, "ps", 0)
    words = [command, *options, "--tls", _option(files.task)]
    words += [__file__] if command == "task" else []
    return words, {"TF_CONFIG": config.to_json()}


@pytest.mark.parametrize("command", ["serve", "task"])
def test_without_stunnel_one_line_says_so(command, files):
    words, env = _command(command, files)
    result = commands.run(*words, env=env | {"PATH": str(files.folder)})
    assert result.output == (
        "tf-syncrep serve: error: --tls needs the program stunnel (Debian: stunnel4), "
        "not found"
    )
    assert result.process.returncode == 2


def test_reason_why_stunnel_does_not_start_is_said(files, tmp_path):
    stunnel = tmp_path / "stunnel"
    stunnel.write_text("#!/no/such/interpreter\n")
    stunnel.chmod(0o755)
    words, env = _command("serve", files)
    result = commands.run(*words, env=env | {"PATH": str(tmp_path)})
    assert result.stderr == [
        "tf-syncrep: error: stunnel could not be started: [Errno 2] No such file or "
        f"directory: '{stunnel}'",
        "tf-syncrep serve: error: --tls: stunnel ended before it listened",
    ]
    assert result.process.returncode == 2


def test_idle_connections_are_kept(files):
    config = TaskConfig({"ps": ["h:1024"]}, "ps", 0)
    credentials = tls.Credentials.parse(_option(files.task))
    text = tunnels.stunnel_config(
        config, tunnels.local_config(config, 30000), credentials
    )
    # Stunnel makes milliseconds of it, in 32 bits, unless it is negative.
    assert "\nTIMEOUTidle = -1\n" in text


@pytest.mark.usefixtures("stunnel")
@pytest.mark.parametrize("command", ["serve", "task"])
def test_with_a_port_in_use_one_line_says_so(command, files):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        words, env = _command(command, files, "--tls-base-port", port)
        result = commands.run(*words, env=env)
    assert result.output == f"tf-syncrep serve: error: port {port} is in use"
    assert result.process.returncode == 2
