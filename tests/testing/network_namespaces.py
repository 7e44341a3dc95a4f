"""A network of its own for a task, on a link that can be cut and healed.

Files are shared with all others, addresses are not. It takes root and Linux's `ip`.
"""

import contextlib
import ipaddress
import os
import shutil
import subprocess
from collections.abc import Iterator

import pytest

# Set aside for tests between networks (RFC 2544), so nobody's real one.
_NETWORK = ipaddress.ip_network("198.18.0.0/15")


class Namespace:
    """A namespace and the two ends of its link.

    Attributes:
        within: what to put before a command that is to run in it.
        inside: the address of what runs in it.
        outside: the address at which it reaches everything else.
    """

    def __init__(self, number: int):
        """Names it; makes nothing yet.

        Args:
            number: tells it from others on this machine.
        """
        self._name = f"syncrep-{number}"
        # An interface has at most 15 characters.
        self._ends = (f"sr{number}o", f"sr{number}i")
        self.within = ["ip", "netns", "exec", self._name]
        first = _NETWORK[number * 4 % _NETWORK.num_addresses]
        self.outside, self.inside = str(first + 1), str(first + 2)

    def make(self) -> None:
        """Makes it and its link.

        Raises:
            subprocess.CalledProcessError: the system does not let us.
        """
        outer, inner = self._ends
        _ip("netns", "add", self._name)
        peer = ("type", "veth", "peer", "name", inner, "netns", self._name)
        _ip("link", "add", outer, *peer)
        _ip("address", "add", f"{self.outside}/30", "dev", outer)
        _ip("link", "set", outer, "up")
        within = ("-n", self._name)
        _ip(*within, "address", "add", f"{self.inside}/30", "dev", inner)
        _ip(*within, "link", "set", "lo", "up")
        self.heal()

    def cut(self) -> None:
        """Cuts the link: what is sent is lost, and connections stay open."""
        _ip("-n", self._name, "link", "set", self._ends[1], "down")

    def heal(self) -> None:
        """Lets through again what is sent."""
        _ip("-n", self._name, "link", "set", self._ends[1], "up")

    def remove(self) -> None:
        """Removes it; nothing may run in it."""
        # Its interface, and so the whole link, goes with it, but not at once.
        for what in (("link", "del", self._ends[0]), ("netns", "del", self._name)):
            with contextlib.suppress(subprocess.CalledProcessError):
                _ip(*what)


@contextlib.contextmanager
def namespace() -> Iterator[Namespace]:
    """Makes a namespace, or skips the test where that cannot be.

    Yields:
        The namespace, with its link up.
    """
    if shutil.which("ip") is None:
        pytest.skip("a network namespace takes `ip`, of Debian's package iproute2")
    if os.geteuid() != 0:
        pytest.skip("a network namespace takes root")
    made = Namespace(os.getpid())
    try:
        try:
            made.make()
        except subprocess.CalledProcessError as error:
            pytest.skip(f"no network namespace can be made here: {error.stderr}")
        yield made
    finally:
        made.remove()


def _ip(*args: str) -> None:
    subprocess.run(["ip", *args], capture_output=True, text=True, check=True)
