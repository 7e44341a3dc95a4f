"""The folder of publications, for the one who writes and for those who follow."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import os
import re
import threading
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from absl import logging

from tf_syncrep.python.checkpoint.directory import (
    DamagedError,
    Directory,
    Manifest,
    reader_of,
)

__all__ = ["read_delta"]

# The argument of `apply_delta` that names the publication it is applied on, and the
# one that names the publication that results.
BASE, VERSION = "base", "version"
APPLY = "apply_delta"
PLACES, VECTORS, KEYS, TOMBSTONES = "places", "vectors", "keys", "tombstones"


@dataclasses.dataclass(frozen=True)
class Rows:
    """A table whose rows are published.

    `name`: its name in files. `argument`: what the names of its arguments of
    `apply_delta` begin with. `num_parts`: how many parts it has where it is trained.
    `row_shape`, `dtype`: of a row there.
    """

    name: str
    argument: str
    num_parts: int
    has_keys: bool
    row_shape: Sequence[int]
    dtype: str

    def check_readable(self, name: str) -> None:
        """Raises ValueError if TensorFlow cannot read the rows of the argument `name`.

        It reads no float16 tensor of which files have parts. Tables that grow have
        tensors of their own for the rows of each.
        """
        if self.dtype == "float16" and not self.has_keys:
            raise ValueError(
                f"`{name}` must have no table of a fixed size that is trained in "
                "float16, since TensorFlow reads no parts of its files: train it in "
                f"float32 or bfloat16. Received: {self.name!r}"
            )

    def part_names(self, part_number: int) -> list[str]:
        """Returns the names of a part's vectors, keys and uses."""
        within = f"{self.name}/{part_number}-of-{self.num_parts}"
        return [within, f"keys/{within}", f"uses/{within}"]

    def argument_of(self, what: str) -> str:
        """Returns the name of an argument of `apply_delta`."""
        return f"{self.argument}_{what}"

    def arguments(
        self, changed: Iterable[dict[str, np.ndarray]]
    ) -> dict[str, np.ndarray]:
        """Returns the arguments of `apply_delta` for what has changed, if anything."""
        none = np.zeros([0], np.int64)
        dtype = tf.as_dtype(self.dtype).as_numpy_dtype
        nothing = {PLACES: none, VECTORS: np.zeros([0, *self.row_shape], dtype)}
        if self.has_keys:
            nothing |= {KEYS: none, TOMBSTONES: none}
        found = [nothing, *({**nothing, **x} for x in changed)]
        return {
            self.argument_of(what): np.concatenate([x[what] for x in found])
            for what in nothing
        }


class Publications(Directory):
    """A folder of publications; which files they have is told in `docs/design`.

    `complete`: called with the manifest of each before it is committed; returns the
    manifest to commit.
    """

    stem = "publication"

    def __init__(
        self,
        path: str | os.PathLike[str],
        name: str = "directory",
        complete: Callable[[Manifest], Manifest] | None = None,
    ):
        """Refers to a folder, which need not exist; `name` is the argument's."""
        super().__init__(path, name)
        self._complete = complete
        self._last: Manifest | None = None
        # Two threads of the one who writes would delete the same files.
        self._tidying = threading.Lock()

    def full(self, number: int) -> str:
        """Returns the folder of the SavedModel of a full publication."""
        return os.path.join(self.path, str(number))

    def after(
        self, present: Manifest | None, say: Callable[..., Any]
    ) -> list[Manifest] | None:
        """Returns the publications that are newer than one, the newest last.

        Those are all if others have taken its place. None: there is none any more, nor
        the present one. Of older ones nothing is read. `say`: logs what is damaged.
        """
        if present is None:
            return self.manifests(say)
        if not self._was_replaced(present):
            return self.manifests(say, after=present.number)
        return self.manifests(say) or None

    def _was_replaced(self, present: Manifest) -> bool:
        try:
            return self._read(present.number).token != present.token
        except DamagedError:
            # It is still the present one, unless it is gone.
            return not tf.io.gfile.exists(f"{self.prefix(present.number)}.json")

    def commit(self, manifest: Manifest) -> Manifest:
        """Makes a publication of the files under its prefix, and of its SavedModel."""
        # It builds on no more than the one before.
        is_first = manifest.is_full
        assert is_first or self._last is not None
        state = {
            **manifest.state,
            "base_token": "" if is_first else self._last.token,
        }
        manifest = dataclasses.replace(manifest, chain=manifest.chain[-2:], state=state)
        if self._complete is not None:
            manifest = self._complete(manifest)
        self._last = self._commit(manifest)
        return self._last

    def add_full(self, number: int, assembled: str, keep: int) -> None:
        """Moves its SavedModel to a publication that has none, and tidies up."""
        manifest = self._read(number)
        tf.io.gfile.rename(assembled, self.full(number))
        state = {**manifest.state, "full": True}
        self.tidy(self._commit(dataclasses.replace(manifest, state=state)), keep)

    def _commit(self, manifest: Manifest) -> Manifest:
        small = [x for x in self.files_of(manifest.number) if not is_data(x)]
        checksums = {name: _checksum(os.path.join(self.path, name)) for name in small}
        state = {**manifest.state, "checksums": checksums}
        return super().commit(dataclasses.replace(manifest, state=state))

    def check(self, manifest: Manifest) -> list[str]:
        """Checks that the last publication is still there, so that one may build on it.

        Its files are not read again: servers know what they have published.
        """
        self._read(manifest.number)
        return [self.prefix(manifest.number)]

    def check_files(self, manifest: Manifest) -> None:
        """Checks sizes, and checksums of the small files; the others have their own."""
        super().check_files(manifest)
        for name, checksum in manifest.state["checksums"].items():
            path = os.path.join(self.path, name)
            try:
                found = _checksum(path)
            except tf.errors.OpError as error:
                raise DamagedError(f"{path} cannot be read: {error}") from error
            if found != checksum:
                raise DamagedError(f"{path} was changed")

    def manifest(self, number: int) -> Manifest:
        """Returns the manifest of a publication, or raises DamagedError."""
        return self._read(number)

    def delta(self, manifest: Manifest) -> dict[str, np.ndarray]:
        """Checks and reads the arguments of `apply_delta` that lead to a publication.

        Raises DamagedError, or an error of TensorFlow.
        """
        self.check_files(manifest)
        reader = reader_of(self.prefix(manifest.number))
        return arguments(
            manifest,
            base=manifest.chain[0],
            changed=lambda rows: changes(reader, rows),
            dense=lambda name, argument: reader.get_tensor(name),
        )

    def files_of(self, number: int) -> list[str]:
        """Returns the names of a publication's files, also below its SavedModel."""
        found = super().files_of(number)
        folder = self.full(number)
        if tf.io.gfile.isdir(folder):
            for below, _, names in tf.io.gfile.walk(folder):
                within = os.path.relpath(below, self.path)
                found += [os.path.normpath(os.path.join(within, x)) for x in names]
        return sorted(found)

    def tidy(self, newest: Manifest, keep: int) -> None:
        """Deletes publications before the `keep`-th newest full one.

        What fails is only logged, since the publication is complete without it.
        """
        try:
            with self._tidying:
                self._tidy(newest, keep)
        except tf.errors.OpError as error:
            logging.warning(
                "Publication %d is complete, but files that are no longer needed may "
                "be left in %s: %s",
                newest.number,
                self.path,
                error,
            )

    def _tidy(self, newest: Manifest, keep: int) -> None:
        if tf.io.gfile.isdir(self.temporary(newest.number)):
            self._delete(self.temporary(newest.number))
        manifests = self.manifests()
        full = [x.number for x in manifests if is_whole(x)]
        for manifest in manifests:
            if full[-keep:] and manifest.number < full[-keep:][0]:
                self.delete_files(manifest.number)

    def delete_files(self, number: int) -> None:
        """Deletes the files of a publication, complete or not."""
        if tf.io.gfile.isdir(self.full(number)):
            with contextlib.suppress(tf.errors.OpError):
                tf.io.gfile.makedirs(self.temporary(number))
            manifest = f"{self.prefix(number)}.json"
            if tf.io.gfile.exists(manifest):
                self._delete(manifest)
            self._delete(self.full(number))
        super().delete_files(number)

    def discard_rows(self, number: int) -> None:
        """Deletes the rows of a publication whose SavedModel has all of them."""
        for name in super().files_of(number):
            self._delete(os.path.join(self.path, name))


def new_argument(name: str, taken: set[str]) -> str:
    """Returns an argument of `apply_delta` for a name in files, and notes it as taken.

    No other one has its name, nor those of a table's arguments that begin with it.
    """
    stem = found = re.sub(r"\W", "_", name)
    for number in itertools.count(2):
        names = {found, *(f"{found}_{x}" for x in (PLACES, VECTORS, KEYS, TOMBSTONES))}
        if taken.isdisjoint(names):
            break
        found = f"{stem}_{number}"
    taken |= names
    return found


def is_data(name: str) -> bool:
    """Returns whether a file is of tensors, which have checksums of their own."""
    return re.search(r"\.data-\d{5}-of-\d{5}$", name) is not None


def is_full(manifest: Manifest) -> bool:
    """Returns whether a publication has a SavedModel."""
    return bool(manifest.state["full"])


def is_whole(manifest: Manifest) -> bool:
    """Returns whether one can begin with a publication."""
    return is_full(manifest) and manifest.not_finite is None


def has_delta(manifest: Manifest) -> bool:
    """Returns whether a publication can be applied on another one."""
    return len(manifest.chain) > 1


def arguments(
    manifest: Manifest,
    base: int,
    changed: Callable[[Rows], Iterable[dict[str, np.ndarray]]],
    dense: Callable[[str, str], np.ndarray],
) -> dict[str, np.ndarray]:
    """Returns the arguments of the `apply_delta` of a model, by their names.

    `changed`: returns what has changed in a table. `dense`: returns any other variable,
    by its name in files and that of its argument.
    """
    given = {BASE: np.array(base), VERSION: np.array(manifest.number)}
    for described in manifest.state["tables"]:
        rows = Rows(*described)
        given |= rows.arguments(changed(rows))
    for name, argument in manifest.state["dense"].items():
        given[argument] = np.asarray(dense(name, argument))
    return given


def chunks_of(reader: Any, name: str) -> list[str]:
    """Returns the prefixes of the names of the chunks of an array, in their order."""
    pattern = re.compile(re.escape(name) + r"/changed/(\d+)-(\d+)(?=/ids$)")
    found = (pattern.match(x) for x in reader.get_variable_to_shape_map())
    by_place = {(int(x[1]), int(x[2])): x[0] for x in found if x}
    return [by_place[place] for place in sorted(by_place)]


def changes(reader: Any, rows: Rows) -> Iterator[dict[str, np.ndarray]]:
    """Yields what has changed in a table, chunk by chunk, as `apply_delta` takes it."""
    if not rows.has_keys:
        for chunk in chunks_of(reader, rows.name):
            yield {
                PLACES: reader.get_tensor(f"{chunk}/ids"),
                VECTORS: reader.get_tensor(f"{chunk}/rows"),
            }
        return
    for part_number in range(rows.num_parts):
        names = rows.part_names(part_number)
        for chunk in chunks_of(reader, names[0]):
            within = chunk[len(names[0]) :]
            vectors, keys, uses = (
                reader.get_tensor(f"{name}{within}/rows") for name in names
            )
            places = reader.get_tensor(f"{chunk}/ids") * rows.num_parts + part_number
            is_used = uses[:, 1] > 0
            yield {
                PLACES: places[is_used],
                VECTORS: vectors[is_used],
                KEYS: keys[is_used],
                TOMBSTONES: places[~is_used],
            }


def read_delta(
    directory: str | os.PathLike[str], version: int
) -> dict[str, np.ndarray]:
    """Reads what leads to a publication from the one before, for `apply_delta`.

    This is for who updates a published SavedModel by calls of its signature, as in
    TensorFlow Serving. A `Follower` does so by itself.

    Args:
        directory: the folder of publications.
        version: the number of the publication that the model is to be of.

    Returns:
        All arguments of `apply_delta`, by name. Those of a table that has not changed
        have no rows. int64 scalars `base` and `version` are the publication that the
        model must be of, and the one that it will be of.

    Raises:
        ValueError: `directory` is a file; or there is no such publication in it,
            it is damaged, or it is the first of a training, which is a SavedModel.

    Example:
    ```python
    model = tf.saved_model.load("published/1")
    delta = tfs.serving.read_delta("published", version=2)
    model.signatures["apply_delta"](**{k: tf.constant(x) for k, x in delta.items()})
    ```
    """
    folder = Publications(directory)
    try:
        manifest = folder.manifest(version)
        if not has_delta(manifest):
            raise DamagedError("it is the first of a training: load its SavedModel")
        return folder.delta(manifest)
    except (DamagedError, tf.errors.OpError) as error:
        raise ValueError(
            "`version` must be that of a publication that is whole, and builds on "
            f"another one. Received: version={version!r} ({error})"
        ) from error


def _checksum(path: str) -> int:
    with tf.io.gfile.GFile(path, "rb") as file:
        return zlib.crc32(file.read())
