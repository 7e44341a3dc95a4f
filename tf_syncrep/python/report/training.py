"""A synchronous training, reconstructed from its event files."""

from __future__ import annotations

import dataclasses
import itertools
import pathlib
import re
from collections.abc import Iterator, Sequence

import numpy as np

from tf_syncrep.python.report.event_files import EventFile, Series

# The names of the counters of dropped gradients in a report.
DROPS = {
    "late": "late",
    "stale": "stale",
    "voided": "void",
    "rejected": "rejected",
}

_UPDATES = "sync/updates"
_TRAINING_SECS = "training_secs"
# Counters, which never fall during a gate's life.
_COUNTERS = frozenset(
    ("updates", "applied", "contributed", "waited_secs", _TRAINING_SECS, *DROPS)
)
_FIGURE = re.compile(r"sync/(?P<name>[^/]+)(/(?P<task>.+))?")
_OF_TABLE = re.compile(r"tables/(?P<figure>[^/]+)/(?P<table>.+)")
# What is so at the time; the other figures of a table count from each session's begin.
_STATES_OF_TABLE = frozenset(("rows", "capacity", "bytes"))
_FIGURES_OF_TABLE = _STATES_OF_TABLE | {"without_row", "admitted", "evicted", "refused"}
_LOSS = re.compile(r"(^|[/_.])loss($|[/_.])", re.IGNORECASE)
_VALIDATION = re.compile(r"(^|[/_.])(val|eval|validation|evaluation)[/_.]")
# Keras writes each evaluation's loss twice, by iterations, as here, and by epochs. An
# evaluator writes only this one.
_BY_ITERATIONS = "_vs_iterations"
_LOSS_AGAIN = "evaluation_loss" + _BY_ITERATIONS
# What Keras writes before the names of metrics.
_BY_EPOCHS = "epoch_"


@dataclasses.dataclass(frozen=True)
class Curve:
    """The values of a figure over the time of training."""

    seconds: np.ndarray
    values: np.ndarray

    @property
    def last(self) -> float:
        """The last value."""
        return float(self.values[-1])

    def at(self, seconds: np.ndarray) -> np.ndarray:
        """Interpolates."""
        return np.interp(seconds, self.seconds, self.values)


class _Counted:
    """Something with counters."""

    counters: dict[str, Curve]

    def total(self, counter: str) -> float:
        """Returns the last value of a counter; 0 if there is none of that name."""
        return self.counters[counter].last if counter in self.counters else 0.0

    @property
    def dropped(self) -> float:
        """How many gradients were dropped."""
        return sum(map(self.total, DROPS))


@dataclasses.dataclass(frozen=True)
class Worker(_Counted):
    """The figures of one worker."""

    name: str
    counters: dict[str, Curve]
    live: bool


@dataclasses.dataclass(frozen=True)
class Training(_Counted):
    """A training, perhaps in several sessions (if it was stopped and continued).

    Seconds are those of training, without the time between sessions. If the writer of
    the figures has recorded the time of training, then figures of work and of updates
    per second also leave out interruptions of a session, by validation and checkpoints.

    `quorum`: how many gradients an update has, by the last figures. `tables`: the
    figures of each table that grows, by their names: "rows", "capacity" and "bytes" at
    the end of the last epoch, and the sums since training began of "without_row",
    "admitted", "evicted" and "refused". `placement`: the bytes of variables with their
    slots, by parameter server and name, in the last session that tells.
    """

    folder: pathlib.Path
    counters: dict[str, Curve]
    workers: dict[str, Worker]
    quorum: int | None
    losses: dict[str, Curve]
    seconds: float
    measured_seconds: float
    measured_updates: float
    restarts: list[float]
    tables: dict[str, dict[str, float]]
    placement: dict[str, dict[str, int]]

    @property
    def begin(self) -> float:
        """When updates began, after the start, in which a step is traced."""
        updates = self.counters["updates"]
        (with_some,) = np.nonzero(updates.values)
        rate = self.updates_per_second
        if not with_some.size or rate <= 0:
            return 0.0
        before, first = updates.seconds[with_some[0] - 1 : with_some[0] + 1]
        return float(max(before, first - updates.values[with_some[0]] / rate))

    @property
    def updates_per_second(self) -> float:
        """Updates per second, without the start if that is known."""
        if self.measured_seconds > 0 and self.measured_updates > 0:
            return self.measured_updates / self.measured_seconds
        secs = self.working_seconds
        return self.total("updates") / secs if secs > 0 else 0.0

    @property
    def working_seconds(self) -> float:
        """How long training took, without its interruptions if these are known."""
        return self.total(_TRAINING_SECS) or self.seconds

    def waited_share(self, worker: Worker) -> float:
        """Returns for which share of the training's time a worker waited."""
        secs = self.working_seconds
        return worker.total("waited_secs") / secs if secs > 0 else 0.0

    def seconds_of_work(self, worker: Worker) -> float:
        """Returns how long a worker took for a gradient, without its waits.

        The number of contributions says less: if every worker has to give its share,
        all have the same number.
        """
        gradients = worker.total("contributed") + worker.dropped
        work = max(self.working_seconds - worker.total("waited_secs"), 0.0)
        return work / max(gradients, 1.0)

    @property
    def slowest(self) -> Worker | None:
        """The worker with the most work for a gradient; None if there is only one.

        Workers that are gone count only if all are gone.
        """
        workers = list(self.workers.values())
        workers = [worker for worker in workers if worker.live] or workers
        if len(workers) < 2:
            return None
        return max(workers, key=self.seconds_of_work)


def latest(
    files: Sequence[EventFile], root: pathlib.Path
) -> tuple[Training, int] | None:
    """Reconstructs the latest training in some event files; counts the others.

    Files of one folder are sessions of one training. Its losses are searched in that
    folder and below it, then in the folder above and below that one, and so on.
    """
    folders: dict[pathlib.Path, list[EventFile]] = {}
    for file in sorted(files, key=lambda file: file.begin):
        if _UPDATES in file.scalars:
            folders.setdefault(file.path.parent, []).append(file)
    if not folders:
        return None
    folder = max(folders, key=lambda folder: _end(folders[folder]))
    sessions = folders[folder]
    losses = _losses(files, folder, root, sessions[0].begin)
    return _training(folder, sessions, losses), len(folders) - 1


def _end(files: Sequence[EventFile]) -> float:
    return max(series.times[-1] for file in files for series in file.scalars.values())


def _losses(
    files: Sequence[EventFile],
    folder: pathlib.Path,
    root: pathlib.Path,
    begin: float,
) -> dict[str, np.ndarray]:
    """Finds the losses of a training: points `[points, 2]` of time and value."""
    found: dict[tuple[pathlib.Path, str], list[np.ndarray]] = {}
    for place in (folder, *folder.parents):
        for file in files:
            for tag, series in file.scalars.items():
                points = np.stack([series.times, series.values], axis=1)
                points = points[(points[:, 0] >= begin) & np.isfinite(points[:, 1])]
                if (
                    _LOSS.search(tag)
                    and len(points)
                    and file.path.is_relative_to(place)
                ):
                    found.setdefault((file.path.parent, tag), []).append(points)
        if found or place == root:
            break
    for parent, tag in list(found):
        if tag == _LOSS_AGAIN and sum(folder == parent for folder, _ in found) > 1:
            del found[parent, tag]
    # Among one folder's training losses this is the one with the most points: the loss
    # of each batch rather than that of each epoch. The same holds for validation
    # losses.
    chosen: dict[tuple[pathlib.Path, bool], str] = {}
    for (parent, tag), parts in found.items():
        key = parent, bool(_VALIDATION.search(tag))
        if key not in chosen or _count(parts) > _count(found[parent, chosen[key]]):
            chosen[key] = tag
    several = len({parent for parent, _ in chosen}) > 1
    losses = {}
    for (parent, _), tag in chosen.items():
        points = np.concatenate(found[parent, tag])
        name = tag.removeprefix(_BY_EPOCHS).removesuffix(_BY_ITERATIONS)
        name = f"{parent.name}: {name}" if several else name
        losses[name] = points[np.argsort(points[:, 0], kind="stable")]
    return losses


def _count(parts: Sequence[np.ndarray]) -> int:
    return sum(map(len, parts))


def _training(
    folder: pathlib.Path, sessions: Sequence[EventFile], losses: dict[str, np.ndarray]
) -> Training:
    clock = _Clock(sessions, losses)
    new_gates = _new_gates(sessions)
    counters: dict[str, Curve] = {}
    workers: dict[str, dict[str, Curve]] = {}
    last: dict[tuple[str, str | None], float] = {}
    for tag in sorted({tag for file in sessions for tag in file.scalars}):
        figure = _FIGURE.fullmatch(tag)
        if figure is not None:
            name, task = figure["name"], figure["task"]
            owner = counters if task is None else workers.setdefault(task, {})
            parts = [file.scalars.get(tag) for file in sessions]
            owner[name] = clock.counter(parts, new_gates)
            if tag in sessions[-1].scalars:
                last[name, task] = float(sessions[-1].scalars[tag].values[-1])
    spans = [
        clock.seconds(file.scalars[_UPDATES].times[[first, -1]])
        for file, first in zip(
            sessions, _first_figures(sessions, new_gates), strict=True
        )
    ]
    updates = [counters["updates"].at(span) for span in spans]
    if _TRAINING_SECS in counters:
        measured = [counters[_TRAINING_SECS].at(span) for span in spans]
    else:
        measured = spans
    return Training(
        folder=folder,
        counters=counters,
        workers={
            # A worker that only an earlier session had is gone.
            name: Worker(name, workers[name], live=last.get(("live", name), 0) > 0)
            for name in sorted(workers, key=_natural)
        },
        quorum=int(last["quorum", None]) if ("quorum", None) in last else None,
        losses={
            name: Curve(clock.seconds(points[:, 0]), points[:, 1])
            for name, points in losses.items()
        },
        seconds=clock.end,
        measured_seconds=float(np.ptp(measured, axis=1).sum()),
        measured_updates=float(np.ptp(updates, axis=1).sum()),
        restarts=clock.begins[1:],
        tables=_tables(sessions),
        placement=_placement(sessions),
    )


def _placement(sessions: Sequence[EventFile]) -> dict[str, dict[str, int]]:
    last = next((x.placement for x in reversed(sessions) if x.placement), ())
    placement: dict[str, dict[str, int]] = {}
    for server, name, size in last:
        placement.setdefault(server, {})[name] = size
    return placement


def _tables(sessions: Sequence[EventFile]) -> dict[str, dict[str, float]]:
    tables: dict[str, dict[str, float]] = {}
    for file in sessions:
        for tag, series in file.scalars.items():
            if (found := _OF_TABLE.fullmatch(tag)) is not None:
                figures = tables.setdefault(found["table"], {})
                name, last = found["figure"], float(series.values[-1])
                is_sum = name not in _STATES_OF_TABLE
                figures[name] = last + is_sum * figures.get(name, 0.0)
    # Files that end within the first figures of a table do not have them all.
    return {
        name: figures
        for name, figures in sorted(tables.items())
        if figures.keys() >= _FIGURES_OF_TABLE
    }


def _new_gates(sessions: Sequence[EventFile]) -> list[bool]:
    """Tells which sessions have a gate of their own: a counter has fallen there.

    All counters of a gate begin together. A single counter would reveal only those new
    gates whose first figure is below the last one before, and then totals would not be
    the sums of the workers' figures.
    """
    new_gates, last = [], dict[str, float]()
    for file in sessions:
        series = {
            tag: values
            for tag, values in file.scalars.items()
            if (figure := _FIGURE.fullmatch(tag)) and figure["name"] in _COUNTERS
        }
        new_gates.append(
            any(x.values[0] < last.get(tag, 0.0) for tag, x in series.items())
        )
        if new_gates[-1]:
            last.clear()
        last.update((tag, x.values[-1]) for tag, x in series.items())
    return new_gates


def _first_figures(
    sessions: Sequence[EventFile], new_gates: Sequence[bool]
) -> Iterator[int]:
    """Yields the number of the first figures of each session that has an update."""
    before = 0.0
    for file, is_new in zip(sessions, new_gates, strict=True):
        updates = file.scalars[_UPDATES].values
        (more,) = np.nonzero(updates > (0.0 if is_new else before))
        yield int(more[0]) if more.size else -1
        before = updates[-1]


class _Clock:
    """Converts times to seconds of training.

    `begins`: when each session began, in seconds of training.
    """

    def __init__(self, sessions: Sequence[EventFile], losses: dict[str, np.ndarray]):
        self._begins = np.array([file.begin for file in sessions])
        times = [points[:, 0] for points in losses.values()]
        times += [x.times for file in sessions for x in file.scalars.values()]
        all_times = np.concatenate(times)
        ends = [0.0]
        for begin, following in itertools.pairwise([*self._begins, np.inf]):
            inside = all_times[(all_times >= begin) & (all_times < following)]
            ends.append(ends[-1] + float(max(inside, default=begin) - begin))
        self.begins, self.end = ends[:-1], ends[-1]

    def seconds(self, times: np.ndarray) -> np.ndarray:
        """Returns the seconds of training at these times."""
        session = np.searchsorted(self._begins, times, side="right") - 1
        session = np.maximum(session, 0)
        return np.array(self.begins)[session] + times - self._begins[session]

    def counter(
        self, parts: Sequence[Series | None], new_gates: Sequence[bool]
    ) -> Curve:
        """Joins the values of a counter in all sessions.

        It begins at 0 with each new gate, even if its first value there is above the
        last one of the session before.
        """
        points, total, before = [], 0.0, 0.0
        for begin, part, is_new in zip(self.begins, parts, new_gates, strict=True):
            points.append((begin, total))
            if is_new:
                before = 0.0
            if part is not None:
                seconds = self.seconds(part.times)
                for second, value in sorted(zip(seconds, part.values, strict=True)):
                    total += value if value < before else value - before
                    before = value
                    points.append((second, total))
        return Curve(*np.array(points).T)


def _natural(name: str) -> list:
    """Sorts "worker:10" after "worker:2"."""
    return [int(x) if x.isdigit() else x for x in re.split(r"(\d+)", name)]
