"""A barrier for processes, at which none goes on before all have arrived.

It is made of pipes in a folder, costs some microseconds, and does not use TensorFlow.
So it shows the cost of waiting for one another by itself.
"""

from __future__ import annotations

import contextlib
import os
import pathlib
import tempfile
import threading
from collections.abc import Iterator

_END = b"e"
_ARRIVED = b"a"


class Barrier:
    """One process's end of a barrier."""

    def __init__(self, folder: str, index: int):
        """Opens it."""
        self._arrivals = os.open(_arrivals(folder), os.O_WRONLY)
        self._departures = os.open(_departures(folder, index), os.O_RDWR)

    def wait(self) -> None:
        """Waits until all processes have called this as often."""
        os.write(self._arrivals, _ARRIVED)
        os.read(self._departures, 1)


@contextlib.contextmanager
def serve(number: int) -> Iterator[str]:
    """Serves a barrier of so many processes; yields the folder that has it."""
    with tempfile.TemporaryDirectory() as folder:
        for pipe in [
            _arrivals(folder),
            *(_departures(folder, i) for i in range(number)),
        ]:
            os.mkfifo(pipe)
        # It is open for both, so that nobody waits for the other end.
        arrivals = os.open(_arrivals(folder), os.O_RDWR)
        departures = [os.open(_departures(folder, i), os.O_RDWR) for i in range(number)]

        def open_when_all_are_there() -> None:
            while True:
                for _ in range(number):
                    if os.read(arrivals, 1) == _END:
                        return
                for departure in departures:
                    os.write(departure, _ARRIVED)

        thread = threading.Thread(target=open_when_all_are_there)
        thread.start()
        try:
            yield folder
        finally:
            os.write(arrivals, _END)
            thread.join()
            for pipe in [arrivals, *departures]:
                os.close(pipe)


def _arrivals(folder: str) -> pathlib.Path:
    return pathlib.Path(folder, "arrivals")


def _departures(folder: str, index: int) -> pathlib.Path:
    return pathlib.Path(folder, f"departures_{index}")
