"""Takes what fits a model from a checkpoint of another one, by name.

Each task reads its own rows, by the ops of `restore`. Everything is known to fit before
anything is written.
"""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf

from tf_syncrep.python.checkpoint.contents import Contents, Share
from tf_syncrep.python.checkpoint.directory import DamagedError
from tf_syncrep.python.checkpoint.engine import DAMAGE, reason_of
from tf_syncrep.python.checkpoint.matching import Matching, base_of
from tf_syncrep.python.checkpoint.source import Source
from tf_syncrep.python.checkpoint.warm_arrays import NOT_THERE, SKIPPED, Arrays
from tf_syncrep.python.checkpoint.warm_fixed import Fixed, common_block
from tf_syncrep.python.checkpoint.warm_growing import Growing
from tf_syncrep.python.checkpoint.warm_items import Item, Taken, items_of
from tf_syncrep.python.checkpoint.warm_report import (
    IN_PART,
    INITIAL,
    NOT_USED,
    TAKEN,
    WarmStarted,
    WarmStartReport,
)
from tf_syncrep.python.checkpoint.warm_terms import Terms

# A program says itself how fast it learns.
_SET_BY_PROGRAM = re.compile(r"optimizer/(?:.*/)?learning_rate(?:#\d+)?")


class WarmStart:
    """One warm start of a model's contents; first a plan, then `run`."""

    def __init__(
        self,
        contents: Contents,
        source: Source,
        terms: Terms,
        of_keras: bool = True,
    ):
        """Plans it, and writes nothing.

        `of_keras`: whether the contents are a Keras model's, in which names of slots
        have those of their variables within, and tables may grow. Raises ValueError: a
        name in an argument fits nothing, or a table may not be taken as it is. Raises
        DamagedError: a file is damaged.
        """
        self._begun = time.monotonic()
        self._contents, self._source, self._of_keras = contents, source, of_keras
        base = base_of if of_keras else str
        items = items_of(contents, base).values()
        own = [x for item in items for x in (item.name, *item.arrays, *item.of_part)]
        self._matching = Matching(own, source.names, terms.rename, terms.skip, base)
        self._arrays = Arrays(contents, source, self._matching, of_keras)
        self._fixed = Fixed(self._arrays, terms.truncate, terms.pad)
        self._growing = Growing(self._arrays, terms.truncate)
        self._moves: list[Callable[[], None]] = []
        with _reading(source.path):
            self._lines = [self._plan(item) for item in items]
            self._of_parts, used = self._arrays.of_parts(terms.rename)
        unused = self._matching.stored - self._matching.used - used
        self._lines += [WarmStarted(name, NOT_USED) for name in sorted(unused)]

    def _plan(self, item: Item) -> WarmStarted:
        """Plans what is taken for a variable, and returns what there is to say."""
        stored = self._matching.source_of(item.name)
        if stored not in self._source.keyed and stored not in self._source.shapes:
            stored = None
        if _SET_BY_PROGRAM.fullmatch(item.name):
            taken = "as the program sets it"
        elif self._is_slot_of_some(item):
            taken = "it is not known of which variable it is"
        elif self._matching.is_skipped(item.name):
            taken = SKIPPED
        elif stored is None:
            taken = NOT_THERE
        elif stored in self._source.keyed and not self._of_keras:
            taken = "it grows there, and tables of sessions do not"
        elif item.keyed is not None or stored in self._source.keyed:
            taken = self._growing.plan(item, stored)
        else:
            taken = self._fixed.plan(item, stored)
        if isinstance(taken, str):
            return WarmStarted(item.name, INITIAL, stored, 0, item.num_rows, note=taken)
        assert stored is not None
        if taken.move is not None:
            self._moves.append(taken.move)
        return self._line(item, stored, taken)

    def _is_slot_of_some(self, item: Item) -> bool:
        """Returns whether an optimizer has one for a variable that nothing tells."""
        is_optimizers = self._of_keras and item.name.startswith("optimizer/")
        return is_optimizers and len(item.variable.shape) > 0

    def _line(self, item: Item, stored: str, taken: Taken) -> WarmStarted:
        size = 0
        for array in taken.arrays:
            variable = item.arrays[array]
            row = variable.shape[1:] if len(variable.shape) else variable.shape
            size += taken.rows * row.num_elements() * variable.dtype.base_dtype.size
        is_part = taken.left_out or taken.rows < taken.of_rows
        notes = [*taken.left_out, *taken.notes]
        own = item.variable.dtype.base_dtype
        if taken.dtype != own:
            notes.append(f"{taken.dtype.name} became {own.name}")
        has_slots = len(item.arrays) > 1 or item.of_part
        if not has_slots and self._arrays.has_slots(stored):
            notes.append("slots in the source are not used")
        return WarmStarted(
            item.name,
            IN_PART if is_part else TAKEN,
            stored,
            taken.rows,
            taken.of_rows,
            size,
            "; ".join(notes),
        )

    @property
    def shares(self) -> dict[str, Share]:
        """What each task reads, by the names in the source."""
        return self._fixed.shares(self._contents)

    @property
    def padded(self) -> list[Any]:
        """The variables that are set to their own values and those in the source."""
        return [variable for variable, _ in self._fixed.padded]

    def run(self, calls: Any) -> WarmStartReport:
        """Takes what was planned; `calls`: as those of the engine.

        Raises DamagedError: a file is damaged; some may have been taken then.
        """
        try:
            with _reading(self._source.path, ", and some of it may have been taken"):
                self._run(calls)
        except tf.errors.InvalidArgumentError as error:
            raise ValueError(
                f"{self._source.path} does not fit the model: "
                f"{reason_of(error.message)}"
            ) from error
        secs = time.monotonic() - self._begun
        return WarmStartReport(self._source.path, tuple(self._lines), secs)

    def _run(self, calls: Any) -> None:
        if shares := self.shares:
            self._source.take(calls, shares)
        for move in self._moves:
            move()
        calls.assign(
            (x, common_block(calls.read(x), self._source.read(name)))
            for x, name in self._fixed.padded
        )
        calls.assign(self._of_parts)
        calls.assign((x, calls.read(original)) for original, x in self._contents.copies)


@contextlib.contextmanager
def _reading(path: str, beside: str = "") -> Iterator[None]:
    """Makes errors of damaged files name the files, and say something beside."""
    try:
        yield
    except (DamagedError, *DAMAGE) as error:
        raise DamagedError(f"{path} cannot be read{beside}: {error}") from error
