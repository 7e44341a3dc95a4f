"""Writes publications, for Keras' callback and for v1's hook."""

from __future__ import annotations

import concurrent.futures
import contextlib
import dataclasses
import os
import sys
from collections.abc import Callable
from typing import Any, Protocol

import tensorflow as tf
from absl import logging

from tf_syncrep.python.base.arguments import check_count
from tf_syncrep.python.checkpoint.contents import Contents
from tf_syncrep.python.checkpoint.directory import Directory, Manifest
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
        self._deltas = Engine(self.folder, make_calls(), options)
        self._raw = Directory(os.path.join(self.folder.path, "raw"))
        self._fulls = Engine(
            self._raw,
            make_calls(),
            dataclasses.replace(options, keep=1, full_every=1),
        )
        self.last: Saving | None = None
        self._served: Any = None
        # All rows of the moment of the publication that is being written, if it has a
        # SavedModel beside what has changed.
        self._full: concurrent.futures.Future[Saving] | None = None
        self._since_full = 0

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
        follows = last is not None and last.error is None
        if follows and self._since_full + 1 >= self._full_every:
            self.last = self._begin_both(contents, state, moment)
        else:
            self._full = None
            self.last = self._deltas.begin(contents, state, moment)
        return self.last

    def wait(self) -> None:
        """Waits until nothing is being written."""
        for engine in (self._deltas, self._fulls):
            engine.wait()

    def _begin_both(
        self, contents: Contents, state: Callable[[], dict[str, Any]], moment: Moment
    ) -> Saving:
        """Begins to write what has changed, and all rows, of one moment."""
        begun: list[Saving] = []
        # What is written may be complete before the call below has returned.
        full = self._full = concurrent.futures.Future()

        def moment_of_both(begin_full: Callable[[], None]) -> None:
            def moment_of_delta(begin_delta: Callable[[], None]) -> None:
                def both() -> None:
                    begin_delta()
                    begin_full()

                moment(both)

            begun.append(self._deltas.begin(contents, state, moment_of_delta))

        try:
            full.set_result(self._fulls.begin(contents, dict, moment_of_both))
        except BaseException as error:
            full.set_exception(error)
            raise
        return begun[0]

    def _complete(self, manifest: Manifest) -> Manifest:
        """Adds the SavedModel to what has changed, if this publication has one."""
        number, full = manifest.number, self._full
        if manifest.is_full:
            has_full = True
            self._assemble(number, self.folder.prefix(number))
            self.folder.discard_rows(number)
        else:
            has_full = full is not None and self._try_to_assemble(number, full)
        if has_full or full is not None:
            self._delete_raw(full)
        self._since_full = 0 if has_full else self._since_full + 1
        state = {**manifest.state, "full": has_full, **self._served.describe()}
        return dataclasses.replace(manifest, state=state)

    def _try_to_assemble(self, number: int, full: Any) -> bool:
        """Writes the SavedModel; a failure is only logged, since the delta is there."""
        try:
            raw = full.result().wait().number
            self._assemble(number, self._raw.prefix(raw))
        except (OSError, RuntimeError, tf.errors.OpError) as error:
            logging.error("Publication %d has no SavedModel: %s", number, error)
            return False
        return True

    def _assemble(self, number: int, prefix: str) -> None:
        folder = os.path.join(self.folder.temporary(number), "full")
        self._served.assemble(number, prefix, folder)
        tf.io.gfile.rename(folder, self.folder.full(number))

    def _delete_raw(self, full: Any) -> None:
        """Deletes rows of which a SavedModel was made, or was to be made.

        A training that was killed may have left some, too.
        """
        with contextlib.suppress(Exception):  # They are deleted the next time.
            if full is not None and full.exception() is None:
                full.result().wait_until_over()
            for manifest in self._raw.manifests():
                self._raw.delete_files(manifest.number)
            self._raw.delete_leftovers()
