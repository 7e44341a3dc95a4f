"""Which parameter server holds which variable.

TensorFlow makes variables on the servers in turn. Where large and small ones alternate,
as kernels and biases do, one server may so hold nearly all bytes. Here each variable is
made on the server with the fewest bytes so far. Then no two servers differ by more than
the largest variable, whatever the order in which layers are built.

A scalar that is given as a number, as those of an optimizer are, takes no room. It goes
to the server with the most bytes, where a gate may be: updates read and write there the
number of steps and the learning rate.

A variable counts with the slots that it is going to have. They lie beside it, and only
the optimizer knows them, which comes later and may be another one for each training. So
whatever is trained counts as with Adam's two. For the balance of what is trained it
does not matter how many there are, since all have as many; it matters beside what is
not trained.
"""

from __future__ import annotations

import collections
import contextlib
import weakref
from collections.abc import Iterator
from typing import Any

import tensorflow as tf

from tf_syncrep.python.base.sizes import num_bytes
from tf_syncrep.python.keras import compat

# What a variable that is trained takes, in its own bytes: itself and Adam's slots.
_TRAINED = 3
_placements: weakref.WeakKeyDictionary[Any, _Placement] = weakref.WeakKeyDictionary()


class _Placement:
    """The bytes of the variables that a strategy has made, by servers."""

    def __init__(self, num_servers: int):
        self._bytes = [0] * num_servers
        # What went, by the collector of cycles: in any thread, perhaps within `note`.
        self._gone: collections.deque[tuple[int, int]] = collections.deque()
        self._before: int | None = None
        self._in_turn = False

    def choose(self, is_scalar: bool = False) -> int:
        """Returns the server of the next variable."""
        while self._gone:
            server, size = self._gone.popleft()
            self._bytes[server] -= size
        if self._in_turn and self._before is not None:
            return (self._before + 1) % len(self._bytes)
        chosen = max(self._bytes) if is_scalar else min(self._bytes)
        return self._bytes.index(chosen)

    def note(self, variable: Any, server: int) -> None:
        """Counts a variable as long as it exists."""
        size = num_bytes(variable) * (_TRAINED if variable.trainable else 1)
        self._bytes[server] += size
        self._before = server
        weakref.finalize(variable, self._gone.append, (server, size)).atexit = False

    @contextlib.contextmanager
    def in_turn(self) -> Iterator[None]:
        """Puts each further variable on the server after that of the one before."""
        self._in_turn, self._before = True, None
        try:
            yield
        finally:
            self._in_turn = False


def place_by_bytes(strategy: Any, num_servers: int) -> None:
    """Makes a strategy put each further variable where the fewest bytes are."""
    placement = _placements[strategy] = _Placement(num_servers)
    compat.choose_servers(strategy, placement.choose, placement.note)


def each_on_another_server() -> contextlib.AbstractContextManager[None]:
    """Within this context the present strategy puts variables on servers in turn.

    The parts of a table are made so, which are read at the same time.
    """
    placement = _placements.get(tf.distribute.get_strategy())
    return contextlib.nullcontext() if placement is None else placement.in_turn()
