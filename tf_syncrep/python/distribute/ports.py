"""Reservation of loopback ports for the tasks of a local cluster.

A port that was found free a moment ago can be anybody's by the time a server has
imported TensorFlow and binds it. So the launcher keeps each port bound, never
listening, with SO_REUSEPORT, and tells the servers (TF_GRPC_REUSE_PORT) to bind with
SO_REUSEPORT too, which the kernel allows to the same user only. A socket that does not
listen gets no connections. A task that is started again finds its port still its own.
"""

import errno
import socket
from collections.abc import Mapping

LOOPBACK = "127.0.0.1"
REUSE_PORT_VARIABLE = "TF_GRPC_REUSE_PORT"
# The first of the local ports of tasks that talk through TLS (see tunnels.py); below
# those that the kernel gives to connections.
TLS_BASE_PORT = 24000


class PortUnavailableError(Exception):
    """A port that was asked for cannot be had.

    Example:
    ```python
    options = tfs.distribute.LaunchOptions("train.py", base_port=2222)
    try:
        status = tfs.distribute.launch(options)
    except tfs.distribute.PortUnavailableError as error:
        print(error)  # port 2222 is in use
    ```
    """


class ReservedPort:
    """A TCP port, held until `release`."""

    def __init__(self, port: int = 0):
        """Reserves a port on all interfaces, where TensorFlow's servers listen.

        Args:
            port: the port, or 0 for any free one.

        Raises:
            PortUnavailableError: if another process holds the port or may not share it.
        """
        if port:
            check_port_is_free(port)
        try:
            self._socket = _bound_socket(port, socket.SO_REUSEPORT)
        except PortUnavailableError:
            # Connections in TIME_WAIT of a server that did not share its port. Not used
            # where it is not needed: two launchers could then both hold a port.
            self._socket = _bound_socket(port, socket.SO_REUSEPORT, socket.SO_REUSEADDR)
        self.number: int = self._socket.getsockname()[1]

    @property
    def address(self) -> str:
        """The "host:port" at which processes of this machine reach it."""
        return f"{LOOPBACK}:{self.number}"

    def release(self) -> None:
        """Gives the port back to the system."""
        self._socket.close()


def check_port_is_free(port: int, environ: Mapping[str, str] | None = None) -> None:
    """Checks that a server of this process could listen on a port.

    Args:
        port: a TCP port.
        environ: where TF_GRPC_REUSE_PORT may say that the server will share the port
          with its launcher; nowhere by default.

    Raises:
        PortUnavailableError: if it could not.
    """
    shares = (environ or {}).get(REUSE_PORT_VARIABLE, "").lower() in ("1", "true")
    # Without SO_REUSEADDR, connections in TIME_WAIT of an earlier server would count as
    # a use.
    _bound_socket(port, socket.SO_REUSEPORT if shares else socket.SO_REUSEADDR).close()


def _bound_socket(port: int, *options: int) -> socket.socket:
    bound = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        for option in options:
            bound.setsockopt(socket.SOL_SOCKET, option, 1)
        bound.bind(("0.0.0.0", port))
    except OSError as error:
        bound.close()
        if error.errno == errno.EADDRINUSE:
            raise PortUnavailableError(f"port {port} is in use") from None
        raise PortUnavailableError(
            f"port {port} cannot be bound ({error.strerror})"
        ) from None
    return bound
