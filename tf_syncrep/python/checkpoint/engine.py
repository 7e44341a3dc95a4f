"""Writes and restores checkpoints, for Keras' callback and for v1's hook.

The coordinator tells each task to begin, at one moment. It asks now and then how far
they got, and finally merges the indexes of the files that the tasks wrote, which are
some kilobytes. No row of a table passes through the coordinator.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import dataclasses
import re
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol

import tensorflow as tf
from absl import logging

from tf_syncrep.python.base.arguments import check_count, check_positive
from tf_syncrep.python.base.request import Request
from tf_syncrep.python.checkpoint.contents import Contents
from tf_syncrep.python.checkpoint.directory import (
    DamagedError,
    Directory,
    Manifest,
    reader_of,
    value_of,
)

# The entries of a checkpoint's state for tables whose rows are found by keys, and for
# what a warm start asks.
KEYED, NOTES = "keyed_tables", "notes"
# Tasks are asked how far they got: soon at first, then less often.
_FIRST_ASK_SECS = 0.02
_LONGEST_ASK_SECS = 0.5
# How long a training waits for the folder when a checkpoint begins.
_FOLDER_SECS = 30.0
# The errors of reading damaged files.
DAMAGE = (
    tf.errors.DataLossError,
    tf.errors.OutOfRangeError,
    tf.errors.NotFoundError,
    tf.errors.UnknownError,
)

# Calls a function at the moment of a checkpoint, and returns when it has returned.
Moment = Callable[[Callable[[], None]], None]


@dataclasses.dataclass(frozen=True)
class Options:
    """How checkpoints are written.

    `full_every`: every k-th checkpoint is full, and 1 makes all full; the others hold
    the rows that have changed since the checkpoint before. `max_kept_bytes`: how many
    bytes of overwritten rows a task may keep. `max_bytes_per_sec`: how fast a task may
    write; None for no limit.
    """

    keep: int = 1
    full_every: int = 1
    max_kept_bytes: int = 2**28
    max_bytes_per_sec: float | None = None

    def __post_init__(self):
        for name in ("keep", "full_every", "max_kept_bytes"):
            object.__setattr__(self, name, check_count(name, getattr(self, name)))
        if (speed := self.max_bytes_per_sec) is not None:
            speed = check_positive("max_bytes_per_sec", speed)
            object.__setattr__(self, "max_bytes_per_sec", speed)


class Calls(Protocol):
    """How the engine calls TensorFlow."""

    def use(self, contents: Contents, name: str, **options: Any) -> None:
        """Makes writers, of this name, for the variables that are saved from now on."""

    def begin(self, prefixes: list[str], token: str, base: str) -> None:
        """Begins a checkpoint on each task."""

    def progress(self) -> list[Any]:
        """Returns what `checkpoint_progress` returns on each task, by its names."""
        ...

    def cancel(self) -> None:
        """Gives up what each task is writing."""

    def restore(self, contents: Contents, prefixes: list[str]) -> None:
        """Restores each task's share."""

    def write(self, contents: Contents, paths: Sequence[str], text: str) -> None:
        """Has each task write a file."""

    def merge(self, prefixes: list[str], prefix: str) -> None:
        """Merges the bundles of all tasks into one; their data files stay in place."""

    def assign(self, pairs: Iterable[tuple[Any, Any]]) -> None:
        """Sets variables to values."""


# The folders to which this process is writing. If a checkpoint is begun in a folder
# while tasks still write an earlier one there, that one is ended, since another program
# may have begun it.
_being_written: set[str] = set()
_being_written_lock = threading.Lock()


class Saving:
    """A checkpoint that is being written.

    `bytes_written`: how many bytes were written. `kept_bytes`: the most bytes of rows
    that a task kept at one time. `error`: the error with which it failed, or None.
    """

    def __init__(self):
        self.manifest: Manifest | None = None
        self.bytes_written: int = 0
        self.rows_written: int = 0
        self.kept_bytes: int = 0
        self.secs: float = 0.0
        self.error: BaseException | None = None
        self._over = threading.Event()

    @property
    def is_over(self) -> bool:
        """Whether it is complete, or has failed."""
        return self._over.is_set()

    def wait(self) -> Manifest:
        """Waits until it is complete; raises the error with which it failed."""
        self.wait_until_over()
        if self.error is not None:
            raise self.error
        assert self.manifest is not None
        return self.manifest

    def wait_until_over(self) -> None:
        """Waits until it is complete, or has failed."""
        self._over.wait()

    def end(self, error: BaseException | None) -> None:
        """Notes that it is complete, or with which error it failed."""
        self.error = error
        self._over.set()


class Engine:
    """Writes checkpoints to a folder, one at a time, and restores them."""

    def __init__(self, directory: Directory, calls: Calls, options: Options):
        """Creates the engine; touches no file yet."""
        self.directory = directory
        self._calls = calls
        self._options = options
        self._saving: Saving | None = None
        # The last checkpoint, if the next one may hold only the changes since.
        self._base: Manifest | None = None
        self._contents: Contents | None = None
        self._tidied = False
        # How long the last checkpoint took that was full, and the last that was not.
        self._secs: dict[bool, float] = {}

    def check_writable(self, contents: Contents) -> None:
        """Checks that all tasks can write to the folder, if it has none yet."""
        self.directory.check_writable(
            [share.device for share in contents.shares],
            lambda paths, text: self._calls.write(contents, paths, text),
        )

    def prepare(self, contents: Contents) -> None:
        """Makes the calls of tasks, before a graph of `tf.compat.v1` is complete."""
        # The writers are named after the folder. So a program that continues where
        # another one died finds the writers that the other one had started, and that
        # may still be writing.
        name = f"checkpoint/{self.directory.path}"
        self._calls.use(
            contents,
            name,
            max_kept_bytes=self._options.max_kept_bytes,
            max_bytes_per_sec=self._options.max_bytes_per_sec or 0.0,
        )

    def begin(
        self, contents: Contents, state: Callable[[], dict[str, Any]], moment: Moment
    ) -> Saving:
        """Begins to write a checkpoint; a thread continues.

        `state`: called at the moment of the checkpoint; returns what JSON can hold. Its
        entry "not_finite", if there is one, says what is not finite, so that nobody
        goes on from the checkpoint. Raises RuntimeError: another checkpoint is being
        written. Raises TimeoutError: the folder does not answer. Raises Exception: the
        checkpoint could not begin.
        """
        path = self.directory.path
        with _being_written_lock:
            is_being_written = path in _being_written
            _being_written.add(path)
        if is_being_written:
            raise RuntimeError(
                "Two checkpoints cannot be written to one folder at a time, and one is "
                "being written. Give each its own folder, or wait for the first. "
                f"Received: directory={path!r}"
            )
        room: Request[Any] | None = None
        try:
            self.prepare(contents)
            if contents is not self._contents:
                self._contents, self._base = contents, None
            if not self._tidied:
                self._calls.cancel()
            request = Request(self._make_room)
            # A folder that hangs must not stop the training.
            threading.Thread(target=request.serve, daemon=True).start()
            room = request
            try:
                base, number = room.result(_FOLDER_SECS)
            except concurrent.futures.TimeoutError:
                raise TimeoutError(
                    f"{path} has not answered for {_FOLDER_SECS:g} s"
                ) from None
            return self._begin(contents, state, moment, base, number)
        except BaseException:
            if room is None or room.done():
                _being_written.discard(path)
            else:
                # Once the folder answers, what was made there is in the way.
                room.add_done_callback(self._give_room_up)
            raise

    def _make_room(self) -> tuple[Manifest | None, int]:
        """Makes room for the next checkpoint: its base, its number, and a folder."""
        directory = self.directory
        tf.io.gfile.makedirs(directory.path)
        if not self._tidied:
            directory.delete_leftovers()
            self._tidied = True
        base, self._base = self._next_base(), None
        number = directory.next_number()
        tf.io.gfile.makedirs(directory.temporary(number))
        return base, number

    def _give_room_up(self, room: Any) -> None:
        del room
        self._tidied = False
        _being_written.discard(self.directory.path)

    def _begin(self, contents, state, moment, base, number) -> Saving:
        directory = self.directory
        num_shares = len(contents.shares)
        prefixes = [
            f"{directory.temporary(number)}/part-{i:05}-of-{num_shares:05}"
            for i in range(num_shares)
        ]
        token = uuid.uuid4().hex
        begun: dict[str, Any] = {}

        def at_moment() -> None:
            begun["time"] = time.time()
            begun["clock"] = time.monotonic()
            begun["state"] = {**state(), NOTES: contents.notes}
            if keyed := {x.name: x.description() for x in contents.keyed_tables}:
                begun["state"][KEYED] = keyed
            self._calls.begin(
                prefixes,
                token if self._options.full_every > 1 else "",
                base.token if base else "",
            )

        try:
            try:
                moment(at_moment)
            except tf.errors.FailedPreconditionError:
                if base is None:
                    raise
                # A task was started anew, and does not know its last checkpoint.
                self._calls.cancel()
                base = None
                moment(at_moment)
        except BaseException:
            if begun:
                with contextlib.suppress(Exception):
                    self._calls.cancel()
            else:  # The moment has not come, and tasks know of nothing.
                self._base = base
            directory.delete_leftovers(number)
            raise
        chain = (*(base.chain if base else ()), number)
        manifest = Manifest(number, token, chain, begun["time"], begun["state"], {})
        saving = self._saving = Saving()
        threading.Thread(
            target=self._finish,
            args=(saving, manifest, prefixes, begun["clock"], contents.weights),
            name="checkpoint",
            daemon=True,
        ).start()
        return saving

    def _next_base(self) -> Manifest | None:
        base = self._base
        if base is None or len(base.chain) >= self._options.full_every:
            return None
        try:
            self.directory.check(base)
        except DamagedError as error:
            logging.warning("The next checkpoint is full: %s", error)
            return None
        return base

    def _finish(self, saving, manifest, prefixes, begun, weights) -> None:
        """Waits for the tasks, and makes a checkpoint of their files."""
        failure: BaseException | None = None
        try:
            not_finite = self._await_tasks(saving)
            prefix = self.directory.prefix(manifest.number)
            # A task may have nothing to write. TensorFlow would count it in the index
            # as one with a file, and then look for files of other names.
            written = [x for x in prefixes if shapes_of(x)]
            self._calls.merge(written or prefixes[:1], prefix)
            ruined = (x for x in weights if x in not_finite)
            manifest = _judged(manifest, prefix, next(ruined, None))
            saving.manifest = self.directory.commit(manifest)
            saving.secs = time.monotonic() - begun
            self._secs[saving.manifest.is_full] = saving.secs
            self._base = saving.manifest
            self.directory.tidy(saving.manifest, self._options.keep)
        except BaseException as error:
            failure = error
            with contextlib.suppress(BaseException):
                self._calls.cancel()
            with contextlib.suppress(BaseException):
                if saving.manifest is None:
                    self.directory.delete_leftovers(manifest.number)
        _being_written.discard(self.directory.path)
        saving.end(failure)

    def _await_tasks(self, saving: Saving) -> set[str]:
        """Waits; returns the names of what the tasks have found not to be finite."""
        wait = _FIRST_ASK_SECS
        while True:
            answers = self._calls.progress()
            saving.bytes_written = sum(int(x.bytes) for x in answers)
            saving.rows_written = sum(int(x.rows) for x in answers)
            saving.kept_bytes = max(int(x.kept_bytes) for x in answers)
            for answer in answers:
                if answer.done and answer.code:
                    raise tf.compat.v1.errors.exception_type_from_error_code(
                        int(answer.code)
                    )(None, None, answer.message.decode())
            if all(answer.done for answer in answers):
                return {x.decode() for answer in answers for x in answer.not_finite}
            time.sleep(wait)
            wait = min(2 * wait, _LONGEST_ASK_SECS)

    def expected_secs(self) -> float:
        """Returns how long the last checkpoint took that was like the next; or 0."""
        base = self._base
        is_full = base is None or len(base.chain) >= self._options.full_every
        return self._secs.get(is_full, max(self._secs.values(), default=0.0))

    def wait(self) -> None:
        """Waits until no checkpoint is being written."""
        if self._saving is not None:
            self._saving.wait_until_over()

    def cancel(self) -> None:
        """Gives up the checkpoint that is being written, if there is one."""
        if self._saving is not None and not self._saving.is_over:
            self._calls.cancel()
            self._saving.wait_until_over()

    def restore(self, contents: Contents) -> Manifest | None:
        """Restores the newest whole checkpoint whose weights are finite.

        The checkpoint may hold more than the contents. Returns None if there is no
        checkpoint, or none that is finite. Raises ValueError: the newest checkpoint
        lacks a variable, or has another shape for it; or all checkpoints were written
        by other programs. Raises DamagedError: none is whole.
        """
        # Checkpoints that tasks are writing, and their base, belong to the past now.
        self._tidied, self._base = False, None
        damaged = []
        for manifest in reversed(self.directory.manifests()):
            prefix = self.directory.prefix(manifest.number)
            if manifest.not_finite is not None:
                logging.warning(
                    "Checkpoint %s is passed over: %s is not finite.",
                    prefix,
                    manifest.not_finite,
                )
                continue
            try:
                self._restore(contents, manifest)
            except (DamagedError, *DAMAGE) as error:
                logging.warning("Checkpoint %s cannot be restored: %s", prefix, error)
                damaged.append(f"{prefix}: {error}")
            else:
                return manifest
        if damaged:
            raise DamagedError(
                f"None of the checkpoints in {self.directory.path} can be restored. "
                + "; ".join(damaged)
            )
        self.directory.refuse_others()
        return None

    def _restore(self, contents: Contents, manifest: Manifest) -> None:
        prefixes = self.directory.check(manifest)
        saved = manifest.state.get(KEYED, {})
        # Tables are in the full checkpoint, and all else is in each checkpoint.
        known = {**shapes_of(prefixes[0]), **shapes_of(prefixes[-1])}
        missing = sorted(contents.names - set(known))
        if missing:
            raise ValueError(
                f"Checkpoint {prefixes[-1]} does not have {', '.join(missing[:5])}"
                f"{' and more' if len(missing) > 5 else ''}: it belongs to another "
                "model or optimizer."
            )
        last = reader_of(prefixes[-1])
        of_parts = [
            (x.variable, _least(x, known, last, prefixes[-1]))
            for x in contents.of_parts
        ]
        readers = {prefix: reader_of(prefix) for prefix in prefixes}
        keyed = [(x, x.plan(saved.get(x.name), readers)) for x in contents.keyed_tables]
        try:
            self._calls.restore(contents, prefixes)
            for table, chunks in keyed:
                table.restore(chunks)
        except tf.errors.InvalidArgumentError as error:
            raise ValueError(
                f"Checkpoint {prefixes[-1]} does not fit the model: "
                f"{reason_of(error.message)}"
            ) from error
        self._calls.assign(of_parts)
        self._calls.assign(
            (copy, original.read_value()) for original, copy in contents.copies
        )


def _judged(manifest: Manifest, prefix: str, ruined: str | None) -> Manifest:
    """Returns the manifest of a checkpoint, which says if a weight is not finite."""
    name = manifest.not_finite or ruined
    if name is None:
        return manifest
    logging.error(
        "No training will go on from checkpoint %s, which is kept beside the others: "
        "%s is not finite.",
        prefix,
        name,
    )
    return dataclasses.replace(manifest, state={**manifest.state, "not_finite": name})


def shapes_of(prefix: str) -> dict[str, Any]:
    """Returns the shapes of everything in a bundle, by name."""
    try:
        return reader_of(prefix).get_variable_to_shape_map()
    except (ValueError, RuntimeError, tf.errors.OpError) as error:
        raise DamagedError(f"{prefix}.index cannot be read: {error}") from error


def reason_of(message: str) -> str:
    """Returns what an op says does not fit, without what TensorFlow adds to it."""
    found = re.search(r"[^:\n]+ is \S+ in the checkpoint, where .+", message)
    return found[0].strip() if found else message


def _least(of_part: Any, known: Mapping[str, Any], reader: Any, checkpoint: str) -> Any:
    """Returns the value that a variable of a part gets from a checkpoint."""
    names = of_part.stored_names(known)
    if not names:
        raise ValueError(
            f"Checkpoint {checkpoint} does not have {of_part.names[0]}: it belongs to "
            "another model or optimizer."
        )
    return min((value_of(reader, name) for name in names), key=lambda x: x.min())
