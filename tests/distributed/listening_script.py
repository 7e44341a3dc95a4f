"""Listens in the ways that scripts do, says where, and ends when it is told to."""

import os
import socket
import subprocess
import sys
import threading


def _answer(server: socket.socket) -> None:
    while True:
        try:
            connection, _ = server.accept()
        except ConnectionAbortedError:  # Somebody was refused.
            continue
        with connection:
            if connection.recv(3) == b"end":
                os._exit(0)
            connection.sendall(b"yes")


def main(is_child: bool) -> None:
    """Prints "listening PORT" for each socket; the parent then prints "complete"."""
    servers = [socket.create_server(("", 0))]
    if not is_child:
        servers.append(
            socket.create_server(("", 0), family=socket.AF_INET6, dualstack_ipv6=True)
        )
    for server in servers:
        print("listening", server.getsockname()[1], flush=True)
        threading.Thread(target=_answer, args=(server,), daemon=True).start()
    if is_child:
        sys.stdin.read()
        return
    command = [sys.executable, __file__, "child"]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as child:
        print(child.stdout.readline().strip())
        print("complete", flush=True)
        child.wait()


if __name__ == "__main__":
    main("child" in sys.argv)
