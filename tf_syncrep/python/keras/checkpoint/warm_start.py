"""A model that begins with what fits it of another one."""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tf_syncrep.python.checkpoint.contents import Contents
from tf_syncrep.python.checkpoint.function_calls import FunctionCalls
from tf_syncrep.python.checkpoint.source import Source, open_source
from tf_syncrep.python.checkpoint.warm_report import WarmStartReport
from tf_syncrep.python.checkpoint.warm_start import WarmStart
from tf_syncrep.python.checkpoint.warm_terms import Terms
from tf_syncrep.python.keras import compat
from tf_syncrep.python.keras.checkpoint.contents import (
    contents_of,
    has_weights,
    numbered_stems,
)
from tf_syncrep.python.keras.checkpoint.file_names import FileNames
from tf_syncrep.python.keras.checkpoint.file_source import ENDINGS, FileSource
from tf_syncrep.python.keras.checkpoint.object_source import ObjectSource
from tf_syncrep.python.keras.tables.setting import being_set


def warm_start(
    model: Any,
    source: str | os.PathLike[str],
    *,
    rename: Mapping[str, str] | Callable[[str], str] | None = None,
    skip: str | Sequence[str] = (),
    truncate: bool = False,
    pad: bool = False,
) -> WarmStartReport:
    """Takes what fits a model from a checkpoint of another one, and tells all of it.

    A model is trained on top of yesterday's, with a feature more, a larger table or
    another optimizer. What fits is taken by name, before `fit`: weights, tables with
    their slots, the optimizer's counters and steps. Each parameter server reads its own
    rows, whatever the number of servers that wrote them. Names are those of
    `tfs.keras.Checkpoint`: `tables/user`, `variables/dense/kernel`,
    `optimizer/iteration`; slots go with what they belong to.

    - A table with more rows than the source's keeps its first ones, with their slots,
      and new rows are initial. With fewer rows it needs `truncate`.
    - A table that grows takes the rows of all ids; if it has no room, the least used
      go. From a table of fixed size it takes rows by their numbers, and the other way
      round ids must be numbers of rows.
    - A table in another floating dtype is converted. One of another optimizer, as far
      as the source tells, keeps its vectors, and its slots begin anew.
    - A dense variable of another shape begins anew, or with `pad` keeps the block that
      both have.
    - The learning rate stays as the program sets it, and `fit` begins with its first
      epoch.

    Args:
        model: a model that is built, and compiled if the optimizer's part is to be
            taken, too.
        source: a checkpoint of `tfs.keras.Checkpoint`, such as `"/shared/run1/ckpt-7"`,
            or its folder, of which the newest whole one is taken. Or one of
            `tf.train.Checkpoint`, whose variables go by the names that Keras gave them.
            Or a file of Keras, `.weights.h5` or `.keras`, of which weights and tables
            are taken, and nothing of the optimizer; they go through the coordinator,
            some at a time.
        rename: names in the source with names of the model, of variables or of all that
            is within them: `{"tables/item": "tables/goods"}`; or a function of a name
            in the source that returns one of the model.
        skip: names of the model that begin anew, or within which all does.
        truncate: whether a table may have fewer rows than the source's.
        pad: whether a dense variable of another shape keeps the common block.

    Returns:
        What was taken, in part, left initial and not used; it is printed, too. It has
        `lines`, `of(status)`, `bytes` and `secs`, and `report["tables/user"]` has
        `status`, `rows`, `of_rows`, `bytes` and `note`.

    Raises:
        ValueError: the model is not built, an argument is of the wrong kind or names
            what is not there, there is no checkpoint, or a table may not be taken as it
            is. Nothing was written then.
        Exception: no checkpoint is whole, or a file is damaged; in the latter case some
            of it may have been taken.

    Example:
    >>> def make(rows):
    ...     table = tfs.keras.TableConfig("user", rows, 4)
    ...     ids = tf.keras.Input((), dtype="int64")
    ...     vectors = tfs.keras.DistributedEmbedding(
    ...         tfs.keras.FeatureConfig("user", table)
    ...     )(ids)
    ...     model = tf.keras.Model(ids, tf.keras.layers.Dense(1)(vectors))
    ...     model.compile(tfs.keras.AdamAsync(), loss="mse")
    ...     return model
    >>> import tempfile
    >>> folder = tempfile.mkdtemp()
    >>> saving = tfs.keras.Checkpoint(folder, model=make(100)).save(wait=True)
    >>> report = tfs.keras.warm_start(make(150), folder)  # doctest: +ELLIPSIS
    Warm start from ...
    >>> report["tables/user"].status, report["tables/user"].rows
    ('in part', 100)
    """
    terms = Terms(rename, skip, truncate, pad)
    if not has_weights(model):
        raise ValueError(
            "warm_start needs a model that is built: call it on a batch, or give it an "
            f"Input. Received: {model.name!r}, which has no weights yet"
        )
    contents = contents_of(model)
    with contextlib.ExitStack() as files:
        found = _opened(source, model, contents, terms, files)
        plan = WarmStart(contents, found, terms)
        with being_set:
            report = plan.run(FunctionCalls(compat.apart_from_closures))
    print(report, flush=True)
    return report


def _opened(
    source: Any,
    model: Any,
    contents: Contents,
    terms: Terms,
    files: contextlib.ExitStack,
) -> Source:
    """Opens a source of any kind."""
    is_path = isinstance(source, (str, os.PathLike))
    path = os.fsdecode(source) if is_path else ""
    if not path.endswith(ENDINGS):
        return open_source(
            source,
            lambda prefix: ObjectSource(
                prefix,
                contents.trainers.values(),
                numbered_stems(model),
                contents.tables,
            ),
        )
    names = functools.partial(FileNames, model, contents, terms.rename)
    return FileSource(path, names, files)
