"""Writes publications, for Keras' callback and for v1's hook."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import sys
import threading
from collections.abc import Callable
from typing import Any, Protocol

import tensorflow as tf
from absl import logging

from tf_syncrep.python.base.arguments import check_count
from tf_syncrep.python.checkpoint.contents import Contents
from tf_syncrep.python.checkpoint.directory import DamagedError, Directory, Manifest
from tf_syncrep.python.checkpoint.engine import Calls, Engine, Moment, Options, Saving
from tf_syncrep.python.checkpoint.run import Run
from tf_syncrep.python.serving.publications import Publications

# How often to publish by default.
_DEFAULT_SECS = 60.0


class Served(Protocol):
    """A model as it is published."""

    def describe(self) -> dict[str, Any]:
        """Returns what a manifest says of the arguments of `apply_delta`."""
        ...

    def assemble(self, number: int, prefix: str, folder: str) -> None:
        """Writes the SavedModel of a publication from the full bundle of its moment.

        `folder`: where to write, which does not exist. Files of the bundle may become
        files of the SavedModel.
        """


class PublicationWriter:
    """Writes publications to a folder, one at a time.

    A thread makes the SavedModel of one, if it has one, while others are written: who
    follows gets what has changed and does not wait for all rows. The first one of a
    training is nothing but that.

    `folder`: the folder. `last`: the last publication that was begun; None before the
    first one.
    """

    def __init__(
        self,
        directory: str | os.PathLike[str],
        make_calls: Callable[[], Calls],
        full_every: int,
        keep: int,
        max_kept_bytes: int,
        max_bytes_per_sec: float | None,
    ):
        """Touches no file yet; `make_calls` is called for each of two engines."""
        self._full_every = check_count("full_every", full_every)
        self.folder = Publications(directory, "directory", self._complete)
        # Each builds on the one before: servers compare rows with their last ones.
        options = Options(keep, sys.maxsize, max_kept_bytes, max_bytes_per_sec)
        self._keep = options.keep
        self._deltas = Engine(self.folder, make_calls(), options)
        self._raw = Directory(os.path.join(self.folder.path, "raw"))
        self._fulls = Engine(
            self._raw,
            make_calls(),
            dataclasses.replace(options, keep=1, full_every=1),
        )
        self.last: Saving | None = None
        self._served: Any = None
        # The last publication that has a SavedModel, and what makes the next one.
        self._last_full = 0
        self._making: threading.Thread | None = None
        # Guards the model that is saved. It is held while a SavedModel is made of
        # rows that are there, so a lost task does not hold it up.
        self._assembling = threading.Lock()

    def interval(
        self,
        log: Callable[..., Any],
        every_secs: float | None,
        every_n_steps: int | None,
    ) -> Run:
        """Returns what tells when a publication is due; raises what `Run` does."""
        return Run(
            self.folder,
            log,
            what="publication",
            default_secs=_DEFAULT_SECS,
            every_secs=every_secs,
            every_n_steps=every_n_steps,
        )

    def prepare(self, contents: Contents) -> None:
        """Makes the calls of tasks, before a graph of `tf.compat.v1` is complete."""
        for engine in (self._deltas, self._fulls):
            engine.prepare(contents)

    def check_writable(self, contents: Contents) -> None:
        """Checks that all tasks can write to the folder, if it has none yet."""
        self._deltas.check_writable(contents)

    def begin(
        self,
        contents: Contents,
        served: Served,
        state: Callable[[], dict[str, Any]],
        moment: Moment,
    ) -> Saving:
        """Begins to write one, as `Engine.begin` does; a thread continues."""
        last = self.last
        if last is not None and not last.is_over:
            raise RuntimeError(
                "Two publications cannot be written to one folder at a time, and one "
                f"is being written. Received: directory={self.folder.path!r}"
            )
        self._served = served
        if self._is_full_due():
            self.last = self._begin_both(contents, state, moment)
        else:
            self.last = self._deltas.begin(contents, state, moment)
        return self.last

    def wait(self) -> None:
        """Waits until nothing is being written, SavedModels neither."""
        for engine in (self._deltas, self._fulls):
            engine.wait()
        if self._making is not None:
            self._making.join()

    def _is_full_due(self) -> bool:
        last = self.last
        if last is None or last.manifest is None:
            return False  # What is published then is a SavedModel in any case.
        return not self._is_making() and (
            last.manifest.number + 1 - self._last_full >= self._full_every
        )

    def _is_making(self) -> bool:
        return self._making is not None and self._making.is_alive()

    def _begin_both(
        self, contents: Contents, state: Callable[[], dict[str, Any]], moment: Moment
    ) -> Saving:
        """Begins to write what has changed, and all rows, of one moment."""
        begun: list[Saving] = []

        def moment_of_both(begin_rows: Callable[[], None]) -> None:
            def moment_of_delta(begin_delta: Callable[[], None]) -> None:
                def both() -> None:
                    begin_delta()
                    begin_rows()

                moment(both)

            begun.append(self._deltas.begin(contents, state, moment_of_delta))

        rows = self._fulls.begin(contents, dict, moment_of_both)
        (publication,) = begun
        making = threading.Thread(
            target=self._add_full,
            args=(publication, rows, self._served),
            name="publication",
            daemon=True,
        )
        making.start()
        self._making = making  # Once it runs: others may be waiting for it.
        return publication

    def _complete(self, manifest: Manifest) -> Manifest:
        """Says what a publication has, and makes it a SavedModel if it is a first one.

        That may be unexpected, if a task was started anew.
        """
        number = manifest.number
        if manifest.is_full:
            assembled = os.path.join(self.folder.temporary(number), "full")
            with self._assembling:
                self._served.assemble(number, self.folder.prefix(number), assembled)
            tf.io.gfile.rename(assembled, self.folder.full(number))
            self.folder.discard_rows(number)
            self._last_full = number
            if not self._is_making():
                self._delete_raw()  # A training that was killed may have left some.
        described = {"full": manifest.is_full, **self._served.describe()}
        return dataclasses.replace(manifest, state={**manifest.state, **described})

    def _add_full(self, publication: Saving, rows: Saving, served: Served) -> None:
        """Adds a SavedModel to a publication, which has been followed meanwhile."""
        try:
            manifest = publication.wait()
            if manifest.is_full:
                return
            raw = rows.wait().number
            assembled = os.path.join(self._raw.temporary(raw), "full")
            tf.io.gfile.makedirs(os.path.dirname(assembled))
            with self._assembling:
                served.assemble(manifest.number, self._raw.prefix(raw), assembled)
            self.folder.add_full(manifest.number, assembled, self._keep)
            self._last_full = max(self._last_full, manifest.number)
        except (OSError, RuntimeError, tf.errors.OpError, DamagedError) as error:
            if publication.error is None:  # Otherwise it is said why there is none.
                number = publication.wait().number
                logging.error("Publication %d has no SavedModel: %s", number, error)
        finally:
            rows.wait_until_over()
            self._delete_raw()

    def _delete_raw(self) -> None:
        """Deletes rows of which a SavedModel was made, or was to be made."""
        with contextlib.suppress(Exception):  # They are deleted the next time.
            for manifest in self._raw.manifests():
                self._raw.delete_files(manifest.number)
            self._raw.delete_leftovers()
            tf.io.gfile.remove(os.path.join(self._raw.path, "checkpoint"))
