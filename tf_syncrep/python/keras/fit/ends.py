"""Finds out when a pass over the workers' datasets is over."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Set as AbstractSet

# After this time without a result, executions are again scheduled for free workers.
ASK_AGAIN_SECS = 0.05
# How many times a worker may take none of these, while nothing else is under way,
# before it counts as lost: for a minute, or for a second if it was lost before.
_PATIENCE, _PATIENCE_WITH_ABSENT = 1200, 20


class Window:
    """Keeps so many executions under way until there are no more."""

    #: The workers that count as lost.
    lost: AbstractSet[int] = frozenset()

    def __init__(self, size: int):
        self._size = size
        self._num_under_way = 0
        self._is_at_end = False

    @property
    def is_over(self) -> bool:
        """Whether there are no more, and nothing is under way."""
        return self._is_at_end and self._num_under_way == 0

    def num_wanted(self) -> int:
        """Returns how many executions to schedule now; they count as under way."""
        if self._is_at_end:
            return 0
        num = self._size - self._num_under_way
        self._num_under_way = self._size
        return num

    def note_end(self, num_missing: int) -> None:
        """Takes note that of those wanted there are so many fewer, and no more."""
        self._num_under_way -= num_missing
        self._is_at_end = True

    def stop(self) -> None:
        """Schedules no more; it is over when nothing is under way."""
        self._is_at_end = True

    def add(self, worker: int | None, has_ended: bool) -> None:
        """Takes note of an execution that is over.

        `worker`: the worker that ran it; None if that is not known.
        """
        del worker, has_ended
        self._num_under_way -= 1

    def add_silence(self, is_made: Callable[[], bool]) -> None:
        """Takes note that no result has come for `ASK_AGAIN_SECS`.

        `is_made`: tells whether all workers have made their data. It is asked only if
        nothing is under way.
        """


class Ends(Window):
    """Follows which workers have come to the end of their data.

    Any free worker may run an execution, and nobody can choose which. A worker at its
    end runs it, too, and reports the end at once. So as soon as one worker has reported
    its end, only as many executions as there are workers are scheduled, again after
    each step that had data: the worker that made the step gets one of them, and the
    others report their ends again.

    A silent worker counts as busy as long as something is under way, or a worker still
    makes its data. Otherwise, if it repeatedly takes none of the executions, it counts
    as lost.
    """

    def __init__(
        self, num_workers: int, window: int, absent: AbstractSet[int] = frozenset()
    ):
        super().__init__(window)
        self._absent = absent
        self._num_workers = num_workers
        self._ended: set[int] = set()
        self._is_due = True
        self._num_unanswered = 0

    @property
    def is_over(self) -> bool:
        """Whether all workers are at their ends or lost, and nothing is under way."""
        return self._num_under_way == 0 and (
            self._is_at_end or len(self._ended) == self._num_workers or bool(self.lost)
        )

    @property
    def lost(self) -> AbstractSet[int]:
        missing = set(range(self._num_workers)) - self._ended
        patience = _PATIENCE_WITH_ABSENT if missing <= self._absent else _PATIENCE
        return missing if self._num_unanswered >= patience else frozenset()

    def num_wanted(self) -> int:
        if self.is_over:
            return 0
        if not self._ended:
            wanted = self._size
        elif self._is_due:
            wanted = self._num_workers
        else:
            wanted = 0
        self._is_due = False
        num = max(0, wanted - self._num_under_way)
        self._num_under_way += num
        return num

    def add(self, worker: int | None, has_ended: bool) -> None:
        self._num_under_way -= 1
        if worker in self._ended and has_ended:
            return
        self._num_unanswered = 0
        if worker is not None and has_ended:
            self._ended.add(worker)
        else:
            self._ended -= {worker}
            self._is_due = True

    def add_silence(self, is_made: Callable[[], bool]) -> None:
        self._is_due = True
        if self._num_under_way == 0 and is_made():
            self._num_unanswered += 1
