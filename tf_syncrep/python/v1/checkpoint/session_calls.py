"""How the engine of checkpoints calls TensorFlow in graphs of `tf.compat.v1`."""

from __future__ import annotations

import contextlib
import threading
import uuid
from collections.abc import Iterable, Sequence
from typing import Any

import tensorflow as tf

from tf_syncrep.python.checkpoint.contents import Contents
from tf_syncrep.python.ops import checkpoint_ops

_OWNER = "tf_syncrep_checkpoint_owner"


def _owner_of_graph() -> str:
    """Returns a name by which this graph's writers differ from those of other programs.

    When a chief is lost, servers keep its variables, and 8 bytes for each of their
    rows. The next chief has another graph, and perhaps another folder.
    """
    owners = tf.compat.v1.get_collection_ref(_OWNER)
    if not owners:
        owners.append(uuid.uuid4().hex)
    return owners[0]


class SessionCalls:
    """Builds the ops into a graph, once, and runs them in its sessions.

    `session`: the session in which the ops run; set it before the first call.
    """

    def __init__(self, saver: Any):
        """Builds nothing yet; the Saver is of what is not written row by row."""
        self.session: Any = None
        self._contents: Contents | None = None
        self._saver = saver

    def use(self, contents: Contents, name: str, **options: Any) -> None:
        """Builds the ops."""
        if self._contents is not None:
            assert contents is self._contents
            return
        self._contents = contents
        placeholder = tf.compat.v1.placeholder
        self._prefixes = placeholder(tf.string, [None], "checkpoint_prefixes")
        self._prefix = placeholder(tf.string, [], "checkpoint_prefix")
        self._token = placeholder(tf.string, [], "checkpoint_token")
        self._base = placeholder(tf.string, [], "checkpoint_base")
        self._text = placeholder(tf.string, [], "checkpoint_text")
        begins, writes, progress, cancels, restores, trials = ([] for _ in range(6))
        for number, share in enumerate(contents.shares):
            layout = (share.handles, share.pieces, share.piece_names)
            with tf.device(share.device):
                writer = checkpoint_ops.checkpoint_writer(shared_name=name)
                begins.append(
                    checkpoint_ops.ref_checkpoint_begin(
                        writer,
                        self._prefixes[number],
                        self._token,
                        self._base,
                        *layout,
                        list(share.wholes.values()),
                        list(share.wholes),
                        owner=_owner_of_graph(),
                        **options,
                    )
                )
                writes.append(checkpoint_ops.checkpoint_write(writer))
                progress.append(checkpoint_ops.checkpoint_progress(writer))
                cancels.append(checkpoint_ops.checkpoint_cancel(writer))
                restores.append(
                    checkpoint_ops.ref_checkpoint_restore(self._prefixes, *layout)
                )
                trials.append(tf.io.write_file(self._prefixes[number], self._text))
        self._begin_op, self._cancel_op = tf.group(begins), tf.group(cancels)
        self._write_op, self._trial_op = tf.group(writes), tf.group(trials)
        self._answers, self._restore_op = progress, tf.group(restores)
        with tf.device("/device:CPU:0"):
            self._merge_op = tf.raw_ops.MergeV2Checkpoints(
                checkpoint_prefixes=self._prefixes,
                destination_prefix=self._prefix,
                # They are deleted when the checkpoint is complete.
                delete_old_dirs=False,
            )

    def begin(self, prefixes: list[str], token: str, base: str) -> None:
        """Runs `ref_checkpoint_begin` on each task, and starts the writing."""
        feed = {self._prefixes: prefixes, self._token: token, self._base: base}
        self.session.run(self._begin_op, feed)
        # The writing is a step of its own, which ends with the session at the latest.
        threading.Thread(
            target=self._write, args=(self.session,), name="checkpoint", daemon=True
        ).start()

    def _write(self, session: Any) -> None:
        try:
            session.run(self._write_op)
        except Exception:
            # Nobody would wait for a checkpoint that was accepted and is not written.
            with contextlib.suppress(Exception):
                session.run(self._cancel_op)

    def progress(self) -> list[Any]:
        """Returns what `checkpoint_progress` returns on each task, by its names."""
        return self.session.run(self._answers)

    def cancel(self) -> None:
        """Runs `checkpoint_cancel` on each task."""
        self.session.run(self._cancel_op)

    def restore(self, contents: Contents, prefixes: list[str]) -> None:
        """Restores each task's share."""
        del contents
        self.session.run(self._restore_op, {self._prefixes: prefixes})
        if self._saver is not None:
            self._saver.restore(self.session, prefixes[-1])

    def assign(self, pairs: Iterable[tuple[Any, Any]]) -> None:
        """Sets variables to values, without further ops."""
        values = {x.initializer: (x.initializer.inputs[1], y) for x, y in pairs}
        self.session.run(list(values), dict(values.values()))

    def write(self, contents: Contents, paths: Sequence[str], text: str) -> None:
        """Has each task write a file."""
        del contents
        self.session.run(self._trial_op, {self._prefixes: paths, self._text: text})

    def merge(self, prefixes: list[str], prefix: str) -> None:
        """Merges the bundles of all tasks into one; their data files stay in place."""
        self.session.run(
            self._merge_op, {self._prefixes: prefixes, self._prefix: prefix}
        )
