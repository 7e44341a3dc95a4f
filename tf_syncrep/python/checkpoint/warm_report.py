"""What a warm start has taken, in part, left initial, and not used."""

from __future__ import annotations

import dataclasses

#: The states of a variable, in the order in which they are told.
TAKEN, IN_PART, INITIAL, NOT_USED = "taken", "in part", "initial", "not used"


@dataclasses.dataclass(frozen=True)
class WarmStarted:
    """A variable or a table of a warm start, with its slots.

    Attributes:
        name: its name in the model; of one that was not used, in the source.
        status: "taken", "in part", "initial" (it begins anew) or "not used" (only the
            source has it).
        source: its name in the source; None if it has none.
        rows: how many rows were taken; 1 for a scalar.
        of_rows: how many rows it has in the model.
        bytes: the bytes that were taken, with slots, as the model has them.
        note: what was not taken, and why; empty if there is nothing to say.
    """

    name: str
    status: str
    source: str | None = None
    rows: int = 0
    of_rows: int = 0
    bytes: int = 0
    note: str = ""


@dataclasses.dataclass(frozen=True)
class WarmStartReport:
    """What `warm_start` did; `str` of it is a table.

    Attributes:
        source: the prefix or the path of the files.
        lines: one `WarmStarted` for each variable of the model, and for each one that
            only the source has.
        secs: how long it took.
    """

    source: str
    lines: tuple[WarmStarted, ...]
    secs: float

    def __getitem__(self, name: str) -> WarmStarted:
        """Returns what became of a variable, by its name."""
        for line in self.lines:
            if line.name == name:
                return line
        raise KeyError(name)

    def of(self, status: str) -> list[str]:
        """Returns the names of the variables with a status."""
        return [line.name for line in self.lines if line.status == status]

    @property
    def bytes(self) -> int:
        """How many bytes were taken."""
        return sum(line.bytes for line in self.lines)

    def __str__(self) -> str:
        rows: list[tuple[str, ...]] = [("name", "status", "rows", "MB", "note")]
        for status in (TAKEN, IN_PART, INITIAL, NOT_USED):
            for line in self.lines:
                if line.status == status:
                    rows.append(_cells(line))
        widths = [max(len(row[i]) for row in rows) for i in range(4)]
        table = [
            "  ".join(
                [*(x.ljust(w) for x, w in zip(row, widths, strict=False)), row[4]]
            ).rstrip()
            for row in rows
        ]
        counts = ", ".join(
            f"{len(self.of(x))} {x}" for x in (TAKEN, IN_PART, INITIAL, NOT_USED)
        )
        head = (
            f"Warm start from {self.source}: {counts}; {self.bytes / 1e6:,.1f} MB in "
            f"{self.secs:.1f} s"
        )
        return "\n".join([head, *table])


def _cells(line: WarmStarted) -> tuple[str, ...]:
    if line.status == NOT_USED:
        return line.name, line.status, "", "", line.note
    renamed = line.source not in (None, line.name)
    notes = [f"was {line.source}"] * renamed + [line.note] * bool(line.note)
    rows = f"{line.rows:,}"
    if line.rows != line.of_rows:
        rows += f" of {line.of_rows:,}"
    return line.name, line.status, rows, f"{line.bytes / 1e6:,.1f}", "; ".join(notes)
