"""Reservation of loopback ports for the tasks of a local cluster.

A port that was free a moment ago may be taken by the time a server has imported
TensorFlow and binds it. So the launcher keeps each port bound with SO_REUSEPORT, never
listening, and tells the servers (TF_GRPC_REUSE_PORT) to bind with SO_REUSEPORT too,
which the kernel allows only to the same user. A socket that does not listen gets no
connections. A task that is started again finds that its port is still its own.
"""

import errno
import socket
from collections.abc import Mapping

from tf_syncrep.python.distribute.errors import UsageError

LOOPBACK = "127.0.0.1"
REUSE_PORT_VARIABLE = "TF_GRPC_REUSE_PORT"
# The first of the local ports of tasks that talk through TLS (see tunnels.py). It is
# below the ports that the kernel chooses for connections.
TLS_BASE_PORT = 24000


class PortUnavailableError(UsageError):
    """A requested port is not available.

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
        """Reserves a port on all interfaces, where TensorFlow's servers listen."""
        if port:
            check_port_is_free(port)
        try:
            self._socket = _bound_socket(port, socket.SO_REUSEPORT)
        except PortUnavailableError:
            # This is for connections in TIME_WAIT of a server that did not share its
            # port. It is not used otherwise, since two launchers could then both hold a
            # port.
            self._socket = _bound_socket(port, socket.SO_REUSEPORT, socket.SO_REUSEADDR)
        self.number: int = self._socket.getsockname()[1]

    @property
    def address(self) -> str:
        """The "host:port" at which processes of this machine can reach it."""
        return f"{LOOPBACK}:{self.number}"

    def release(self) -> None:
        """Releases the port."""
        self._socket.close()


def check_port_is_free(port: int, environ: Mapping[str, str] | None = None) -> None:
    """Raises PortUnavailableError if no server of this process could listen on a port.

    `environ`: an environment in which TF_GRPC_REUSE_PORT may say that the server will
    share the port with its launcher; empty by default.
    """
    shares = (environ or {}).get(REUSE_PORT_VARIABLE, "").lower() in ("1", "true")
    # Without SO_REUSEADDR, an earlier server's connections in TIME_WAIT would count as
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
