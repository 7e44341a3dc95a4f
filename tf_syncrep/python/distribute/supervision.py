"""No process left behind: process death signals, sub-reapers, and a front process.

The kernel gives two means. PR_SET_PDEATHSIG kills a child when its parent dies, but not
the grandchildren. PR_SET_CHILD_SUBREAPER makes a process the parent of all orphans
below it, however they detached themselves (setsid, double fork), so that it can find
and end them; but it does not help if this process is itself killed. So `run_supervised`
uses two processes: a front process that the user sees, and a body process that does the
work. Each of them cleans up when the other dies.
"""

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Collection, Sequence
from typing import Any

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_LIBC = ctypes.CDLL(None, use_errno=True)

# The signals by which a user or a system asks a command to end.
STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_REAP_DEADLINE_SECS = 10.0


def die_with_parent(parent: int) -> None:
    """Makes the kernel kill this process when the thread that started it ends.

    It is meant for `subprocess.Popen(preexec_fn=...)`: it allocates nothing, and takes
    no lock that another thread of the parent could hold. By the parent's process id it
    notices if the parent has died already.
    """
    _LIBC.prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)


def become_subreaper() -> None:
    """Makes this process the parent of every orphan among its descendants."""
    if _LIBC.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "PR_SET_CHILD_SUBREAPER failed")


def kill_descendants(but_not: Collection[int] = ()) -> None:
    """Kills and reaps every descendant of this process, which must be a sub-reaper.

    A process that forks while it is being killed leaves an orphan, which becomes a
    child of this process and is found in the next pass; the end is reached when the
    kernel knows of no child.
    """
    # A process in uninterruptible sleep may outlast the deadline.
    deadline = time.monotonic() + _REAP_DEADLINE_SECS
    while time.monotonic() < deadline:
        found = descendants(os.getpid(), but_not)
        if but_not and not found:
            return
        for pid in found:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return
        time.sleep(0.01)


def reap_orphans(but_not: Collection[int]) -> None:
    """Reaps what has ended of the orphans of which this process is the parent now."""
    for pid in descendants(os.getpid(), but_not):
        with contextlib.suppress(ChildProcessError):  # its parent lives
            os.waitpid(pid, os.WNOHANG)


def run_command(command: Sequence[str], descriptors: Sequence[int] = ()) -> int:
    """Runs a command, which must call `die_with_parent`, to its end.

    The command leads a session of its own, so that a terminal's Ctrl-C reaches only
    this process, which passes on the STOP_SIGNALS that it does not ignore or handle by
    itself in C. Handlers can be set only in the main thread; in another one nothing is
    passed on.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    in_main_thread = threading.current_thread() is threading.main_thread()
    forwarded = STOP_SIGNALS if in_main_thread else ()
    # A signal that comes before there is a process waits until it can be passed on.
    previous_mask = signal.pthread_sigmask(signal.SIG_BLOCK, forwarded)
    process, previous = None, {}
    try:
        process = subprocess.Popen(
            list(command), start_new_session=True, pass_fds=descriptors
        )
        previous = _set_handlers(forwarded, lambda s, _: process.send_signal(s))
        signal.pthread_sigmask(signal.SIG_SETMASK, previous_mask)
        status = process.wait()
    except BaseException:  # a handler of the caller's has raised it
        if process is not None:
            process.kill()  # the processes that it supervises end with it
            process.wait()
        raise
    finally:
        for signum, handler in previous.items():
            signal.signal(signum, handler)
        signal.pthread_sigmask(signal.SIG_SETMASK, previous_mask)
    return status if status >= 0 else 128 - status


def _set_handlers(signums: Sequence[int], handler: Any) -> dict[int, Any]:
    """Sets a handler where one of Python's is; returns those that were there.

    Under nohup SIGHUP stays ignored, and a handler that was set in C could not be put
    back.
    """
    previous = {signum: signal.getsignal(signum) for signum in signums}
    kept = (signal.SIG_IGN, None)
    replaced = {s: before for s, before in previous.items() if before not in kept}
    for signum in replaced:
        signal.signal(signum, handler)
    return replaced


def run_supervised(body: Callable[[int], int]) -> int:
    """Runs `body` in a child process that leaves no process behind.

    The child leads a session of its own, so that a terminal's Ctrl-C reaches only this
    process, which forwards it. If this process dies, for whatever reason, the
    descriptor that `body` gets becomes readable (end of file), and `body` must end. If
    the child dies, this process kills what the child has left, but none of its own
    children: a shell that becomes this process by `exec` leaves it those that it has
    started. Call it before any thread is started.
    """
    # Whoever started this process may ignore it: children would be reaped unseen, and
    # their statuses lost.
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    become_subreaper()
    sys.stdout.flush()
    sys.stderr.flush()
    read_end, write_end = os.pipe()
    bystanders = descendants(os.getpid())
    signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
    child = os.fork()
    if child == 0:
        _run_body(body, read_end, write_end)

    def forward(signum: int, frame: object) -> None:
        del frame
        with contextlib.suppress(ProcessLookupError):
            os.kill(child, signum)

    os.close(read_end)
    previous = _set_handlers(STOP_SIGNALS, forward)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    kill_descendants(but_not=bystanders)
    os.close(write_end)
    for signum, handler in previous.items():
        signal.signal(signum, handler)
    return status if status >= 0 else 128 - status


def _run_body(body: Callable[[int], int], read_end: int, write_end: int) -> None:
    status = 1
    try:
        os.close(write_end)
        os.setsid()
        become_subreaper()
        status = body(read_end)
    except BaseException:  # this process must never return into the caller's frames
        traceback.print_exc()
    finally:
        kill_descendants()
        with contextlib.suppress(OSError, ValueError):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(status)


def descendants(ancestor: int, but_not: Collection[int] = ()) -> list[int]:
    """Returns the processes below one, except some and those below these."""
    children: dict[int, list[int]] = {}
    for entry in os.listdir("/proc"):
        if not entry.isdigit():
            continue
        try:
            with open(
                f"/proc/{entry}/stat", encoding="utf-8", errors="replace"
            ) as stat:
                parent = int(stat.read().rpartition(")")[2].split()[1])
        except (OSError, IndexError):  # it has ended meanwhile
            continue
        children.setdefault(parent, []).append(int(entry))
    found: list[int] = []
    waiting = [ancestor]
    while waiting:
        below = [x for x in children.get(waiting.pop(), []) if x not in but_not]
        waiting.extend(below)
        found.extend(below)
    return found
