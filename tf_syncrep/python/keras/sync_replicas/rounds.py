"""The interface between training and the place where gradients are collected."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from absl import logging

# It is called with `iterations` when a training begins, and after each of its updates.
Observer = Callable[[int], None]


class Rounds:
    """Collects gradients round by round, and makes an update of each full round.

    This class is training without rounds, for optimizers that apply each gradient at
    once: nothing has to be awaited or ended.
    """

    #: This error may be the reason for errors of other tasks; None if there is none.
    cause: BaseException | None = None
    #: It tells whether updates maintain tables that grow.
    maintains_tables: bool = False
    #: The model that Keras' own loop trains now, in one process.
    model: Any = None

    def place(self, variables: Sequence[Any]) -> None:
        """Learns which variables will be trained, before the first gradient."""

    @contextlib.contextmanager
    def step(self) -> Iterator[None]:
        """Waits until the round needs a gradient; the gradient is computed inside."""
        yield

    def receive(self, gradients: Sequence[Any], variables: Sequence[Any]) -> None:
        """Takes the gradients of a batch; the variables are as Keras has them."""
        raise NotImplementedError

    @property
    def is_training(self) -> bool:
        """Whether there is a training that somebody has to end."""
        return False

    def start(self) -> None:
        """Begins a training."""

    def begin_epoch(self, first_step: int) -> None:
        """Notes that an epoch begins, while no gradient is in flight."""

    def num_done(self, num_taken: int) -> int:
        """Returns how many batches of an epoch are done, between two updates.

        A batch is done when its gradient has been applied, or was dropped for good.
        """
        return num_taken

    def drain(self) -> None:
        """Waits until no gradient is in flight and no full round is unapplied."""

    def finish(self, *, flush: bool) -> None:
        """Ends a training: completes the present updates, and the last round.

        `flush`: whether an incomplete last round is applied; otherwise it is dropped.
        """
        del flush

    def close(self) -> None:
        """Ends a training at once, unless it has ended: nothing more is applied."""

    def between_updates(self, function: Callable[[], None]) -> None:
        """Calls a function at a moment when no update is in progress.

        `function`: the function; its error is raised here.
        """
        function()

    def may_begin_maintenance(self) -> bool:
        """Returns whether rows of tables may be removed now, between two steps.

        Gradients that wait for the end of a round name rows by number. A row that one
        maintenance removes gets a new key after the next one, so the round that was
        open at the first one has to end in between.
        """
        return not self.maintains_tables

    def begin_maintenance(self) -> None:
        """Notes that rows of tables are removed now."""

    def drop(self) -> int:
        """Drops the gradients of the open round; returns how many.

        It is called between two updates.
        """
        return 0

    def add_observer(self, observer: Observer) -> None:
        """Adds an observer, called from the next training on."""
        del observer

    def remove_observer(self, observer: Observer) -> None:
        """Removes an observer."""
        del observer

    def configure(self, quorum: int, total: int) -> None:
        """Changes the quorum and the number of workers from the next round on."""

    def stats(self) -> dict[str, Any]:
        """Reads the counters, by the names that a gate gives them."""
        return {}


def say_last_round(num_gradients: int, is_applied: bool) -> None:
    """Says what becomes of a round that is incomplete at the end of a training."""
    logging.log(
        logging.INFO if is_applied else logging.WARNING,
        "At the end of training: %s the %d gradients of a last incomplete round.",
        "applied" if is_applied else "dropped",
        num_gradients,
    )


class RefusedRounds(Rounds):
    """Refuses to train; loading, saving and evaluating are possible."""

    def __init__(self, reason: str):
        self._reason = reason

    def receive(self, gradients: Sequence[Any], variables: Sequence[Any]) -> None:
        del gradients, variables
        raise ValueError(self._reason)

    def start(self) -> None:
        raise ValueError(self._reason)
