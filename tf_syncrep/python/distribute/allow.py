"""Whom a task talks to: who may connect to it (`--allow`), and by no proxy.

TensorFlow's servers listen on all addresses of a machine and execute whatever they are
sent. libtf_syncrep_allow.so (tf_syncrep/cc/preload) keeps others out: it is preloaded
into a task's process, and so into the processes that this starts, and refuses other
connections. It needs no privilege. It also hands over the connections of our own
protocol (`wire`), so that it is there as well where everybody may connect.
"""

import ctypes
import ipaddress
import os
import sys
from collections.abc import Mapping
from typing import NoReturn

from tf_syncrep.python.distribute.cluster import TaskConfig, split_address
from tf_syncrep.python.distribute.errors import UsageError
from tf_syncrep.python.ops import op_library

ALL, CLUSTER, LOCAL = "all", "cluster", "local"
VARIABLE = "TF_SYNCREP_ALLOW"
_PRELOAD = "LD_PRELOAD"
_LIBRARY_NAME = "libtf_syncrep_allow.so"
_SIGN_OF_LIBRARY = "tf_syncrep_allow"
_EVERYBODY = ["0.0.0.0/0", "::/0"]

# gRPC sends every channel through the proxy that grpc_proxy, https_proxy or http_proxy
# names, unless the host is in the first of these that is set.
_ONLY_GRPC = "no_grpc_proxy"
_ALL_PROGRAMS = ("no_proxy", "NO_PROXY")


def check(allow: str) -> None:
    """Raises UsageError if a value is malformed, or cannot be enforced here."""
    if not _opens_to_all(allow):
        _networks(allow)
        if problem := _problem_of_library():
            raise UsageError(
                f"connections cannot be restricted: {problem}; --allow all opens the "
                "ports to everybody"
            )


def environment(
    allow: str, config: TaskConfig, base: Mapping[str, str]
) -> dict[str, str]:
    """Returns the environment of a process to which only hosts in `allow` can connect.

    In it gRPC uses no proxy for the tasks of the cluster: one that does not reach them
    would make TensorFlow wait for ever. Raises UsageError: see `check`.
    """
    check(allow)
    environ, hosts = dict(base), _hosts(config)
    only_grpc = [_ONLY_GRPC] if _ONLY_GRPC in environ else []
    for variable in (*only_grpc, *_ALL_PROGRAMS):
        others = filter(None, environ.get(variable, "").split(","))
        environ[variable] = ",".join(dict.fromkeys([*others, *hosts]))
    others = [p for p in _preloaded(environ) if os.path.basename(p) != _LIBRARY_NAME]
    environ.pop(VARIABLE, None)
    if not _opens_to_all(allow) or _problem_of_library() is None:
        others.append(_library_path())
        sources = _EVERYBODY if _opens_to_all(allow) else _networks(allow)
        if CLUSTER in _items(allow):
            sources += hosts
        environ[VARIABLE] = ",".join(dict.fromkeys(sources))
    environ[_PRELOAD] = ":".join(others)
    if not others:
        del environ[_PRELOAD]
    return environ


def restrict_this_process(allow: str, config: TaskConfig) -> None:
    """Gives this process the `environment` in which only hosts in `allow` can connect.

    The process restarts itself, with the same command and process id, if it was not
    started so: a library is preloaded only when a program starts.
    """
    environ = environment(allow, config, os.environ)
    if environ != dict(os.environ):
        _begin_anew(environ)
    elif not _opens_to_all(allow) and not hasattr(ctypes.CDLL(None), _SIGN_OF_LIBRARY):
        raise UsageError(
            f"the dynamic linker ignores {_PRELOAD} for {sys.executable}, so that "
            "connections cannot be restricted; --allow all opens the port to everybody"
        )


def _begin_anew(environ: Mapping[str, str]) -> NoReturn:
    sys.stdout.flush()
    os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], environ)


def _items(allow: str) -> list[str]:
    return [item.strip() for item in allow.split(",")]


def _opens_to_all(allow: str) -> bool:
    return _items(allow) == [ALL]


def _networks(allow: str) -> list[str]:
    """Returns the networks among the items of `allow`."""
    networks: list[str] = []
    for item in _items(allow):
        if item in (LOCAL, CLUSTER):
            continue
        try:
            network = ipaddress.ip_network(item)
        except ValueError as error:
            reason = "" if "/" not in item else f" ({error})"
            raise UsageError(
                f"--allow must be {ALL!r}, or some of {LOCAL!r}, {CLUSTER!r} and "
                f"networks such as 10.0.0.0/8, separated by commas{reason}. Received: "
                f"{allow!r}"
            ) from None
        networks.append(str(_without_mapping(network)))
    return networks


def _without_mapping(
    network: ipaddress.IPv4Network | ipaddress.IPv6Network,
) -> ipaddress.IPv4Network | ipaddress.IPv6Network:
    """Converts IPv4 networks that are written as IPv6 ones."""
    if isinstance(network, ipaddress.IPv6Network) and network.prefixlen >= 96:
        mapped = network.network_address.ipv4_mapped
        if mapped is not None:
            return ipaddress.IPv4Network((mapped, network.prefixlen - 96))
    return network


def _hosts(config: TaskConfig) -> list[str]:
    """Returns names and addresses of the hosts of a cluster; none contains a comma."""
    return [
        split_address(address)[0]
        for addresses in config.cluster.values()
        for address in addresses
    ]


def _preloaded(environ: Mapping[str, str]) -> list[str]:
    return environ.get(_PRELOAD, "").replace(":", " ").split()


def _library_path() -> str:
    return os.path.join(os.path.dirname(op_library.library_path()), _LIBRARY_NAME)


def _problem_of_library() -> str | None:
    """Returns why the library cannot be preloaded, if it cannot."""
    path = _library_path()
    if not os.path.exists(path):
        return f"{path} was not built"
    if any(character in path for character in ": "):
        return (
            f"the dynamic linker takes no path with a space or a colon in it, {path!r}"
        )
    return None
