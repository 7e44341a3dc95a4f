"""How the engine of checkpoints calls TensorFlow where functions run at once."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import tensorflow as tf

from tf_syncrep.python.checkpoint.contents import Contents
from tf_syncrep.python.ops import checkpoint_ops


class FunctionCalls:
    """Calls functions, which steps of other threads do not hold up."""

    def __init__(self, apart: Callable[[], Any] = contextlib.nullcontext):
        self._apart = apart
        self._contents: Contents | None = None
        self._writers: list[Any] = []

    def use(self, contents: Contents, name: str, **options: Any) -> None:
        """Traces functions for the variables that are saved from now on."""
        if contents is self._contents:
            return
        self._contents = contents
        shares = contents.shares
        writers = []
        for share in shares:
            with tf.init_scope(), tf.device(share.device):
                writers.append(
                    checkpoint_ops.checkpoint_writer(shared_name=name, counted=True)
                )
        self._writers = writers  # they live as long as this object

        strings = tf.TensorSpec([len(shares)], tf.string)
        string = tf.TensorSpec([], tf.string)

        @tf.function(autograph=False, input_signature=[strings, string, string])
        def begin(prefixes, token, base):
            for number, share in enumerate(shares):
                with tf.device(share.device):
                    checkpoint_ops.checkpoint_begin(
                        writers[number],
                        prefixes[number],
                        token,
                        base,
                        share.handles,
                        share.pieces,
                        share.piece_names,
                        [variable.handle for variable in share.wholes.values()],
                        list(share.wholes),
                        **options,
                    )

        @tf.function(autograph=False)
        def progress():
            answers = []
            for number, share in enumerate(shares):
                with tf.device(share.device):
                    answers.append(checkpoint_ops.checkpoint_progress(writers[number]))
            return answers

        @tf.function(autograph=False)
        def cancel():
            for number, share in enumerate(shares):
                with tf.device(share.device):
                    checkpoint_ops.checkpoint_cancel(writers[number])

        with self._apart():
            # They are traced now, because updates wait for the call of `begin`, and by
            # hand, here and below: TensorFlow would take those of several engines for
            # one function that is traced again and again.
            self._begin, self._progress, self._cancel = (
                x.get_concrete_function() for x in (begin, progress, cancel)
            )

    def begin(self, prefixes: list[str], token: str, base: str) -> None:
        """Calls `checkpoint_begin` on each task."""
        with self._apart():
            self._begin(
                tf.constant(prefixes, tf.string), tf.constant(token), tf.constant(base)
            )

    def progress(self) -> list[Any]:
        """Returns what `checkpoint_progress` returns on each task, by its names."""
        with self._apart():
            return tf.nest.map_structure(lambda x: x.numpy(), self._progress())

    def cancel(self) -> None:
        """Calls `checkpoint_cancel` on each task."""
        with self._apart():
            self._cancel()

    def restore(self, contents: Contents, prefixes: list[str]) -> None:
        """Calls `checkpoint_restore` on each task."""
        shares = [share.without_keyed() for share in contents.shares]

        @tf.function(
            autograph=False, input_signature=[tf.TensorSpec([len(prefixes)], tf.string)]
        )
        def restore(prefixes):
            for share in shares:
                with tf.device(share.device):
                    checkpoint_ops.checkpoint_restore(
                        prefixes,
                        share.handles,
                        share.pieces,
                        share.piece_names,
                        [v.handle for v in _restored(share, contents).values()],
                        list(_restored(share, contents)),
                        share.stored_rows,
                    )

        with self._apart():
            restore.get_concrete_function()(tf.constant(prefixes, tf.string))

    def write(self, contents: Contents, paths: Sequence[str], text: str) -> None:
        """Has each task write a file."""

        @tf.function(autograph=False)
        def write():
            for share, path in zip(contents.shares, paths, strict=True):
                with tf.device(share.device):
                    tf.io.write_file(path, text)

        with self._apart():
            write.get_concrete_function()()

    def merge(self, prefixes: list[str], prefix: str) -> None:
        """Merges the bundles of all tasks into one; their data files stay in place."""
        with self._apart(), tf.device("/device:CPU:0"):
            tf.raw_ops.MergeV2Checkpoints(
                checkpoint_prefixes=prefixes,
                destination_prefix=prefix,
                # They are deleted when the checkpoint is complete.
                delete_old_dirs=False,
            )

    def read(self, variable: Any) -> Any:
        """Returns the value of a variable that is no table."""
        with self._apart():
            return variable.read_value().numpy()

    def assign(self, pairs: Iterable[tuple[Any, Any]]) -> None:
        """Sets variables to values."""
        for variable, value in pairs:
            variable.assign(value)


def _restored(share: Any, contents: Contents) -> dict[str, Any]:
    """Returns the wholes of a share without the variables of parts."""
    of_parts = {name for x in contents.of_parts for name in x.names}
    return {name: v for name, v in share.wholes.items() if name not in of_parts}
