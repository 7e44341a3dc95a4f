"""Variables of a session that begin with what fits them of another training."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import tensorflow as tf
from tensorflow.compat.v1 import logging

from tf_syncrep.python.checkpoint.contents import Contents
from tf_syncrep.python.checkpoint.source import open_source
from tf_syncrep.python.checkpoint.warm_report import WarmStartReport
from tf_syncrep.python.checkpoint.warm_start import WarmStart
from tf_syncrep.python.checkpoint.warm_terms import Terms
from tf_syncrep.python.ops import checkpoint_ops
from tf_syncrep.python.v1.checkpoint.contents import contents_of_graph

__all__ = ["warm_start"]


def warm_start(
    session: Any,
    source: str | os.PathLike[str],
    *,
    rename: Mapping[str, str] | Callable[[str], str] | None = None,
    skip: str | Sequence[str] = (),
    truncate: bool = False,
    pad: bool = False,
) -> WarmStartReport:
    """Takes what fits a graph's variables from a checkpoint of another graph.

    It is called once variables are initialized, before training. Unlike
    `tf.compat.v1.train.init_from_checkpoint` it takes slots, too, as well as tables in
    other numbers of parts or rows, and tells what became of each variable. Each
    parameter server reads its own rows.

    Names are those of `tf.compat.v1.train.Saver`, and what does not fit is as for
    `tfs.keras.warm_start`: a table with more rows keeps the first ones, and slots of
    another optimizer begin anew. Variables that are written row by row count as tables:
    those in parts, and those of 1 MiB and more.

    Args:
        session: a session, whose graph takes more ops; one that is the chief's.
        source: a checkpoint of `tfs.train.CheckpointSaverHook` or of a Saver, or a
            folder with one, of which the newest whole one is taken.
        rename: names in the source with names of the graph, of variables or of scopes,
            or a function of a name in the source.
        skip: names of variables, or of scopes, that stay as they are.
        truncate: whether a table may have fewer rows than the source's.
        pad: whether another variable of another shape keeps the common block.

    Returns:
        What was taken, in part, left as it was and not used; the log has it, too.

    Raises:
        ValueError: an argument is of the wrong kind or names what is not there, there
            is no checkpoint, the graph is finalized, or a table may not be taken as it
            is. Nothing was written then.
        Exception: no checkpoint is whole, or a file is damaged; in the latter case some
            of it may have been taken.

    Example:
    >>> import tempfile
    >>> def session_of(rows):
    ...     ones = tf.ones_initializer()
    ...     tf.compat.v1.get_variable("table", [rows, 2], initializer=ones)
    ...     session = tf.compat.v1.Session()
    ...     session.run(tf.compat.v1.global_variables_initializer())
    ...     return session
    >>> prefix = tempfile.mkdtemp() + "/saved"
    >>> with tf.Graph().as_default(), session_of(3) as session:
    ...     path = tf.compat.v1.train.Saver().save(session, prefix)
    >>> with tf.Graph().as_default(), session_of(5) as session:
    ...     report = tfs.train.warm_start(session, path, pad=True)
    >>> report["table"].rows
    3
    """
    terms = Terms(rename, skip, truncate, pad)
    with session.graph.as_default():
        if session.graph.finalized:
            raise ValueError(
                "warm_start needs a session whose graph takes more ops: give "
                "`warm_start` to a CheckpointSaverHook. Received: a session whose "
                "graph is finalized, as in a MonitoredTrainingSession"
            )
        return PreparedWarmStart(source, terms).run(session)


class PreparedWarmStart:
    """A warm start of the default graph, with all of its ops."""

    def __init__(self, source: Any, terms: Terms):
        """Plans it and builds the ops; raises what `warm_start` does."""
        found = open_source(source)
        self._plan = WarmStart(_contents(), found, terms, of_keras=False)
        self._calls = _Calls(self._plan, found.prefixes)

    def run(self, session: Any) -> WarmStartReport:
        """Takes what was planned, and logs what that is."""
        self._calls.session = session
        report = self._plan.run(self._calls)
        logging.warning("%s", report)
        return report


def _contents() -> Contents:
    """Returns the contents of a checkpoint of the graph, with its variables."""
    contents, _ = contents_of_graph()
    by_name = {x.op.name: x for x in tf.compat.v1.global_variables()}
    for share in contents.shares:
        # Elsewhere their values are needed.
        share.wholes = {x: by_name[x] for x in share.wholes if x in by_name}
    return contents


class _Calls:
    """Has the ops in the graph, and runs them in `session`."""

    def __init__(self, plan: WarmStart, prefixes: Sequence[str]):
        self.session: Any = None
        self._ops = []
        self._values = {id(x): x.read_value() for x in plan.padded}
        for share in plan.shares.values():
            with tf.device(share.device):
                self._ops.append(
                    checkpoint_ops.ref_checkpoint_restore(
                        prefixes,
                        share.handles,
                        share.pieces,
                        share.piece_names,
                        share.stored_rows,
                    )
                )
                for name, variable in share.wholes.items():
                    (value,) = tf.raw_ops.RestoreV2(
                        prefix=prefixes[-1],
                        tensor_names=[name],
                        shape_and_slices=[""],
                        dtypes=[variable.dtype.base_dtype],
                    )
                    self._ops.append(tf.compat.v1.assign(variable, value).op)

    def restore(self, contents: Contents, prefixes: Sequence[str]) -> None:
        """Has each task read its share."""
        del contents, prefixes  # They are in the ops.
        self.session.run(self._ops)

    def read(self, variable: Any) -> Any:
        """Returns the value of a variable that is padded."""
        return self.session.run(self._values[id(variable)])

    def assign(self, pairs: Iterable[tuple[Any, Any]]) -> None:
        """Sets variables to values, without further ops."""
        for variable, value in pairs:
            target = variable.initializer
            self.session.run(target, {target.inputs[1]: value})
