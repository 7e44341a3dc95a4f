"""The threads, children and memory of a process, as Linux tells of them."""

import contextlib
import pathlib
import re


def resident(pid="self"):
    """Bytes of a process that are in memory."""
    status = pathlib.Path(f"/proc/{pid}/status").read_text()
    return int(re.search(r"VmRSS:\s+(\d+) kB", status)[1]) << 10


def threads(pid="self"):
    """Yields the id of each thread, and what its `status` says by field.

    Threads that end while this reads, of which there always are some, are left out.
    """
    for thread in pathlib.Path(f"/proc/{pid}").glob("task/*"):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            lines = (thread / "status").read_text().splitlines()
            fields = (line.split(":", 1) for line in lines)
            yield int(thread.name), {name: value.strip() for name, value in fields}


def threads_named(name, pid="self"):
    """The ids of a process's threads of a name of at most 15 characters."""
    return [thread for thread, status in threads(pid) if status["Name"] == name]


def asleep_in_handler(signum):
    """The ids and names of this process's threads that sleep in a signal's handler.

    The signal is blocked there.
    """
    return [
        (thread, status["Name"])
        for thread, status in threads()
        if int(status["SigBlk"], 16) >> (signum - 1) & 1
        and status["State"].startswith("S")
    ]


def all_in_state(pid, letter):
    """Whether a process has threads, and each is in a state, such as T, stopped."""
    return {status["State"][0] for _, status in threads(pid)} == {letter}


def only_child(pid):
    """The only child of a process."""
    (child,) = pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return int(child)
