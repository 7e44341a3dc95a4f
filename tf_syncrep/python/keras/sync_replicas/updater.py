"""The updater of SyncReplicas: the coordinator's thread that applies full rounds."""

import atexit
import contextlib
import re
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf
from absl import logging

from tf_syncrep.python.keras import compat
from tf_syncrep.python.keras.sync_replicas import keeping, ordering
from tf_syncrep.python.keras.sync_replicas.cluster_ops import ClusterOps
from tf_syncrep.python.keras.sync_replicas.rounds import Observer, say_last_round
from tf_syncrep.python.keras.sync_replicas.settings import settings_of
from tf_syncrep.python.keras.sync_replicas.update_context import UpdateContext
from tf_syncrep.python.keras.tables.maintenance import (
    Maintenance,
    maintenance_of_update,
)
from tf_syncrep.python.sync.deadline import within

# A waiting updater calls again so often, so that the gate hears of it, and so that
# requests between two updates do not wait for an update that may not come.
_WAIT_SECS = 1.0
_POLL_SECS = 0.1
# A wait that only shows the gate a sign of life has this time-out.
_NO_WAIT_SECS = 1e-3
# The gate says this when a wait has ended without a round, which is no failure.
_IN_VAIN = "No full round in this time"
# An end has two parts: the thread ends, and the gate gets a message. Each of them may
# take this long if parameter servers do not answer.
_END_SECS = 5.0
# The gate tells others at most so many characters of an error.
_LONGEST_ERROR = 300
_ENDED = (
    "This training has ended. Another one begins with `tfs.keras.fit`, or with another "
    "`with optimizer.updater(strategy):`."
)

_running: "weakref.WeakSet[Updater]" = weakref.WeakSet()


class Updater:
    """Applies the mean gradients of each full round, in one function call.

    A function call waits for the round, takes the means, makes the inner optimizer's
    update on the variables' own devices, and opens the next round. An error in it ends
    the training for all: it fails the gate, so that all waits there end with that
    error.
    """

    def __init__(
        self,
        ops: ClusterOps,
        strategy: Any,
        optimizer: Any,
        update: Callable[[Any, Any], None],
    ):
        """Traces nothing yet."""
        self._ops = ops
        self._strategy = strategy
        self._optimizer = optimizer
        self._iterations = compat.native(optimizer.iterations)
        self._update = update
        self._thread: threading.Thread | None = None
        self._stopping = threading.Event()
        self._error: BaseException | None = None
        self._generation: Any = None
        # It guards the requests, and whether a thread is there to serve them.
        self._requests_lock = threading.Lock()
        self._requests: list[_Request] = []
        self._is_serving = False
        # This maintains tables that grow; it is None until the variables are known.
        self._maintenance: Maintenance | None = None
        # The thread calls them with `iterations`, before the first update of a training
        # and after each update. If an observer raises an error, the error is logged,
        # and the observer is not called again.
        self.observers: list[Observer] = []
        # These are functions, so that they reach parameter servers in the same way as
        # those of workers, which do not wait for the calls of another thread.
        self._open_fn = _function(ops.open)
        self._heard_of_fn = _function(self._be_heard_of)
        self._flush_fn = _function(ops.flush)
        self._drain_fn = _function(ops.drain)
        self._cancel_fn = _function(ops.cancel_updater)
        self._fail_fn = _function(ops.fail)
        self._make_functions_of_updates()

    @property
    def is_running(self) -> bool:
        """Whether a training has begun, and was not told to end yet."""
        return self._thread is not None

    def _make_functions_of_updates(self) -> None:
        """Makes those functions that are traced with the optimizer's settings."""
        self._wait_and_apply_fn = _function(self._wait_and_apply)
        self._apply_fn = _function(self._apply)
        # The settings at each trace of these functions.
        self._traced_with: list[dict[str, Any]] = []

    def start(self) -> None:
        """Opens the gate for a new training and starts the thread."""
        settings = settings_of(self._optimizer)
        # They are kept while nothing has changed, since to trace a function takes long,
        # and waits for every task.
        if any(traced_with != settings for traced_with in self._traced_with):
            self._make_functions_of_updates()
        self._error = None
        # It is a new event, so that a thread that an earlier training has left behind
        # does not go on in this one.
        self._stopping = threading.Event()
        step = tf.cast(self._iterations.read_value(), tf.int64)
        self._generation = self._open_fn(step)
        self._thread = threading.Thread(
            target=self._run,
            args=(self._generation, self._stopping, int(step)),
            name="sync_replicas_updater",
            daemon=True,
        )
        self._is_serving = True
        self._thread.start()
        _running.add(self)

    @property
    def cause(self) -> BaseException | None:
        """The error that ended the updates, or None.

        Closures fail then as well, but their errors say less about the reason, or
        nothing: TensorFlow cancels closures that have not heard of it yet.
        """
        if isinstance(self._error, tf.errors.CancelledError):
            return None  # A cancellation does not tell the reason.
        return self._lost_parameter_server or self._error

    @property
    def _lost_parameter_server(self) -> tf.errors.UnavailableError | None:
        """The error to raise if updates ended because a parameter server was lost."""
        if not isinstance(self._error, tf.errors.UnavailableError):
            return None
        found = re.search(r"/job:ps/replica:\d+/task:\d+", str(self._error))
        if found is None:
            return None
        return tf.errors.UnavailableError(
            None,
            None,
            f"SyncReplicas has lost the parameter server {found[0]}, and training "
            "cannot go on without its variables. Start it, start this program again, "
            f"and restore a checkpoint. Received: {self._error}",
        )

    def remove_observer(self, observer: Observer) -> None:
        """Removes an observer, unless it is gone already because it has failed."""
        with contextlib.suppress(ValueError):
            self.observers.remove(observer)

    def between_updates(self, function: Callable[[], None]) -> None:
        """Calls a function in the thread, between two updates, and waits for it.

        Without a thread there are no updates, and the function is called at once.
        """
        request = _Request(function)
        with self._requests_lock:
            if self._is_serving:
                self._requests.append(request)
            else:
                request.serve()
        request.wait()

    def drain(self) -> None:
        """Waits until no gradient is in flight and no full round waits for its update.

        Raises tf.errors.OpError: an update failed.
        """
        if not self.is_running:
            return
        try:
            self._drain_fn(self._generation)
        except tf.errors.OpError as error:
            raise (self.cause or error) from error

    def finish(self, *, flush: bool) -> None:
        """Ends a training: completes the present updates, and the last round.

        Raises tf.errors.OpError: an update failed.
        """
        if not self.is_running:
            return
        self.drain()
        self._stop()
        quorum = self._flush_fn(self._generation)
        left = int(quorum[1])
        if left:
            if flush:
                self._apply_fn(self._generation, quorum)
            say_last_round(left, flush)
        self.close()

    def close(self) -> None:
        """Ends a training at once, unless it has ended: nothing more is applied."""
        if not self.is_running:
            return
        self._stop()
        with self._requests_lock:
            self._is_serving = False
            requests, self._requests = self._requests, []
        for request in requests:  # A thread was left behind with them.
            request.refuse()
        self._thread = None
        _running.discard(self)
        within(
            _END_SECS,
            self._fail_fn,
            self._generation,
            tf.constant(tf.errors.FAILED_PRECONDITION),
            tf.constant(_ENDED),
        )

    def _stop(self) -> None:
        """Ends the thread, or leaves it behind if parameter servers do not answer."""
        assert self._thread is not None
        self._stopping.set()
        deadline = time.monotonic() + _END_SECS
        error: BaseException | None = None
        while self._thread.is_alive() and time.monotonic() < deadline:
            # It is repeated, since the thread may have begun another wait meanwhile.
            left = deadline - time.monotonic()
            error = within(left, self._cancel_fn, self._generation) or error
            self._thread.join(timeout=_POLL_SECS)
        if self._thread.is_alive():
            logging.warning(
                "SyncReplicas: the updater did not end within %g s, and is abandoned. "
                "The last error of the calls that told it to end: %s",
                _END_SECS,
                error,
            )

    def _run(self, generation: Any, stopping: threading.Event, step: int) -> None:
        try:
            self._tell_observers(step)
            self._wait_for_targets(generation, stopping)
            # A function that is being traced would take the variables for its own, so
            # this comes before.
            self._maintenance = maintenance_of_update(
                self._optimizer, [compat.native(v) for v in self._ops.targets.variables]
            )
            if self._maintenance is not None and not stopping.is_set():
                self._maintenance.run(step)
            while not stopping.is_set():
                self._serve()
                if _call(self._wait_and_apply_fn, generation, stopping):
                    step += 1
                    self._tell_observers(step)
        except BaseException as error:
            if generation is not self._generation:
                return  # This thread was left behind, and another training may run.
            self._error = error
            # The gate, and so the workers that wait there, may be unreachable.
            logging.error(
                "SyncReplicas: %s",
                self._lost_parameter_server or "an update failed",
                exc_info=error,
            )
            within(
                _END_SECS,
                self._fail_fn,
                generation,
                tf.constant(tf.errors.INTERNAL),
                tf.constant(_summary(error)),
            )
        finally:
            if generation is self._generation:
                with self._requests_lock:
                    self._is_serving = False
                self._serve()

    def _serve(self) -> None:
        """Serves requests between two updates."""
        with self._requests_lock:
            requests, self._requests = self._requests, []
        for request in requests:
            request.serve()

    def _tell_observers(self, step: int) -> None:
        for observer in list(self.observers):
            try:
                observer(step)
            except Exception as error:
                logging.exception("SyncReplicas: an observer failed: %s", error)
                self.remove_observer(observer)

    def _wait_for_targets(self, generation: Any, stopping: threading.Event) -> None:
        """Waits until a train step was traced, so that the variables are known."""
        heard_of = time.monotonic()
        while not self._ops.targets.are_known.wait(_POLL_SECS):
            if stopping.is_set():
                return
            self._serve()
            if time.monotonic() - heard_of > self._ops.heartbeat_secs:
                _call(self._heard_of_fn, generation, stopping)
                heard_of = time.monotonic()

    def _be_heard_of(self, generation: tf.Tensor) -> None:
        self._ops.wait_quorum(generation, _NO_WAIT_SECS)

    # The following two functions return nothing: a function with a result waits for a
    # message from each op in it before it returns.

    def _wait_and_apply(self, generation: tf.Tensor) -> None:
        self._apply(generation, self._ops.wait_quorum(generation, _WAIT_SECS))

    def _apply(self, generation: tf.Tensor, quorum: tf.Tensor) -> None:
        self._traced_with.append(settings_of(self._optimizer))
        gradients, variables = self._ops.take(quorum)
        # Ops without a device of their own are placed beside the gate, since an update
        # waits for a call whenever it goes from one task to another.
        with tf.device(self._ops.device):
            # `iterations` needs no gradient, and a learning rate that is set between
            # two updates must apply to the next one.
            before = [
                *keeping.keep(self._optimizer, gradients, variables),
                *ordering.one_of_each_task(gradients),
            ]
            built = _built(lambda: self._update_all(gradients, variables))
            ordering.use_resources_after(built, before, quorum.op)
            updated = _group_of(built)
            with tf.control_dependencies([updated]):
                step = tf.cast(self._iterations.read_value(), tf.int64)
            # The maintenance comes before workers look up rows for the next round.
            with tf.control_dependencies([updated, *self._maintain(step)]):
                self._ops.advance(generation, quorum, step)

    def _maintain(self, step: tf.Tensor) -> list[tf.Tensor]:
        """Maintains tables that grow, if it is time; returns what to wait for."""
        maintenance = self._maintenance
        if maintenance is None:
            return []

        def maintain():
            built = _built(lambda: maintenance.build(step))
            with tf.control_dependencies([_group_of(built)]):
                return tf.constant(True)

        is_time = tf.equal(tf.math.floormod(step, maintenance.every), 0)
        return [tf.cond(is_time, maintain, lambda: tf.constant(False))]

    def _update_all(self, gradients: Any, variables: Any) -> None:
        with self._strategy.scope(), UpdateContext(self._strategy):
            self._update(gradients, variables)


class _Request:
    """A function that another thread has to call."""

    def __init__(self, function: Callable[[], None]):
        self._function = function
        self._error: BaseException | None = None
        self._is_over = threading.Event()

    def serve(self) -> None:
        """Calls the function."""
        try:
            self._function()
        except BaseException as error:
            self._error = error
        self._is_over.set()

    def refuse(self) -> None:
        """Lets the waiting thread go on without the call."""
        self._error = tf.errors.CancelledError(None, None, _ENDED)
        self._is_over.set()

    def wait(self) -> None:
        """Waits until the function was called; raises the error that it raised."""
        self._is_over.wait()
        if self._error is not None:
            raise self._error


def _built(build: Callable[[], None]) -> list[tf.Operation]:
    """Returns the ops that a function builds in another one, which is being traced."""
    graph = tf.compat.v1.get_default_graph()
    num_before = len(graph.get_operations())
    build()
    return graph.get_operations()[num_before:]


def _group_of(ops: Sequence[tf.Operation]) -> tf.Operation:
    """Builds an op that ends after others.

    So each task reports to that op once, instead of each op.
    """
    # All others end before one of these.
    unused = [op for op in ops if not any(x.consumers() for x in op.outputs)]
    return tf.group(unused)


def _call(function: Any, generation: Any, stopping: threading.Event) -> bool:
    """Calls a function that waits for a round; returns whether there was one."""
    try:
        function(generation)
        return True
    except tf.errors.DeadlineExceededError as error:
        if _IN_VAIN not in str(error):
            raise
    except tf.errors.CancelledError:
        if not stopping.is_set():
            raise
    return False


def _function(python_function: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a `tf.function` whose failure or cancellation does not affect others.

    It is traced at its first call. TensorFlow counts traces of all functions with the
    same code together, and would take a program's optimizers, each of which has its own
    gate, for one that is traced again and again.
    """
    traces: list[Any] = []

    def call(*args: Any) -> Any:
        with compat.apart_from_closures():
            if not traces:
                function = tf.function(python_function)
                traces.append(function.get_concrete_function(*args))
            return traces[0](*args)

    return call


def _summary(error: BaseException) -> str:
    """Returns an error's text without stack traces, for the gate to tell others.

    gRPC drops errors above a few kilobytes, and each task on the way repeats the text.
    """
    lines = [
        line.strip()
        for line in str(error).splitlines()
        if not line.lstrip().startswith(("File ", "Detected at", "<stack traces"))
    ]
    # The cause comes last.
    text = " ".join(filter(None, lines))[-_LONGEST_ERROR:]
    return f"An update of SyncReplicas failed with {type(error).__name__}: {text}"


@atexit.register
def _close_all() -> None:
    """Ends the threads before the interpreter ends, which would crash with them."""
    for updater in list(_running):
        updater.close()
