"""When a pass over the workers' datasets is over, and whom to ask until then."""

from __future__ import annotations

# How long nothing has to come before free workers are asked once more.
ASK_AGAIN_SECS = 0.05
# How many times a worker may leave that unanswered, with nothing else under way, before
# it is taken for lost.
_PATIENCE = 20


class Ends:
    """Follows which workers have come to the end of their data.

    Whichever worker is free runs what is scheduled, and nobody can choose which. A
    worker at its end runs it, too, and reports that at once. So as soon as one is
    there, no more is scheduled than there are workers, and after each step that had
    data: the worker that made it gets another then, and others say again that they have
    none.

    A silent worker counts as busy as long as something is under way. When nothing is,
    and it repeatedly takes nothing that is offered, it counts as lost.
    """

    def __init__(self, num_workers: int, window: int):
        """Begins a pass.

        Args:
            num_workers: how many workers there are.
            window: how many executions to have under way while all have data.
        """
        self._num_workers = num_workers
        self._window = window
        self._num_under_way = 0
        self._ended: set[int] = set()
        self._is_due = True
        self._num_unanswered = 0

    @property
    def is_over(self) -> bool:
        """Whether all workers are at their ends, or lost, and nothing is under way."""
        return self._num_under_way == 0 and (
            len(self._ended) == self._num_workers or self.num_lost > 0
        )

    @property
    def num_lost(self) -> int:
        """How many workers are taken for lost."""
        if self._num_unanswered < _PATIENCE:
            return 0
        return self._num_workers - len(self._ended)

    def num_wanted(self) -> int:
        """How many executions to schedule now; they count as under way."""
        if self.is_over:
            return 0
        if not self._ended:
            wanted = self._window
        elif self._is_due:
            wanted = self._num_workers
        else:
            wanted = 0
        self._is_due = False
        num = max(0, wanted - self._num_under_way)
        self._num_under_way += num
        return num

    def add(self, worker: int | None, has_ended: bool) -> None:
        """Takes note of an execution that is over.

        Args:
            worker: who ran it; None if that is not known.
            has_ended: whether it found the end of the data.
        """
        self._num_under_way -= 1
        if worker in self._ended and has_ended:
            return
        self._num_unanswered = 0
        if worker is not None and has_ended:
            self._ended.add(worker)
        else:
            self._ended -= {worker}
            self._is_due = True

    def add_silence(self) -> None:
        """Takes note that nothing has come for `ASK_AGAIN_SECS`."""
        self._is_due = True
        if self._num_under_way == 0:
            self._num_unanswered += 1
