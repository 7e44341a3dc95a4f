"""A network of its own for a task, on a link that can be cut and healed.

Files are shared with all others, but addresses are not. It needs root and Linux's `ip`.
"""

import contextlib
import ipaddress
import os
import pathlib
import shutil
import subprocess
from collections.abc import Iterator

import pytest

# These are reserved for tests between networks (RFC 2544), so no real network has them.
_NETWORK = ipaddress.ip_network("198.18.0.0/15")
_PREFIX_BITS, _NUM_ADDRESSES = 28, 16  # the part of them that a process takes
# `ip netns exec` puts the files here, below a namespace's name, in place of /etc.
_SETTINGS = pathlib.Path("/etc/netns")


class Namespace:
    """A namespace and the two ends of its link."""

    def __init__(self, bridge: "_Bridge", index: int):
        self._name = f"syncrep-{os.getpid()}-{index}"
        self._bridge = bridge.name
        # An interface has at most 15 characters.
        self._outer, self._inner = f"{bridge.name}o{index}", f"{bridge.name}i{index}"
        self.within = ["ip", "netns", "exec", self._name]
        self.outside, self.inside = bridge.address(0), bridge.address(1 + index)

    def make(self) -> None:
        """Makes it and its link; CalledProcessError if the system forbids it."""
        name, outer, inner = self._name, self._outer, self._inner
        _ip(f"netns add {name}")
        _ip(f"link add {outer} type veth peer name {inner} netns {name}")
        _ip(f"link set {outer} master {self._bridge}")
        _ip(f"link set {outer} up")
        _ip(f"-n {name} address add {self.inside}/{_PREFIX_BITS} dev {inner}")
        _ip(f"-n {name} link set lo up")
        self.heal()

    def hosts_file(self) -> pathlib.Path:
        """Returns the /etc/hosts of programs started in it later; empty at first."""
        folder = _SETTINGS / self._name
        folder.mkdir(parents=True, exist_ok=True)
        hosts = folder / "hosts"
        hosts.touch()
        return hosts

    def cut(self) -> None:
        """Cuts the link: messages are lost, and connections stay open."""
        _ip(f"-n {self._name} link set {self._inner} down")

    def heal(self) -> None:
        """Lets messages through again."""
        _ip(f"-n {self._name} link set {self._inner} up")

    def remove(self) -> None:
        """Removes it; nothing may run in it."""
        # Its interface disappears with it, and so the whole link, but not at once.
        for what in (f"link del {self._outer}", f"netns del {self._name}"):
            with contextlib.suppress(subprocess.CalledProcessError):
                _ip(what)
        shutil.rmtree(_SETTINGS / self._name, ignore_errors=True)


class _Bridge:
    """The bridge between the outer ends of links, and its address on this machine."""

    def __init__(self):
        self.name = f"sr{os.getpid()}"
        start = os.getpid() * _NUM_ADDRESSES % _NETWORK.num_addresses
        self._first = _NETWORK[start]

    def address(self, index: int) -> str:
        """Returns the address of this machine (0), or of a namespace."""
        assert index < _NUM_ADDRESSES - 2
        return str(self._first + 1 + index)

    def make(self) -> None:
        """Makes it; CalledProcessError if the system forbids it."""
        _ip(f"link add {self.name} type bridge")
        _ip(f"address add {self.address(0)}/{_PREFIX_BITS} dev {self.name}")
        _ip(f"link set {self.name} up")

    def remove(self) -> None:
        """Removes it."""
        with contextlib.suppress(subprocess.CalledProcessError):
            _ip(f"link del {self.name}")


@contextlib.contextmanager
def namespaces(number: int) -> Iterator[list[Namespace]]:
    """Makes namespaces that reach each other and this machine.

    The test is skipped if the system forbids it.
    """
    if shutil.which("ip") is None:
        pytest.skip("a network namespace takes `ip`, of Debian's package iproute2")
    if os.geteuid() != 0:
        pytest.skip("a network namespace takes root")
    bridge = _Bridge()
    made = [Namespace(bridge, index) for index in range(number)]
    try:
        try:
            for part in (bridge, *made):
                part.make()
        except subprocess.CalledProcessError as error:
            pytest.skip(f"no network namespace can be made here: {error.stderr}")
        yield made
    finally:
        for part in (*made, bridge):
            part.remove()


@contextlib.contextmanager
def namespace() -> Iterator[Namespace]:
    """One of the namespaces."""
    with namespaces(1) as (made,):
        yield made


def _ip(arguments: str) -> None:
    command = ["ip", *arguments.split()]
    subprocess.run(command, capture_output=True, text=True, check=True)
