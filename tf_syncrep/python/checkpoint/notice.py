"""A notice that the process will be ended, and the time that is left by then."""

from __future__ import annotations

import math
import os
import signal
import sys
import threading
import time
from typing import NoReturn

from tf_syncrep.python.checkpoint.directory import Directory
from tf_syncrep.python.ops import notice_ops
from tf_syncrep.python.ops.notice_ops import GRACE_VARIABLE, TO_BE_CONTINUED

# That of Kubernetes and Slurm.
_DEFAULT_GRACE_SECS = 30.0
# The process is to end by itself before it is killed.
_SHARE_USED = 0.95
# While a training comes to a stop, and after that a checkpoint is written.
_SHARE_TO_STOP = 1 / 3
_SIGTERM_OF_THIS = "SIGTERM"


def grace_secs() -> float:
    """Returns how long after SIGTERM a process is killed, by the environment."""
    text = os.environ.get(GRACE_VARIABLE, "")
    try:
        secs = float(text) if text else _DEFAULT_GRACE_SECS
    except ValueError:
        secs = math.nan
    if not 0 <= secs < math.inf:
        raise ValueError(
            f"{GRACE_VARIABLE} must be a number of seconds of at least 0. Received: "
            f"{text!r}"
        )
    return secs


class Notice:
    """A SIGTERM to this process, or to another one that its training needs.

    `begin` and `end` enclose the time for which it is listened for.
    """

    def __init__(self):
        self._grace_secs = grace_secs()
        self._lock = threading.Lock()
        self._is_listening = False
        self._given_at: float | None = None
        # Whether the signal does by now what it does in the end.
        self._is_seen_to = False
        # Whether there is something to save, in `fit`.
        self.has_begun: bool = False
        # Whether this process had one by the end, whoever else had one before.
        self.is_of_this: bool = False
        # Who has it, as its lines say.
        self.whose: str = ""

    def begin(self) -> None:
        """Listens for a SIGTERM to this process."""
        self._is_listening = True
        notice_ops.begin()

    def end(self) -> None:
        """Listens no more; a second call does nothing."""
        with self._lock:
            was_listening, self._is_listening = self._is_listening, False
        if was_listening and notice_ops.end():
            self.is_of_this = True
            self.give(_SIGTERM_OF_THIS)

    @property
    def is_given(self) -> bool:
        """Whether there is notice."""
        if self._given_at is None and self._is_listening and notice_ops.is_given():
            self.give(_SIGTERM_OF_THIS)
        return self._given_at is not None and not self._is_seen_to

    def give(self, whose: str) -> None:
        """Notes that somebody has notice; only the first one counts."""
        with self._lock:
            if self._given_at is None:
                self.whose, self._given_at = whose, time.monotonic()

    @property
    def secs_left(self) -> float:
        """How many seconds are left to end in; all of them before there is notice."""
        since = self._given_at
        passed = 0.0 if since is None else time.monotonic() - since
        return _SHARE_USED * self._grace_secs - passed

    @property
    def secs_to_stop(self) -> float:
        """How many seconds are left in which the training may come to a stop."""
        return self.secs_left - (1 - _SHARE_TO_STOP) * _SHARE_USED * self._grace_secs

    def say(self, text: str) -> None:
        """Says something about it, where the script writes."""
        print(f"{self.whose}: {text}", flush=True)

    def say_stop(self, what: str) -> None:
        """Says that something stops, and how much time there is for it."""
        self.say(f"{what} stops, with {max(0.0, self.secs_left):.1f} s left.")

    def has_time(self, secs_of_last: float, num_to_write: int = 1) -> bool:
        """Returns whether checkpoints can be written in time; says so if they cannot.

        `secs_of_last`: how long the last one took.
        """
        left = self.secs_left
        if secs_of_last * num_to_write <= left:
            return True
        self.say(
            "no checkpoint of this moment is begun: the last one took "
            f"{secs_of_last:.1f} s, and {max(0.0, left):.1f} s are left."
        )
        return False

    def say_next(self, directory: Directory, secs: float | None = None) -> None:
        """Says from where the next run goes on.

        `secs`: how long that took to write, if it was written for this notice.
        """
        number = directory.newest_number()
        newest = directory.prefix(number) if number else "the beginning"
        written = "" if secs is None else f", written in {secs:.1f} s"
        self.say(f"the next run goes on from {newest}{written}.")

    def end_process_unless(self, is_over: threading.Event) -> None:
        """Waits until something is over, or the time is; then the process ends."""
        if not is_over.wait(max(0.0, self.secs_left)):
            self.say("the time is over.")
            self.end_process()

    @staticmethod
    def end_process() -> NoReturn:
        """Ends the process at once, whatever its threads do."""
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(TO_BE_CONTINUED)

    def let_through(self) -> None:
        """Listens no more; SIGTERM to this process does what it does without this.

        A second call does nothing, nor does one after `leave`.
        """
        self.end()
        self.release()
        with self._lock:
            is_due = self.is_of_this and not self._is_seen_to
            self._is_seen_to = True
        # Otherwise another one in this process listens, and sees to it.
        if is_due and not notice_ops.is_given():
            sys.stdout.flush()
            is_handled = signal.getsignal(signal.SIGTERM) != signal.SIG_DFL
            os.kill(os.getpid(), signal.SIGTERM)
            if not is_handled:
                # The kernel ends no process 1, as that of a container, by a signal.
                self.end_process()

    def leave(self) -> NoReturn:
        """Ends the program, and says by its status that it is to be continued.

        If the SIGTERM was sent to this process, a handler of the script's gets it.
        """
        self.end()
        self._is_seen_to = True
        is_handled = signal.getsignal(signal.SIGTERM) not in (
            signal.SIG_DFL,
            signal.SIG_IGN,
        )
        in_main_thread = threading.current_thread() is threading.main_thread()
        # Otherwise another one in this process listens, and the last one does this.
        if not notice_ops.is_given():
            if not in_main_thread and not is_handled:
                # The error would end this thread alone.
                self.end_process()
            if is_handled and (not in_main_thread or self.is_of_this):
                self.release()
                signal.raise_signal(signal.SIGTERM)
        raise SystemExit(TO_BE_CONTINUED)

    def release(self) -> None:
        """Lets others with notice end before this process does."""
