"""The updater of SyncReplicas: the coordinator's thread that applies full rounds."""

from __future__ import annotations

import atexit
import contextlib
import dataclasses
import functools
import re
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf
from absl import logging

from tf_syncrep.python.base import said_waits
from tf_syncrep.python.base.deadline import within
from tf_syncrep.python.base.request import Request
from tf_syncrep.python.keras import cluster, compat
from tf_syncrep.python.keras.sync_replicas.cluster import keeping, ordering
from tf_syncrep.python.keras.sync_replicas.cluster.cluster_ops import ClusterOps
from tf_syncrep.python.keras.sync_replicas.cluster.settings import settings_of
from tf_syncrep.python.keras.sync_replicas.rounds import (
    Observer,
    Rounds,
    say_last_round,
)
from tf_syncrep.python.keras.tables.growing.dynamic_tables import DynamicTables
from tf_syncrep.python.keras.tables.growing.maintenance import Maintenance
from tf_syncrep.python.keras.tables.stacked_tables import tables_with
from tf_syncrep.python.ops import sync_gate_ops

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
# A wait for parameter servers of less is not worth a line: updates take their time.
_PATIENT_SECS = 10.0

_running: weakref.WeakSet[Updater] = weakref.WeakSet()


class Updater(Rounds):
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
        self._ops = ops
        self._strategy = strategy
        self._optimizer = optimizer
        self._iterations = compat.native(optimizer.iterations)
        self._update = update
        # The present training, or the last one.
        self._training: _Training | None = None
        # It guards the requests of a training, and whether a thread is there to serve
        # them. Who holds it where there is none keeps updates from beginning.
        self._lock = threading.RLock()
        # This maintains tables that grow, if rows of some can go now.
        self._maintenance: Maintenance | None = None
        self._losing: list[Any] = []
        # The thread calls them with `iterations`, before the first update of a training
        # and after each update. If an observer raises an error, the error is logged,
        # and the observer is not called again.
        self._observers: list[Observer] = []
        # These are functions, so that they reach parameter servers in the same way as
        # those of workers, which do not wait for the calls of another thread.
        self._open_fn, self._drain_fn, self._cancel_fn, self._fail_fn = (
            _function(functools.partial(ops.at_gate, op))
            for op in (
                sync_gate_ops.sync_gate_open,
                sync_gate_ops.sync_gate_drain,
                functools.partial(
                    sync_gate_ops.sync_gate_cancel_updater, **sync_gate_ops.NO_WORKER
                ),
                sync_gate_ops.sync_gate_fail,
            )
        )
        self._flush_fn = _function(
            functools.partial(ops.quorum_of, sync_gate_ops.sync_gate_flush)
        )
        self._heard_of_fn = _function(self._be_heard_of)
        self._make_functions_of_updates()

    @property
    def is_training(self) -> bool:
        return self._under_way is not None

    @property
    def _under_way(self) -> _Training | None:
        training = self._training
        return None if training is None or training.has_ended else training

    def _make_functions_of_updates(self) -> None:
        """Makes those functions that are traced with the optimizer's settings."""
        self._wait_and_apply_fn = _function(self._wait_and_apply)
        self._apply_fn = _function(self._apply)
        # The settings at each trace of these functions.
        self._traced_with: list[dict[str, Any]] = []

    def start(self) -> None:
        settings = settings_of(self._optimizer)
        # They are kept while nothing has changed, since to trace a function takes long,
        # and waits for every task.
        if any(traced_with != settings for traced_with in self._traced_with):
            self._make_functions_of_updates()
        with self._lock, self._said():
            self._training = None
            step = tf.cast(self._iterations.read_value(), tf.int64)
            training = _Training(self._open_fn(step))
            training.thread = threading.Thread(
                target=self._run,
                args=(training, int(step)),
                name="sync_replicas_updater",
                daemon=True,
            )
            training.serving = training.thread
            training.thread.start()  # which fails on a machine with too many threads
            self._training = training
        _running.add(self)

    @property
    def cause(self) -> BaseException | None:
        """The error that ended the updates, or None.

        Closures fail then as well, but their errors say less about the reason, or
        nothing: TensorFlow cancels closures that have not heard of it yet.
        """
        error = None if self._training is None else self._training.error
        if isinstance(error, tf.errors.CancelledError):
            return None  # A cancellation does not tell the reason.
        return _lost_parameter_server(error) or error

    def add_observer(self, observer: Observer) -> None:
        self._observers.append(observer)

    def remove_observer(self, observer: Observer) -> None:
        """Removes an observer, unless it is gone already because it has failed."""
        with contextlib.suppress(ValueError):
            self._observers.remove(observer)

    def between_updates(self, function: Callable[[], None]) -> None:
        """Calls a function in the thread, between two updates, and waits for it.

        Without a thread there are no updates, and the function is called at once.
        """
        request = Request(function)
        with self._lock:
            training = self._training
            serving = None if training is None else training.serving
            if training is None or serving in (None, threading.current_thread()):
                request.serve()
            else:
                training.requests.append(request)
        with self._said():
            request.result()

    def drain(self) -> None:
        training = self._under_way
        if training is None:
            return
        try:
            with self._said():
                self._drain_fn(training.generation)
        except tf.errors.OpError as error:
            raise (self.cause or error) from error

    def finish(self, *, flush: bool) -> None:
        training = self._under_way
        if training is None:
            return
        self.drain()
        self._stop(training)
        # Requests wait for the last round. The lock is not held for so long, since
        # servers may not answer.
        with self._lock:
            training.serving = threading.current_thread()
        try:
            with self._said():
                quorum = self._flush_fn(training.generation)
                left = int(quorum[1])
                if left and flush:
                    self._apply_fn(training.generation, quorum)
                    self._tell_observers(int(self._iterations.read_value()))
        finally:
            self._end_serving(training)
        if left:
            say_last_round(left, flush)
        self.close()

    def close(self) -> None:
        training = self._under_way
        if training is None:
            return
        self._stop(training)
        with self._lock:
            training.serving = None
            requests = training.taken_requests()
        for request in requests:  # A thread was left behind with them.
            request.set_exception(tf.errors.CancelledError(None, None, _ENDED))
        training.has_ended = True
        _running.discard(self)
        within(
            _END_SECS,
            self._fail_fn,
            tf.constant(tf.errors.FAILED_PRECONDITION),
            tf.constant(_ENDED),
            training.generation,
        )

    def _said(self) -> contextlib.AbstractContextManager[None]:
        """Encloses a wait for parameter servers, one of which may hang for ever."""
        begin = time.monotonic()

        def describe() -> str | None:
            secs = time.monotonic() - begin
            if secs < _PATIENT_SECS:
                return None
            return (
                f"SyncReplicas: waits for parameter servers, for {secs:.0f} s. "
                f"{cluster.tell_who_answers(self._strategy)}"
            )

        return said_waits.said(describe)

    def _stop(self, training: _Training) -> None:
        """Ends the thread, or leaves it behind if parameter servers do not answer."""
        training.stopping.set()
        deadline = time.monotonic() + _END_SECS
        error: BaseException | None = None
        while training.thread.is_alive() and time.monotonic() < deadline:
            # It is repeated, since the thread may have begun another wait meanwhile.
            left = deadline - time.monotonic()
            error = within(left, self._cancel_fn, training.generation) or error
            training.thread.join(timeout=_POLL_SECS)
        if training.thread.is_alive():
            training.is_left_behind = True
            logging.warning(
                "SyncReplicas: the updater did not end within %g s, and is abandoned. "
                "The last error of the calls that told it to end: %s",
                _END_SECS,
                error,
            )

    def _run(self, training: _Training, step: int) -> None:
        stopping = training.stopping
        try:
            self._tell_observers(step)
            self._wait_for_targets(training)
            variables = [compat.native(v) for v in self._ops.targets.variables]
            tables = tables_with(DynamicTables, variables, trained_only=True)
            self._choose_maintenance(tables)
            if self._maintenance is not None and not stopping.is_set():
                self._maintenance.run(step)
            while not stopping.is_set():
                self._serve(training)
                self._choose_maintenance(tables)
                if _call(self._wait_and_apply_fn, training.generation, stopping):
                    step += 1
                    self._tell_observers(step)
        except BaseException as error:
            training.error = error
            if training.is_left_behind:
                return  # Another training may run.
            # The gate, and so the workers that wait there, may be unreachable.
            logging.error(
                "SyncReplicas: %s",
                _lost_parameter_server(error) or "an update failed",
                exc_info=error,
            )
            within(
                _END_SECS,
                self._fail_fn,
                tf.constant(tf.errors.INTERNAL),
                tf.constant(_summary(error)),
                training.generation,
            )
        finally:
            self._end_serving(training)

    def _end_serving(self, training: _Training) -> None:
        """Serves the last requests."""
        with self._lock:
            training.serving = None
        self._serve(training)

    def _serve(self, training: _Training) -> None:
        """Serves requests between two updates."""
        with self._lock:
            requests = training.taken_requests()
        for request in requests:
            request.serve()

    def _choose_maintenance(self, tables: Sequence[DynamicTables]) -> None:
        """Has updates maintain those tables of which rows can go now.

        Others may be set, or be trained no more, between two updates.
        """
        losing = [x for x in tables if x.loses_rows()]
        if losing != self._losing:
            self._losing = losing
            # A function that is being traced would take the variables for its own, so
            # this comes before.
            self._maintenance = (
                Maintenance(losing, [self._optimizer]) if losing else None
            )
            self._make_functions_of_updates()

    def _tell_observers(self, step: int) -> None:
        for observer in list(self._observers):
            try:
                observer(step)
            except Exception as error:
                logging.exception("SyncReplicas: an observer failed: %s", error)
                self.remove_observer(observer)

    def _wait_for_targets(self, training: _Training) -> None:
        """Waits until a train step was traced, so that the variables are known."""
        heard_of = time.monotonic()
        while not self._ops.targets.are_known.wait(_POLL_SECS):
            if training.stopping.is_set():
                return
            self._serve(training)
            if time.monotonic() - heard_of > self._ops.heartbeat_secs:
                _call(self._heard_of_fn, training.generation, training.stopping)
                heard_of = time.monotonic()

    def _wait(self, generation: tf.Tensor, secs: float) -> tf.Tensor:
        """Waits for a full round; returns the round and its number of gradients."""
        return self._ops.quorum_of(
            sync_gate_ops.sync_gate_wait_quorum, generation, timeout_secs=secs
        )

    # The following functions return nothing: a function with a result waits for a
    # message from each op in it before it returns.

    def _be_heard_of(self, generation: tf.Tensor) -> None:
        self._wait(generation, _NO_WAIT_SECS)

    def _wait_and_apply(self, generation: tf.Tensor) -> None:
        self._apply(generation, self._wait(generation, _WAIT_SECS))

    def _apply(self, generation: tf.Tensor, quorum: tf.Tensor) -> None:
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
                self._ops.at_gate(
                    sync_gate_ops.sync_gate_advance, generation, quorum[0], step
                )
        # Last, since an optimizer may note something of its variables while it traces.
        self._traced_with.append(settings_of(self._optimizer))

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
        with self._strategy.scope(), _UpdateContext(self._strategy, 0):
            self._update(gradients, variables)


class _UpdateContext(tf.distribute.ReplicaContext):
    """The context in which optimizers expect an update: that of one replica.

    The gradients are already those of the whole step, so values that would be summed
    over the replicas stay as they are. `strategy.run` would send the update to a
    worker, and would end in a context whose sums are those of the workers.
    """

    def all_reduce(self, reduce_op, value, options=None):
        del reduce_op, options
        return value


@dataclasses.dataclass(eq=False)
class _Training:
    """What a training's thread has to itself, also if it is left behind."""

    generation: Any
    thread: threading.Thread = dataclasses.field(init=False)
    stopping: threading.Event = dataclasses.field(default_factory=threading.Event)
    error: BaseException | None = None
    requests: list[Request[None]] = dataclasses.field(default_factory=list)
    # The thread that serves requests, if there is one.
    serving: threading.Thread | None = None
    is_left_behind: bool = False
    has_ended: bool = False

    def taken_requests(self) -> list[Request[None]]:
        """Returns the requests, none of which is left."""
        requests, self.requests = self.requests, []
        return requests


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


def _lost_parameter_server(
    error: BaseException | None,
) -> tf.errors.UnavailableError | None:
    """Returns the error to raise if updates ended since a parameter server was lost."""
    if not isinstance(error, tf.errors.UnavailableError):
        return None
    found = re.search(r"/job:ps/replica:\d+/task:\d+", str(error))
    if found is None:
        return None
    return tf.errors.UnavailableError(
        None,
        None,
        f"SyncReplicas has lost the parameter server {found[0]}, and training "
        "cannot go on without its variables. Start it, start this program again, "
        f"and restore a checkpoint. Received: {error}",
    )


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
