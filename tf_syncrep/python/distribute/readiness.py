"""Checks whether a gRPC server answers, without a gRPC library."""

import socket

from tf_syncrep.python.distribute.cluster import split_address

# RFC 9113, sections 3.4 and 6.5: a client's connection preface is this magic and a
# SETTINGS frame (here an empty one), and the server's first frame must be a SETTINGS
# frame too.
CLIENT_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(
    [0, 0, 0, 4, 0, 0, 0, 0, 0]
)
_FRAME_HEADER_BYTES = 9
_FRAME_TYPE = slice(3, 4)
_SETTINGS = b"\x04"


def grpc_answers(address: str, timeout_secs: float = 1.0) -> bool:
    """Returns whether a server answers in time in HTTP/2, as every gRPC server does.

    An accepted connection alone proves little: the kernel accepts connections even for
    a process that is stopped.
    """
    try:
        with socket.create_connection(
            split_address(address), timeout_secs
        ) as connection:
            connection.sendall(CLIENT_PREFACE)
            header = b""
            while len(header) < _FRAME_HEADER_BYTES:
                received = connection.recv(_FRAME_HEADER_BYTES - len(header))
                if not received:
                    return False
                header += received
    except OSError:
        return False
    return header[_FRAME_TYPE] == _SETTINGS
