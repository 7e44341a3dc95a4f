"""Makes a picture and a summary from a folder of event files."""

from __future__ import annotations

import importlib
import os
import pathlib
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tf_syncrep.python.report.training import Training

PICTURE_NAME = "sync_report.png"
_NO_MATPLOTLIB = (
    "Matplotlib, which draws the picture, is not installed. Install it: "
    f"{sys.executable} -m pip install matplotlib"
)


class ReportError(Exception):
    """There is no report; the message says why, in one line."""


class NothingYetError(ReportError):
    """The folder has no training yet; the message is one line."""


def write(logdir: str, output: str | None = None) -> str:
    """Draws the latest synchronous training in a folder, and describes it.

    Files that cannot be read are named on standard error and left out.

    Event files are searched in all folders below it. Raises ReportError.
    """
    check_folder(logdir)
    can_draw = _has_matplotlib()
    if output is not None and not can_draw:
        raise ReportError(_NO_MATPLOTLIB)
    found, others = read(
        logdir,
        lambda what: print(f"tf-syncrep report: left out: {what}", file=sys.stderr),
    )
    from tf_syncrep.python.report import summary

    title = f"Synchronous training in {found.folder}"
    headline, details = summary.headline(found), summary.details(found)
    if can_draw:
        path = pathlib.Path(output or os.path.join(logdir, PICTURE_NAME))
        _draw(found, title, f"{headline}\n{details}", path)
        last = f"Wrote {path}."
    else:
        last = f"No picture: {_NO_MATPLOTLIB}"
    lines = [f"{title}:", headline, details, "", summary.table(found), ""]
    if found.tables:
        lines += [summary.tables(found), ""]
    if found.placement:
        lines += [summary.placement(found), ""]
    if others:
        lines.append(
            f"It is the latest of {others + 1}; for another name its own folder."
        )
    return "\n".join([*lines, last])


def check_folder(logdir: str) -> None:
    """Raises ReportError if the folder does not exist."""
    if not os.path.isdir(logdir):
        raise ReportError(f"LOGDIR must be a folder. Received: {logdir!r}")


def read(
    logdir: str, leave_out: Callable[[object], object] = lambda what: None
) -> tuple[Training, int]:
    """Reads the latest synchronous training in a folder.

    `leave_out`: called with what says in one line which file, or rest of one, cannot be
    read. Raises NothingYetError: the folder has no training.
    """
    _import_tensorflow()
    from tf_syncrep.python.report import event_files, training

    root = pathlib.Path(logdir)
    files = []
    for path in event_files.find(root):
        try:
            file = event_files.read(path)
        except event_files.UnreadableFileError as error:
            leave_out(error)
        else:
            files += [file] if file is not None else []
            if file is not None and file.damage is not None:
                leave_out(file.damage)
    if not files:
        raise NothingYetError(f"no event files with events in {logdir} or below it")
    found = training.latest(files, root)
    if found is None:
        raise NothingYetError(
            f"no figures of a synchronous training (sync/...) in the {len(files)} "
            f"event file{'s' if len(files) > 1 else ''} below {root}. In v1 "
            "make_session_run_hook(summary_dir=...) writes them, in Keras "
            "tfs.keras.SyncReport(log_dir=...)"
        )
    return found


def _has_matplotlib() -> bool:
    try:
        importlib.import_module("matplotlib")
    except ImportError:
        return False
    return True


def _draw(found: Training, title: str, subtitle: str, path: pathlib.Path) -> None:
    from tf_syncrep.python.report import picture

    figure = picture.draw(found, title, subtitle)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, dpi=150)
    except (OSError, ValueError) as error:
        # a ValueError means that Matplotlib does not know the extension
        reason = str(error).splitlines()[0]
        raise ReportError(f"{path} cannot be written: {reason}") from None


def _import_tensorflow() -> None:
    """Imports TensorFlow, which reads the event files, without its messages."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    # Otherwise it would take GPU memory from a training that still runs.
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    sys.stderr.flush()
    saved = os.dup(2)
    # It writes a few lines before it reads its log level.
    with open(os.devnull, "wb") as nowhere:
        os.dup2(nowhere.fileno(), 2)
    try:
        importlib.import_module("tensorflow")
    finally:
        os.dup2(saved, 2)
        os.close(saved)
