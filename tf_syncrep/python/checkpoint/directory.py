"""The folder of checkpoints: which ones exist, are whole, and are needed.

A checkpoint `ckpt-12` is a bundle of TensorFlow's (`ckpt-12.index` and
`ckpt-12.data-?????-of-?????`) and `ckpt-12.json`, which is written last. It holds the
size of each file, and the earlier checkpoints on which this one builds. Without it the
others do not count as a checkpoint. They are the remains of a crash if there is a
folder `ckpt-12.writing`, which is made first and deleted last. Else they are files of
other programs, which may be called like that, and nothing happens to them.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import itertools
import json
import os
import re
import time
import uuid
import zlib
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf
from absl import logging

_FORMAT = 1
_PROGRESS = "progress.json"
_MOST_OF_PROGRESS = 1 << 20
_TRIAL = "Checkpoints can be written here."
_TRIAL_SECS = 5.0
# How the names of a checkpoint's files end; the last two while they are being written.
_KINDS = (
    r"json|index|data-\d{5}-of-\d{5}|writing|json\.[0-9a-f]{32}|index\.tempstate\d+"
)
# What other files are called while a program writes them, which has such a number.
_TEMPORARY = re.compile(
    r"(?:checkpoint|progress\.json|writable)\.([0-9a-f]{32})(\.\d+)?"
)
# The number begins so for all writes of this program, and differs in the rest.
_OWN = uuid.uuid4().hex[:24]
_writes = itertools.count()

# Lets each task write a text to its file.
WriteOnTasks = Callable[[Sequence[str], str], None]


class DamagedError(Exception):
    """A checkpoint that cannot be restored; the message says what is wrong with it."""


@dataclasses.dataclass(frozen=True)
class Manifest:
    """What is known of a checkpoint.

    `time`: when it was written, in seconds since the epoch. `state`: the state that is
    saved beside variables, by name, as JSON can hold it. `files`: the size of each
    file, in bytes.
    """

    number: int
    token: str
    chain: tuple[int, ...]
    time: float
    state: dict[str, Any]
    files: dict[str, int]

    @property
    def not_finite(self) -> str | None:
        """What in it has a NaN or an infinity, so that nobody goes on from it."""
        return self.state.get("not_finite")

    @property
    def is_full(self) -> bool:
        """Whether it needs no other checkpoint."""
        return len(self.chain) == 1


class Directory:
    """A folder of checkpoints, to which one training at a time writes."""

    #: What the names of the files begin with.
    stem: str = "ckpt"

    def __init__(self, path: str | os.PathLike[str], name: str = "directory"):
        """Refers to a folder, which need not exist; `name` is the argument's."""
        self._argument = name
        if not isinstance(path, (str, os.PathLike)) or not os.fspath(path):
            raise ValueError(
                f"`{name}` must be the path of a folder. Received: {name}={path!r}"
            )
        self.path: str = os.fsdecode(path)
        if "://" not in self.path:
            # Programs change their working directory, and tasks have their own.
            self.path = os.path.abspath(self.path)
        try:
            is_file = tf.io.gfile.exists(self.path) and not tf.io.gfile.isdir(self.path)
        except tf.errors.UnimplementedError as error:
            raise ValueError(
                f"`{name}` must be in a file system that TensorFlow knows. Received: "
                f"{name}={self.path!r} ({error.message})"
            ) from error
        if is_file:
            raise ValueError(
                f"`{name}` must be a folder. Received: {name}={self.path!r}, which is "
                "a file"
            )

    def check_writable(
        self, devices: Sequence[str] = (), write: WriteOnTasks | None = None
    ) -> None:
        """Creates the folder, and writes to it if it has no checkpoint yet.

        If it has one, a training continues, and waits if the disk is full by now.
        """
        if self.newest_number():
            return
        self.refuse_others()
        try:
            tf.io.gfile.makedirs(self.path)
            trial = os.path.join(self.path, f"writable.{uuid.uuid4().hex}")
            with tf.io.gfile.GFile(trial, "w") as file:
                file.write(_TRIAL)
            tf.io.gfile.remove(trial)
            trials = [f"{trial}.{i}" for i in range(len(devices))]
            if write is not None:
                write(trials, _TRIAL)
        except tf.errors.UnavailableError:  # a task was lost
            raise
        except tf.errors.OpError as error:
            name = self._argument
            raise ValueError(
                f"`{name}` must be a folder that can be written to. Received: "
                f"{name}={self.path!r} ({error.message})"
            ) from error
        missing = _await_files(trials)
        for path in {*trials} - {*missing}:
            self._delete(path)
        if missing:
            name, stranger = self._argument, devices[trials.index(missing[0])]
            raise ValueError(
                f"`{name}` must be a folder that all tasks share. Received: "
                f"{name}={self.path!r}, which does not show what {stranger} has "
                "written there"
            )

    def prefix(self, number: int) -> str:
        """Returns the prefix of the names of a checkpoint's files."""
        return os.path.join(self.path, f"{self.stem}-{number}")

    def temporary(self, number: int) -> str:
        """Returns the folder for files that are not a checkpoint yet."""
        return f"{self.prefix(number)}.writing"

    def manifests(
        self, say: Callable[..., Any] = logging.warning, after: int = 0
    ) -> list[Manifest]:
        """Returns the checkpoints after a number in the folder, the newest last.

        Damaged ones are left out, and named in the log. `say`: logs that.
        """
        found = []
        for number, kinds in sorted(self._kinds().items()):
            if "json" not in kinds or number <= after:
                continue
            try:
                found.append(self._read(number))
            except DamagedError as error:
                path = self.prefix(number)
                if not tf.io.gfile.exists(f"{path}.json"):
                    continue  # It was deleted meanwhile.
                say("Checkpoint %s is passed over: %s", path, error)
        return found

    def newest_number(self) -> int:
        """Returns the number of the newest checkpoint, damaged or not; 0 for none."""
        numbers = [n for n, kinds in self._kinds().items() if "json" in kinds]
        return max(numbers, default=0)

    def next_number(self) -> int:
        """Returns a number above those of all checkpoints in the folder, whole or not.

        Those of other programs count, too, if their files are called like that.
        """
        return max(self._kinds(), default=0) + 1

    def refuse_others(self) -> None:
        """Raises if all checkpoints in the folder were written by other programs."""
        if self.newest_number():
            return
        for number, kinds in sorted(self._kinds().items()):
            if "index" in kinds and "writing" not in kinds:
                name = self._argument
                raise ValueError(
                    f"`{name}` must be a folder without checkpoints of other programs. "
                    f"Received: {name}={self.path!r}, which has "
                    f"{self.stem}-{number}.index without {self.stem}-{number}.json"
                )

    def check(self, manifest: Manifest) -> list[str]:
        """Checks a checkpoint's files, and those it builds on; returns the prefixes."""
        for number in manifest.chain:
            needed = manifest if number == manifest.number else self._read(number)
            self.check_files(needed)
        return [self.prefix(number) for number in manifest.chain]

    def check_files(self, manifest: Manifest) -> None:
        """Checks that a checkpoint's own files are there, in their sizes."""
        for name, size in manifest.files.items():
            path = os.path.join(self.path, name)
            try:
                found = tf.io.gfile.stat(path).length
            except tf.errors.OpError as error:
                raise DamagedError(f"{path} cannot be read: {error}") from error
            if found != size:
                raise DamagedError(f"{path} has {found} bytes, not {size}")

    def commit(self, manifest: Manifest) -> Manifest:
        """Makes a checkpoint of the files under its prefix."""
        prefix = self.prefix(manifest.number)
        files = {
            name: tf.io.gfile.stat(os.path.join(self.path, name)).length
            for name in self.files_of(manifest.number)
        }
        manifest = dataclasses.replace(manifest, files=files)
        content = {**dataclasses.asdict(manifest), "format": _FORMAT}
        text = json.dumps({"checkpoint": content, "crc32": _crc(content)}, indent=1)
        self._write(f"{prefix}.json", text)
        return manifest

    def files_of(self, number: int) -> list[str]:
        """Returns the names of the files that a checkpoint has beside its manifest."""
        return [
            f"{self.stem}-{number}.{kind}"
            for kind in sorted(self._kinds()[number])
            if kind == "index" or kind.startswith("data-")
        ]

    def tidy(self, newest: Manifest, keep: int) -> None:
        """Lets TensorFlow find a complete checkpoint, and deletes older ones.

        What fails is only logged, since the checkpoint is complete without it.
        """
        try:
            if newest.is_full and newest.not_finite is None:
                # This lets `tf.train.latest_checkpoint` find it.
                name = os.path.basename(self.prefix(newest.number))
                self._write(
                    os.path.join(self.path, "checkpoint"),
                    f'model_checkpoint_path: "{name}"\n'
                    f'all_model_checkpoint_paths: "{name}"\n',
                )
            if tf.io.gfile.isdir(self.temporary(newest.number)):
                self._delete(self.temporary(newest.number))
            self._delete_unneeded(keep)
        except tf.errors.OpError as error:
            logging.warning(
                "Checkpoint %s is complete, but files that are no longer needed may be "
                "left beside it: %s",
                self.prefix(newest.number),
                error,
            )

    def note_progress(self, progress: dict[str, Any]) -> None:
        """Notes how far training got, so that a later run can say what was lost."""
        try:
            tf.io.gfile.makedirs(self.path)
            self._write(os.path.join(self.path, _PROGRESS), json.dumps(progress))
        except tf.errors.OpError as error:
            logging.log_first_n(
                logging.WARNING, "%s cannot be written to: %s", 1, self.path, error
            )

    def progress(self) -> dict[str, Any]:
        """Returns the last note, or an empty dict if it cannot be read."""
        try:
            with tf.io.gfile.GFile(os.path.join(self.path, _PROGRESS)) as file:
                # Without a number it would read as much as the file has that may
                # have replaced this one meanwhile.
                found = json.loads(file.read(_MOST_OF_PROGRESS))
        except (tf.errors.OpError, ValueError):
            return {}
        return found if isinstance(found, dict) else {}

    @staticmethod
    def _write(path: str, text: str) -> None:
        """Writes a file that exists either as a whole or not at all."""
        temporary = f"{path}.{_OWN}{next(_writes):08x}"
        with tf.io.gfile.GFile(temporary, "w") as file:
            file.write(text)
        tf.io.gfile.rename(temporary, path, overwrite=True)

    def _delete_unneeded(self, keep: int) -> None:
        """Deletes all but the newest checkpoints and those that they need."""
        manifests = self.manifests()
        finite = [x for x in manifests if x.not_finite is None]
        kept = [*finite[-keep:], *manifests[-1:]]
        needed = {number for m in kept for number in m.chain}
        for manifest in manifests:
            if manifest.number not in needed:
                self.delete_files(manifest.number)

    def delete_leftovers(self, number: int | None = None) -> None:
        """Deletes the remains of checkpoints that were never completed, or of one."""
        for other, kinds in self._kinds().items():
            if "writing" not in kinds or number not in (None, other):
                continue
            if "json" not in kinds:
                self.delete_files(other)
            elif number is None:
                self._delete(self.temporary(other))
        for name in self._names() if number is None else ():
            if (match := _TEMPORARY.fullmatch(name)) and not match[1].startswith(_OWN):
                self._delete(os.path.join(self.path, name))

    def delete_files(self, number: int) -> None:
        """Deletes the files of a checkpoint, complete or not."""
        # While this is there, what is left counts as remains, and is deleted later.
        with contextlib.suppress(tf.errors.OpError):
            tf.io.gfile.makedirs(self.temporary(number))
        # Without the manifest it is no checkpoint any more.
        kinds = self._kinds()[number]
        for kind in sorted(kinds, key=lambda kind: (kind != "json", kind == "writing")):
            self._delete(f"{self.prefix(number)}.{kind}")

    def _kinds(self) -> dict[int, set[str]]:
        """Returns what files there are of each checkpoint, by its number."""
        found: dict[int, set[str]] = collections.defaultdict(set)
        for name in self._names():
            if match := re.fullmatch(rf"{self.stem}-(\d+)\.({_KINDS})", name):
                found[int(match[1])].add(match[2])
        return found

    def _names(self) -> list[str]:
        if not tf.io.gfile.isdir(self.path):
            return []
        # In some file systems the names of folders end with a slash.
        return [name.rstrip("/") for name in tf.io.gfile.listdir(self.path)]

    @staticmethod
    def _delete(path: str) -> None:
        try:
            if tf.io.gfile.isdir(path):
                tf.io.gfile.rmtree(path)
            else:
                tf.io.gfile.remove(path)
        except tf.errors.OpError as error:
            logging.warning("%s could not be deleted: %s", path, error)

    def _read(self, number: int) -> Manifest:
        path = f"{self.prefix(number)}.json"
        try:
            with tf.io.gfile.GFile(path) as file:
                document = json.loads(file.read())
            content = document["checkpoint"]
            if _crc(content) != document["crc32"]:
                raise DamagedError(f"{path} was changed")
            if content.pop("format") != _FORMAT:
                raise DamagedError(
                    f"{path} was written by another version of this package"
                )
            content["chain"] = tuple(content["chain"])
            return Manifest(**content)
        except (tf.errors.OpError, ValueError, KeyError, TypeError) as error:
            raise DamagedError(f"{path} cannot be read: {error}") from error


def reader_of(prefix: str) -> Any:
    """Opens a bundle; reads nothing of its values."""
    # `load_checkpoint` would take a prefix for a folder in some file systems.
    return tf.compat.v1.train.NewCheckpointReader(prefix)


def value_of(reader: Any, name: str) -> Any:
    """Reads a value of a bundle; raises DamagedError if that cannot be."""
    try:
        return reader.get_tensor(name)
    # A reader raises an IndexError if a file is too short, and a nameless OpError for
    # nearly all else.
    except (IndexError, tf.errors.OpError) as error:
        raise DamagedError(f"{name} cannot be read: {error}") from error


def _await_files(paths: Sequence[str]) -> list[str]:
    """Waits a while for files of other tasks; returns those that did not appear."""
    deadline = time.monotonic() + _TRIAL_SECS
    while missing := [path for path in paths if not tf.io.gfile.exists(path)]:
        if time.monotonic() > deadline:
            break
        time.sleep(_TRIAL_SECS / 50)
    return missing


def _crc(content: dict[str, Any]) -> int:
    return zlib.crc32(json.dumps(content, sort_keys=True).encode())
