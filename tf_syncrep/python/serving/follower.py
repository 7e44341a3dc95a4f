"""Serves a model that is being trained, publication by publication."""

from __future__ import annotations

import atexit
import contextlib
import math
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import tensorflow as tf
from absl import logging

from tf_syncrep.python.base.arguments import check_positive
from tf_syncrep.python.checkpoint.directory import Manifest, reader_of
from tf_syncrep.python.serving.publications import (
    APPLY,
    PLACES,
    TOMBSTONES,
    Publications,
    Rows,
    arguments,
    has_delta,
    is_whole,
)
from tf_syncrep.python.serving.shared_lock import SharedLock

__all__ = ["Follower"]

# How often to say again that something goes on being wrong.
_SAY_SECS = 60.0
# How long not to try again to load a SavedModel whose files seemed whole.
_RELOAD_SECS = 60.0
# The signature that predicts.
SERVE = "serving_default"


class Follower:
    """Serves the newest publication of a `tfs.keras.Publisher`, and follows it.

    A thread loads the newest SavedModel in the folder, and applies to it what is
    published after that, in order, by the model's signature `apply_delta`. A request
    sees one version: while a publication is applied, which takes milliseconds, requests
    wait. What is read from files is read before.

    If a publication is missing or damaged, if the folder cannot be read, or if another
    training publishes there, the present version goes on serving, and the log says so.
    As soon as there is a newer SavedModel, that is loaded beside the present one, which
    takes the memory of both meanwhile. A table that grows beyond its room is copied
    while requests go on. Publications whose weights are not finite are not served.

    It needs TensorFlow and NumPy alone: `from tf_syncrep.serving import Follower` does
    not load the op library.

    Args:
        directory: the folder of publications. It need not exist yet.
        poll_secs: how often to look for new publications, in seconds.
        on_version: called with the follower after each change of its version, in its
            thread.

    Raises:
        ValueError: an argument is out of range, or `directory` is a file.

    Example:
    ```python
    import tensorflow as tf
    import tf_syncrep as tfs

    model = tf.keras.Sequential(
        [
            tf.keras.layers.Input((), dtype="int64", name="item"),
            tfs.keras.Embedding(100, 4),
            tf.keras.layers.Dense(1),
        ]
    )
    model.compile(tfs.keras.AdamAsync(), loss="mse")
    publisher = tfs.keras.Publisher("published", model=model)
    with tfs.serving.Follower("published") as follower:
        model.train_on_batch(tf.constant([3, 7]), tf.ones([2, 1]))
        publisher.publish()
        version = follower.wait(secs=60)
        scores = follower(item=[3, 7])["output_0"]
        print(version)  # 1
        print(scores.shape[0])  # 2
    ```
    """

    def __init__(
        self,
        directory: str | os.PathLike[str],
        *,
        poll_secs: float = 0.2,
        on_version: Callable[[Follower], Any] | None = None,
    ):
        self._folder = Publications(directory)
        self._poll_secs = check_positive("poll_secs", poll_secs)
        self._on_version = on_version
        self._lock = SharedLock()
        self._model: Any = None
        self._manifest: Manifest | None = None
        self._numbers: dict[str, float] = {
            **dict.fromkeys(("lag", "fulls", "deltas", "rows", "bytes", "failures"), 0),
            "apply_secs": 0.0,
        }
        self._said: dict[str, float] = {}
        # When publications that failed may be tried again, by their tokens.
        self._not_before: dict[str, float] = {}
        self._changed = threading.Condition()
        self._is_closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="follower", daemon=True)
        self._thread.start()
        # Python must not end while the thread is in TensorFlow.
        atexit.register(self.close)

    def __call__(self, /, **inputs: Any) -> dict[str, tf.Tensor]:
        """Predicts by one version of the model.

        Args:
            **inputs: what the model takes, by name: arrays, or what becomes one.

        Returns:
            What the model returns, by name.

        Raises:
            ValueError: an input is missing, unknown, or of another dtype or shape.
            RuntimeError: there is no version yet.
            tf.errors.OpError: the model refuses the inputs.
        """
        with self.reading() as model:
            signature = model.signatures[SERVE]
            specs = signature.structured_input_signature[1]
            if set(specs) != set(inputs):
                raise ValueError(
                    f"A request must have the inputs {sorted(specs)}. Received: "
                    f"{sorted(inputs)}"
                )
            given = {name: _tensor(specs[name], x) for name, x in inputs.items()}
            return signature(**given)

    @contextlib.contextmanager
    def reading(self) -> Iterator[Any]:
        """Keeps the version as it is, for calls of the model.

        No version is applied meanwhile, and other requests wait behind one that waits:
        hold it no longer than a request takes, and do not call the follower inside.

        Yields:
            The loaded SavedModel, as `tf.saved_model.load` returns it.

        Raises:
            RuntimeError: there is no version yet.

        Example:
        ```python
        with follower.reading() as model:
            scores = model.signatures["serving_default"](**ids)
            version = follower.version
        ```
        """
        with self._lock.shared():
            if self._model is None:
                raise RuntimeError(
                    f"There is no publication to serve yet in {self._folder.path}."
                )
            yield self._model

    @property
    def model(self) -> Any:
        """The loaded SavedModel, which changes while it is used; None before the first.

        `reading` keeps it as it is.
        """
        return self._model

    @property
    def version(self) -> int:
        """The number of the publication that is served; 0 before the first."""
        manifest = self._manifest
        return 0 if manifest is None else manifest.number

    @property
    def updates(self) -> int:
        """How many updates the training had made at this version."""
        manifest = self._manifest
        return 0 if manifest is None else int(manifest.state["iterations"])

    def numbers(self) -> dict[str, float]:
        """Returns what a monitor shows.

        Returns:
            Numbers by name: "version"; "updates"; "age_secs", how long ago this version
            was the present state of the training; "lag", how many newer publications
            were seen; "fulls", "deltas", "rows" and "bytes", how many were loaded or
            applied; "failures", how often something could not be read or applied;
            "apply_secs", how long requests waited for the last version.

        Example:
        ```python
        print(follower.numbers()["age_secs"])
        ```
        """
        manifest = self._manifest
        return {
            "version": self.version,
            "updates": self.updates,
            "age_secs": 0.0 if manifest is None else time.time() - manifest.time,
            **self._numbers,
        }

    def wait(self, version: int = 1, secs: float | None = None) -> int:
        """Waits for a version, and returns the one that is served then.

        Args:
            version: the least number.
            secs: how long to wait; None for no limit.

        Raises:
            TimeoutError: the time was over before.
            RuntimeError: the follower was closed before.

        Example:
        ```python
        follower.wait(secs=60)
        ```
        """
        closed = self._is_closed.is_set
        with self._changed:
            self._changed.wait_for(lambda: self.version >= version or closed(), secs)
            if (found := self.version) >= version:
                return found
        if closed():
            raise RuntimeError(
                f"The follower of {self._folder.path} was closed; {found} is served"
            )
        raise TimeoutError(
            f"{self._folder.path} has had no publication from {version} on for "
            f"{secs:g} s; {found} is served"
        )

    def close(self) -> None:
        """Ends following; the present version goes on serving."""
        with self._changed:
            self._is_closed.set()
            self._changed.notify_all()
        if threading.current_thread() is not self._thread:
            self._thread.join()
        atexit.unregister(self.close)

    def __enter__(self) -> Follower:
        return self

    def __exit__(self, *error: Any) -> None:
        self.close()

    def _run(self) -> None:
        while not self._is_closed.is_set():
            try:
                self._follow()
            # Whatever is wrong with a folder that others write, what serves goes on.
            except Exception as error:
                self._fail("%s cannot be followed: %s", self._folder.path, error)
            self._is_closed.wait(self._poll_secs)

    def _follow(self) -> None:
        """Goes as far as the publications in the folder lead."""
        newer = self._folder.after(self._manifest, self._fail)
        if newer is None:
            self._fail("%s has no publications any more.", self._folder.path)
            return
        for group in _groups(_successors(self._manifest, newer)):
            if not self._try(self._apply, group):
                break
            newer = [x for x in newer if x.number > group[-1].number]
        for manifest in reversed([x for x in newer if is_whole(x)]):
            if self._try(self._load, [manifest]):
                # That takes its time, in which others may have come.
                self._follow()
                return
        self._numbers["lag"] = len(newer)
        if self._is_closed.is_set():
            return
        if newer and (what := newer[-1].not_finite) is not None:
            self._say("Publication %d is not finite: %s.", newer[-1].number, what)
        elif newer:
            self._say(
                "%s has newer publications, but none that can be served now.",
                self._folder.path,
            )

    def _try(self, function: Callable[[list[Manifest]], None], group: Any) -> bool:
        """Returns whether publications were applied or loaded."""
        number = group[-1].number
        not_before = self._not_before.get(group[-1].token, -math.inf)
        if self._is_closed.is_set() or time.monotonic() < not_before:
            return False
        try:
            function(group)
        # What a damaged file makes TensorFlow raise depends on where it is damaged.
        except Exception as error:
            self._fail("Publication %d cannot be served: %s", number, error)
            return False
        if self._on_version is not None:
            try:
                self._on_version(self)
            except Exception:
                logging.exception("`on_version` failed at version %d", number)
        return True

    def _load(self, group: list[Manifest]) -> None:
        """Loads the SavedModel of a publication."""
        (manifest,) = group
        self._folder.check_files(manifest)
        self._not_before[manifest.token] = time.monotonic() + _RELOAD_SECS
        model = tf.saved_model.load(self._folder.full(manifest.number))
        # The first call of a signature takes far longer than others.
        self._apply_tombstones(model, manifest, {})
        del self._not_before[manifest.token]
        if self._manifest is not None:
            logging.warning(
                "Publication %d of %s is loaded anew: no publications lead there from "
                "%d, which was served.",
                manifest.number,
                self._folder.path,
                self._manifest.number,
            )
        with self._lock.alone():
            self._model = model
            self._note(manifest, fulls=1)

    def _apply(self, group: list[Manifest]) -> None:
        """Applies publications, of which only the last one is served."""
        deltas = [self._folder.delta(manifest) for manifest in group]
        self._make_room(deltas)
        given = [_tensors(delta) for delta in deltas]
        begin = time.monotonic()
        with self._lock.alone():
            try:
                apply_delta = self._model.signatures[APPLY]
                rows = sum(int(apply_delta(**x)["rows"]) for x in given)
            except BaseException:
                # Nobody may see what is half of a version.
                self._model = self._manifest = None
                self._not_before[group[-1].token] = math.inf
                raise
            self._numbers["apply_secs"] = time.monotonic() - begin
            size = sum(sum(x.files.values()) for x in group)
            self._note(group[-1], deltas=len(group), rows=rows, bytes=size)

    def _make_room(self, deltas: list[dict[str, np.ndarray]]) -> None:
        """Makes tables as long as they will be: no request waits for these copies."""
        assert self._manifest is not None
        beyond: dict[str, np.ndarray] = {}
        for rows in (Rows(*x) for x in self._manifest.state["tables"]):
            if rows.has_keys:
                names = [rows.argument_of(what) for what in (PLACES, TOMBSTONES)]
                places = np.concatenate([x[name] for x in deltas for name in names])
                table = getattr(self._model, rows.argument)
                if places.max(initial=-1) >= _num_places(table.vectors):
                    beyond[rows.name] = places.max(keepdims=True)
        if beyond:
            self._apply_tombstones(self._model, self._manifest, beyond)

    def _apply_tombstones(
        self, model: Any, manifest: Manifest, tombstones: Mapping[str, np.ndarray]
    ) -> None:
        """Leaves a model at its version, but for places in some tables, by names."""

        def dense(name: str, argument: str) -> np.ndarray:
            if hasattr(model, argument):
                return getattr(model, argument).numpy()
            # The SavedModel of a v1 graph has it by its own name, maybe in parts.
            folder = self._folder.full(manifest.number)
            return reader_of(f"{folder}/variables/variables").get_tensor(name)

        given = arguments(
            manifest,
            base=manifest.number,
            changed=lambda rows: [
                {TOMBSTONES: x} for name, x in tombstones.items() if name == rows.name
            ],
            dense=dense,
        )
        model.signatures[APPLY](**_tensors(given))

    def _note(self, manifest: Manifest, **more: int) -> None:
        """Notes the version that is served, and what was done for it."""
        for name, count in more.items():
            self._numbers[name] += count
        with self._changed:
            self._manifest = manifest
            self._changed.notify_all()

    def _fail(self, message: str, *values: Any) -> None:
        """Counts that something went wrong, and says it."""
        self._numbers["failures"] += 1
        self._say(message, *values)

    def _say(self, message: str, *values: Any) -> None:
        """Says what is wrong, but not at each look."""
        text, now = message % values, time.monotonic()
        if now - self._said.get(text, -_SAY_SECS) >= _SAY_SECS:
            # What is not said again is forgotten.
            self._said = {x: t for x, t in self._said.items() if now - t < _SAY_SECS}
            self._said[text] = now
            version = self.version
            serving = (
                f"Publication {version} goes on serving" if version else "None serves"
            )
            logging.warning("%s %s.", text, serving)


def _tensors(delta: Mapping[str, np.ndarray]) -> dict[str, tf.Tensor]:
    return {name: tf.constant(x) for name, x in delta.items()}


def _num_places(variable: tf.Variable) -> int:
    """Returns how many places a table has, whose rows are of several parts."""
    # Its value would be a copy.
    shape = tf.raw_ops.VariableShape(input=variable.handle, out_type=tf.int64)
    return int(shape[0] * shape[1])


def _successors(present: Manifest | None, manifests: list[Manifest]) -> list[Manifest]:
    """Returns the publications that lead on from the present one, in their order."""
    by_base = {x.state["base_token"]: x for x in manifests if has_delta(x)}
    found: list[Manifest] = []
    while present is not None and (present := by_base.get(present.token)) is not None:
        found.append(present)
    return found


def _groups(manifests: list[Manifest]) -> Iterator[list[Manifest]]:
    """Yields those that are applied together: each ends with one that is finite."""
    group: list[Manifest] = []
    for manifest in manifests:
        group.append(manifest)
        if manifest.not_finite is None:
            yield group
            group = []


def _tensor(spec: tf.TensorSpec, value: Any) -> tf.Tensor:
    try:
        tensor = tf.convert_to_tensor(value, spec.dtype)
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"`{spec.name}` must be of dtype {spec.dtype.name}. Received: {error}"
        ) from error
    if not spec.shape.is_compatible_with(tensor.shape):
        raise ValueError(
            f"`{spec.name}` must have shape {spec.shape}. Received: {spec.name} of "
            f"shape {tensor.shape}"
        )
    return tensor
