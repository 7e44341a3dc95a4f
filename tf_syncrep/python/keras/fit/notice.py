"""How `fit` ends when its program is to be ended, or a parameter server."""

from __future__ import annotations

import atexit
import contextlib
import functools
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NoReturn

import tensorflow as tf

from tf_syncrep.python.checkpoint.notice import Notice
from tf_syncrep.python.keras import cluster
from tf_syncrep.python.keras.checkpoint.checkpoint import Checkpoint
from tf_syncrep.python.keras.compat.coordinator import (
    apart_from_closures,
    cancellation_manager,
)
from tf_syncrep.python.keras.compat.trainer import each_callback
from tf_syncrep.python.ops import notice_ops

_ASK_SECS = 0.1
# The functions that wait for notice of each strategy's parameter servers: to trace one
# takes a call to every task.
_functions: weakref.WeakKeyDictionary[Any, list[Any]] = weakref.WeakKeyDictionary()
# Set when a program leaves while calls wait on servers, for which the interpreter's own
# end would wait.
_ends_at_once = threading.Event()
# Whether a `fit` listens that this thread is in.
_this_thread = threading.local()


@atexit.register
def _end_at_once() -> None:
    """Ends the process, after what the script has registered to be called before."""
    if _ends_at_once.is_set():
        Notice.end_process()


class FitNotice(Notice):
    """Listens during a `fit`, and sees to it that a checkpoint is written in time.

    The loop asks `is_given` between executions, comes to a stop, and saves. A thread
    hears of it at once, whatever the loop does. If the loop does not stop in time, as a
    step hangs, the thread saves beside it.
    """

    def __init__(self, checkpoints: Sequence[Checkpoint], strategy: Any):
        """`strategy`: that of a scheduled training; else None."""
        super().__init__()
        self._checkpoints = checkpoints
        self._strategy = strategy
        self._saving = threading.Lock()
        # The loop has stopped, and fit has ended.
        self._is_stopped, self._is_over = threading.Event(), threading.Event()
        self._calls = cancellation_manager()
        self._is_said = False  # that there is nothing to save

    def begin(self) -> None:
        """Listens for a SIGTERM to this process, or to a parameter server."""
        super().begin()
        targets: list[Callable[[], Any]] = [self._watch]
        if self._checkpoints and self._strategy is not None:
            for number, function in enumerate(_functions_of(self._strategy)):
                targets.append(functools.partial(self._await, function, True))
                targets.append(functools.partial(self._hear, number, function))
        for target in targets:
            threading.Thread(target=target, name="notice", daemon=True).start()

    @property
    def is_given(self) -> bool:
        """Whether the training is to stop, as there is notice and something to save."""
        return self.has_begun and super().is_given

    def end(self) -> None:
        """Listens no more; if there is notice, servers stay until the process ends."""
        super().end()
        self._is_over.set()
        if not self.is_given:
            self.release()

    def release(self) -> None:
        """Lets parameter servers with notice end."""
        _ends_at_once.clear()
        self._calls.start_cancel()

    def let_through(self) -> None:
        """Listens no more, and says so if there is notice and nothing to save."""
        self.end()
        if super().is_given and not self.has_begun:
            with self._lock:
                was_said, self._is_said = self._is_said, True
            if not was_said:
                why = "fit has no tfs.keras.Checkpoint"
                if self._checkpoints:
                    why = "nothing is trained yet"
                self.say(f"{why}, and nothing is written.")
        super().let_through()

    def leave(self) -> NoReturn:
        """Ends the program; servers are there for whatever it does until then."""
        if self._strategy is not None:
            _ends_at_once.set()
        super().leave()

    def note_ending(self) -> None:
        """Notes that the training ends by itself, with its own last checkpoint."""
        self._is_stopped.set()

    def save(self) -> None:
        """Writes the checkpoints, once."""
        with self._saving:
            self._is_stopped.set()
            checkpoints, self._checkpoints = self._checkpoints, []
            for checkpoint in checkpoints:
                checkpoint.save_at_notice(self)

    def _hear(self, number: int, function: Any) -> None:
        """Waits for the notice of a parameter server, which another wait keeps up."""
        if self._await(function, until_end=False):
            self.give(f"SIGTERM to parameter server {number}")

    def _await(self, function: Any, until_end: bool) -> bool:
        """Calls a wait on a parameter server; returns whether it was not cancelled."""
        # A lost server ends the training by another error.
        with contextlib.suppress(tf.errors.OpError), apart_from_closures(self._calls):
            function(tf.constant(until_end))
            return True
        return False

    def _watch(self) -> None:
        while not super().is_given:
            if self._is_over.wait(_ASK_SECS):
                return
        if not self.has_begun:
            self.let_through()
            if not self.is_of_this:
                self.end_process()
            return
        self.say_stop("fit")
        is_stopped = self._is_stopped.wait(max(0.0, self.secs_to_stop))
        if not is_stopped and self._strategy is not None:
            self.say("steps still run; a checkpoint is written beside them.")
            # It may hang, as they do.
            threading.Thread(target=self.save, name="notice", daemon=True).start()
        self.end_process_unless(self._is_over)


@contextlib.contextmanager
def listening(model: Any, callbacks: Any) -> Iterator[FitNotice]:
    """Encloses a `fit`, and ends the program after it if there is notice by then.

    One in a callback of another does not listen: the outer one has to stop.
    """
    if getattr(_this_thread, "listens", False):
        yield FitNotice([], None)
        return
    checkpoints = [x for x in each_callback(callbacks) if isinstance(x, Checkpoint)]
    strategy = model.distribute_strategy
    is_scheduled = isinstance(strategy, tf.distribute.ParameterServerStrategy)
    notice = FitNotice(checkpoints, strategy if is_scheduled else None)
    for checkpoint in checkpoints:
        checkpoint.notice = notice
    _this_thread.listens = True
    try:
        notice.begin()
        yield notice
    except BaseException as error:
        if notice.is_given:
            notice.say(f"fit has failed, and nothing is written: {error!r}")
        notice.let_through()
        raise
    finally:
        _this_thread.listens = False
        for checkpoint in checkpoints:
            checkpoint.notice = None
    if notice.is_given:
        notice.leave()
    notice.let_through()


def _functions_of(strategy: Any) -> list[Any]:
    """Returns a function for each parameter server that waits for its notice."""
    if strategy not in _functions:
        devices = [
            f"/job:ps/replica:0/task:{number}/device:CPU:0"
            for number in range(cluster.num_tasks("ps"))
        ]
        with apart_from_closures():
            _functions[strategy] = [_awaiting(device) for device in devices]
    return _functions[strategy]


def _awaiting(device: str) -> Any:
    @tf.function(autograph=False, input_signature=[tf.TensorSpec([], tf.bool)])
    def wait(until_end):
        with tf.device(device):
            notice_ops.await_notice(until_end)

    return wait.get_concrete_function()
