"""Lets tasks talk through TLS, by a stunnel beside each of them.

TensorFlow's servers have no encryption of their own. So a task's server listens only on
its own machine, at a local port. The task's stunnel listens at the address that
TF_CONFIG gives the task, and lets in everybody with a certificate. The task itself gets
a TF_CONFIG in which each other task has a local port, at which the task's stunnel
accepts connections for it. These ports are the same on all machines, since a
coordinator tells the tasks each other's addresses.
"""

import contextlib
import dataclasses
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from typing import IO, NoReturn

from tf_syncrep.python.distribute import allow, ports, supervision
from tf_syncrep.python.distribute.cluster import TaskConfig, split_address
from tf_syncrep.python.distribute.errors import UsageError
from tf_syncrep.python.distribute.tls import Credentials

_READY_SECS = 10.0
_POLL_SECS = 0.05


def open_for(
    config: TaskConfig, tls_files: str, allowed: str, base_port: int
) -> dict[str, str]:
    """Starts this process's stunnel. Each of the two ends with the other.

    Returns the environment of the task, with a TF_CONFIG of its own. Call it before any
    thread is started.

    `tls_files`: the certificate that it shows, and the authority that it requires; see
    `tls.Credentials.parse`. `allowed`: who may connect, as in `--allow`. Raises
    UsageError also if a port is in use, perhaps by another task of the cluster: each
    task needs a network of its own.
    """
    credentials = Credentials.parse(tls_files)
    stunnel = shutil.which("stunnel")
    if stunnel is None:
        raise UsageError(
            "--tls needs the program stunnel (Debian: stunnel4), not found"
        )
    local = local_config(config, base_port)
    listening = [split_address(address)[1] for address in _addresses(local)]
    for port in listening:
        ports.check_port_is_free(port)
    environ = allow.environment(allowed, config, os.environ)
    if config.task_type in config.cluster:
        ports.check_port_is_free(config.port)
        listening.remove(local.port)  # where the task itself will listen
        listening.append(config.port)
    _start(stunnel, stunnel_config(config, local, credentials), environ, listening)
    return {**os.environ, "TF_CONFIG": local.to_json()}


def local_config(config: TaskConfig, base_port: int) -> TaskConfig:
    """Returns the cluster as a task sees it behind its stunnel."""
    number = sum(map(len, config.cluster.values()))
    if not 0 < base_port <= 65536 - number:
        raise UsageError(
            f"--tls-base-port must leave room for {number} ports up to 65535. "
            f"Received: {base_port}"
        )
    cluster: dict[str, list[str]] = {}
    port = base_port
    for job in sorted(config.cluster):
        for _ in config.cluster[job]:
            cluster.setdefault(job, []).append(f"{ports.LOOPBACK}:{port}")
            port += 1
    return dataclasses.replace(config, cluster=cluster)


def stunnel_config(
    config: TaskConfig, local: TaskConfig, credentials: Credentials
) -> str:
    """Returns the configuration of stunnel: a service for each task of the cluster."""
    lines = [
        "foreground = yes",
        "syslog = no",
        "debug = warning",
        # gRPC's messages are small, and one waits for the other.
        "socket = l:TCP_NODELAY=1",
        "socket = r:TCP_NODELAY=1",
        # Idle connections are not closed. A number of seconds would become milliseconds
        # in 32 bits.
        "TIMEOUTidle = -1",
        f"cert = {credentials.certificate}",
        f"key = {credentials.key}",
        f"CAfile = {credentials.authority}",
        "verifyChain = yes",
        "sslVersionMin = TLSv1.2",
    ]
    for job, addresses in config.cluster.items():
        for index, outside in enumerate(addresses):
            inside = local.cluster[job][index]
            lines.append(f"[{job}-{index}]")
            if (job, index) == (config.task_type, config.task_index):
                any_address = ":::" if socket.has_dualstack_ipv6() else ""
                lines += [
                    f"accept = {any_address}{config.port}",
                    f"connect = {inside}",
                ]
            else:
                # Names are looked up for each connection, since addresses change.
                lines += [
                    "client = yes",
                    f"accept = {inside}",
                    f"connect = {outside}",
                    "delay = yes",
                ]
    return "\n".join(lines) + "\n"


def _addresses(config: TaskConfig) -> list[str]:
    return [address for tasks in config.cluster.values() for address in tasks]


def _start(
    stunnel: str, text: str, environ: Mapping[str, str], listening: list[int]
) -> None:
    """Starts stunnel below a child that watches it, and waits until it listens."""
    with tempfile.TemporaryFile() as config:
        config.write(text.encode())
        config.seek(0)
        parent = os.getpid()
        sys.stdout.flush()
        sys.stderr.flush()
        watcher = os.fork()
        if watcher == 0:
            _watch([stunnel, "-fd", str(config.fileno())], environ, config, parent)
    deadline = time.monotonic() + _READY_SECS
    while not all(map(_is_taken, listening)):
        ended = os.waitpid(watcher, os.WNOHANG)[0] != 0
        if ended or time.monotonic() > deadline:
            with contextlib.suppress(ProcessLookupError):
                os.kill(watcher, signal.SIGKILL)
            raise UsageError(
                "--tls: stunnel ended before it listened"
                if ended
                else f"--tls: stunnel did not listen within {_READY_SECS:g} s"
            )
        time.sleep(_POLL_SECS)


def _watch(
    command: Sequence[str], environ: Mapping[str, str], config: IO[bytes], parent: int
) -> NoReturn:
    """Runs in the child: ends with the task, and ends the task when stunnel ends."""
    try:
        supervision.die_with_parent(parent)
        os.setsid()  # A terminal's Ctrl-C is for the task.
        watcher = os.getpid()
        process = subprocess.Popen(
            command,
            env=dict(environ),
            pass_fds=[config.fileno()],
            stdin=subprocess.DEVNULL,
            preexec_fn=lambda: supervision.die_with_parent(watcher),
        )
        status = process.wait()
        print(
            f"tf-syncrep: error: stunnel ended with status {status}, and the task "
            "with it",
            file=sys.stderr,
            flush=True,
        )
        os.kill(parent, signal.SIGTERM)
    except OSError as error:
        print(
            f"tf-syncrep: error: stunnel could not be started: {error}",
            file=sys.stderr,
            flush=True,
        )
    finally:
        os._exit(1)


def _is_taken(port: int) -> bool:
    # This makes no connection, which stunnel would report as a failed one.
    try:
        ports.check_port_is_free(port)
    except ports.PortUnavailableError:
        return True
    return False
