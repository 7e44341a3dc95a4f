"""The interface between training with SyncReplicas and where its gradients meet."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

# Called with `iterations` when a training begins and after each of its updates.
Observer = Callable[[int], None]


class Rounds:
    """Collects gradients round by round, and makes an update of each full round.

    This class is training without rounds, as with any optimizer that applies each
    gradient at once: there is nothing to wait for, and nothing to end.
    """

    #: Whether an error of others may follow from one that `cause` tells.
    cause: BaseException | None = None
    #: Whether updates maintain tables that grow.
    maintains_tables: bool = False

    def place(self, variables: Sequence[Any]) -> None:
        """Learns what is to be trained, before the first gradient.

        Args:
            variables: TensorFlow's variables.
        """

    @contextlib.contextmanager
    def step(self) -> Iterator[None]:
        """Waits until the round needs a gradient; one is computed inside.

        Yields:
            Nothing.
        """
        yield

    def receive(
        self, gradients: Sequence[Any], variables: Sequence[Any], natives: Sequence[Any]
    ) -> None:
        """Takes the gradients of a batch.

        Args:
            gradients: one for each variable.
            variables: as the optimizer got them.
            natives: the same as TensorFlow's variables.
        """
        raise NotImplementedError

    @property
    def is_training(self) -> bool:
        """Whether a training goes on that somebody has to end."""
        return False

    def start(self) -> None:
        """Begins a training."""

    def begin_epoch(self, first_step: int) -> None:
        """Notes that an epoch begins; no gradient is on its way.

        Args:
            first_step: how many batches of the epoch are done already.
        """

    def num_done(self, num_taken: int) -> int:
        """How many batches of an epoch are done, at a moment between two updates.

        Done is what is in the variables, or was dropped and never will be.

        Args:
            num_taken: how many `fit` has counted.
        """
        return num_taken

    def drain(self) -> None:
        """Waits until no gradient is on its way and no full round unapplied."""

    def finish(self, *, flush: bool) -> int:
        """Ends a training: completes what is under way, and the last round.

        Args:
            flush: whether a last incomplete round is applied; otherwise it is dropped.

        Returns:
            The number of gradients of that round.
        """
        del flush
        return 0

    def close(self) -> None:
        """Ends a training at once, if it has not ended: nothing more is applied."""

    def between_updates(self, function: Callable[[], None]) -> None:
        """Calls a function at a moment at which no update is under way.

        Args:
            function: what to call; its error is raised here.
        """
        function()

    def add_observer(self, observer: Observer) -> None:
        """Has an observer called from the next training on."""
        del observer

    def remove_observer(self, observer: Observer) -> None:
        """Has an observer called no more."""
        del observer

    def configure(self, quorum: int, total: int) -> None:
        """Changes the quorum and the number of workers from the next round on."""

    def stats(self) -> dict[str, Any]:
        """Reads the counters, under the names that a gate gives them."""
        return {}


class RefusedRounds(Rounds):
    """Where training is refused, but loading, saving and evaluating are not."""

    def __init__(self, reason: str):
        """Keeps the reason, a sentence."""
        self._reason = reason

    def receive(
        self, gradients: Sequence[Any], variables: Sequence[Any], natives: Sequence[Any]
    ) -> None:
        """Refuses.

        Raises:
            ValueError: always.
        """
        del gradients, variables, natives
        raise ValueError(self._reason)

    def start(self) -> None:
        """Refuses.

        Raises:
            ValueError: always.
        """
        raise ValueError(self._reason)
