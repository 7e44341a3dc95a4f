"""Control groups that bound the memory of a process."""

import contextlib
import os
import pathlib
from collections.abc import Iterator

import pytest

_ROOT = pathlib.Path("/sys/fs/cgroup")


@contextlib.contextmanager
def bounded(num_bytes: int) -> Iterator[pathlib.Path]:
    """A group whose processes get so much memory; one that asks for more is killed.

    It is within the group of this process. The test is skipped where no group can be
    made, which takes root, and with version 2 of control groups their memory controller
    in groups within this one.
    """
    parent, limit = _own_group()
    group = parent / f"tf_syncrep_test_{os.getpid()}"
    try:
        group.mkdir()
    except OSError as error:
        pytest.skip(f"no control group can be made here: {error}")
    try:
        try:
            (group / limit).write_text(str(num_bytes))
        except OSError as error:
            pytest.skip(f"no control group bounds memory here: {error}")
        yield group
    finally:
        group.rmdir()


def join(group: str | pathlib.Path, pid: int | None = None) -> None:
    """Moves a process, by default this one, into the group of a folder.

    What memory it has already does not count.
    """
    pathlib.Path(group, "cgroup.procs").write_text(str(pid or os.getpid()))


def _own_group():
    """The group of this process, and the file with a group's limit."""
    for line in pathlib.Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if "memory" in controllers.split(","):
            return _ROOT / "memory" / path.lstrip("/"), "memory.limit_in_bytes"
    # The last line is that of version 2.
    return _ROOT / path.lstrip("/"), "memory.max"
