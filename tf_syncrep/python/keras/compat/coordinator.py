"""ClusterCoordinator: its closures, their errors, and its workers."""

from __future__ import annotations

import contextlib
import logging
import re
import threading
import types
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import tensorflow as tf

# Private: nothing public gives a thread an executor, or releases one.
from tensorflow.python import pywrap_tfe  # pyright: ignore

# Private: the first tells the worker's number outside a tf.function, too. The public
# `experimental_get_current_worker_index` works only inside one. And only private names
# tell how far a worker is with a value without waiting for it.
from tensorflow.python.distribute.coordinator import (  # pyright: ignore
    coordinator_context,
    remote_value,
)

# Private: nothing public tells for which errors TensorFlow runs a closure again.
from tensorflow.python.distribute.coordinator.cluster_coordinator import (  # pyright: ignore
    _is_worker_failure,
)

# Private: nothing public calls a function without a cancellation manager.
from tensorflow.python.eager import cancellation, context  # pyright: ignore

_this_thread = threading.local()
_lock = threading.Lock()  # It guards the replacement, which is made once.
_stock_context: Callable[[], Any] | None = None


@contextlib.contextmanager
def apart_from_closures(manager: Any = None) -> Iterator[None]:
    """Lets this thread call functions under no cancellation manager, or its own.

    A ClusterCoordinator calls each closure under its cancellation manager, which
    TensorFlow keeps in a global variable meanwhile (`_active_context` of
    `tensorflow.python.eager.cancellation`, which belongs to the process up to 2.21, and
    to the thread from 2.22 on). So up to 2.21 a function that another thread calls
    while closures run is under the same manager. If that function fails, even if the
    error is caught, TensorFlow cancels everything under the manager: all closures, also
    later ones, and their CancelledError ends the training. Conversely, the error of a
    closure cancels the function in the middle of its work.

    The first call replaces, for good, the function that TensorFlow asks for the
    manager. The new one gives all other threads the same answer as before. Until then,
    and in processes that never come here, TensorFlow is unchanged.

    `manager`: what `cancellation_manager` has returned, or None for none.
    """
    global _stock_context
    with _lock:
        if _stock_context is None:
            _stock_context = cancellation.context
            cancellation.context = _manager
    before = vars(_this_thread).copy()
    _this_thread.manager = manager
    try:
        yield
    finally:
        vars(_this_thread).clear()
        vars(_this_thread).update(before)


def cancellation_manager() -> Any:
    """Returns a new manager; its `start_cancel` ends the calls that are under it."""
    return cancellation.CancellationManager()


def _manager():
    """Returns the cancellation manager of a function call; TensorFlow calls it."""
    if _stock_context is None or hasattr(_this_thread, "manager"):
        return getattr(_this_thread, "manager", None)
    return _stock_context()


_OF_CONNECTIONS = (
    tf.errors.AbortedError,
    tf.errors.CancelledError,
    tf.errors.DeadlineExceededError,
    tf.errors.UnavailableError,
)


def schedule(coordinator: Any, function: Callable[..., None], args: Any) -> None:
    """Schedules a Python function, which runs on the thread of a worker.

    Private: the public `schedule` takes a `tf.function` alone, whose error nobody can
    look at before TensorFlow does.

    `args`: its arguments, of which the function gets the worker's own parts.
    """
    # Nobody asks for the `RemoteValue`.
    coordinator._cluster.schedule(function, args=args, kwargs=None)


def worker_index() -> int:
    """Returns the number of the worker on whose thread this is called."""
    return coordinator_context.get_current_dispatch_context().worker_index


def may_be_lost(error: Exception) -> bool:
    """Returns whether an error may come from the loss of a task alone."""
    return isinstance(error, _OF_CONNECTIONS) or _is_worker_failure(error)


class Cancellation:
    """The cancellation of closures that a coordinator runs now.

    Private: TensorFlow calls `tf.function`s so that they end when another closure has
    failed, and not what a Python function calls.
    """

    def __init__(self, coordinator: Any):
        """Takes the coordinator's present one; after a failure it has another."""
        self._manager = coordinator._cluster.closure_queue._cancellation_mgr

    def of(self, function: Any) -> Callable[..., Any]:
        """Returns a concrete function that ends when closures are cancelled."""
        return self._manager.get_cancelable_function(function)

    def has_begun(self) -> bool:
        """Returns whether closures have been cancelled."""
        return self._manager.is_cancelled


# A coordinator logs the error of a closure where it catches it and again before it
# raises it, each time with the places in the program where the ops were built: hundreds
# of lines for a missing file. The exception has these places as well.
#
# Private: the texts of `cluster_coordinator.py`, and how errors name places. Other
# texts stay as they are.
_OF_COORDINATOR = re.compile(r"processing closure: |closures due to error |Remote func")
_PLACES = re.compile(
    r"\n*Detected at node .* defined at \(most recent call last\):"
    r"(?:\n(?:  File .*|<stack traces unavailable>)?(?=\n|$))*"
)


class _WithoutPlaces(logging.Filter):
    """Takes the places in the program out of a coordinator's messages."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Changes a record; lets all pass."""
        message = record.getMessage()
        if _OF_COORDINATOR.search(message):
            record.msg, record.args = _PLACES.sub("", message), None
        return True


_without_places = _WithoutPlaces()


def shorten_errors_of_closures() -> None:
    """Makes coordinators log errors of closures in few lines, from now on."""
    # A second time, this does nothing.
    logging.getLogger("tensorflow").addFilter(_without_places)


def dataset_of_workers(
    coordinator: Any,
    functions: Sequence[Any],
    dataset: tf.data.Dataset,
    call: Callable[[Any], Iterable[Any]],
) -> Any:
    """Makes a dataset on each worker, by a separate function for each worker."""

    def dataset_here() -> Iterable[Any]:
        return call(functions[worker_index()])

    function: Any = dataset_here
    function.structured_outputs = dataset
    datasets = coordinator.create_per_worker_dataset(functions[0])
    # Private: TensorFlow has only one function for all workers. It calls this one while
    # the worker is known; the outputs give the specs.
    datasets._dataset_fn = function
    return datasets


def is_made(iterator: Any) -> bool:
    """Returns whether each worker has its part of an iterator of `dataset_of_workers`.

    A worker counts that cannot make it, because it failed or is lost, but not one that
    does not answer.
    """
    not_ready = remote_value.RemoteValueStatus.NOT_READY
    return all(part._status is not not_ready for part in iterator._values)


def as_worker(worker: int) -> Any:
    """Within this context, `experimental_get_current_worker_index` is this number."""
    return coordinator_context.with_dispatch_context(
        types.SimpleNamespace(worker_index=worker)
    )


def isolate_workers() -> None:
    """Keeps a worker that hangs from stopping the others of a ClusterCoordinator.

    TensorFlow's coordinator has a thread for each worker. While one worker hangs, for
    example because its host is suspended or its network is lost, usually all of these
    threads wait for it, and no worker makes a step. After this call, which is needed
    once in a program, the others go on. `tfs.keras.fit` and `SyncReplicas` make the
    call themselves; a custom loop without SyncReplicas makes it before it schedules its
    first step. A step that hangs has no result until its worker goes on, and `join()`
    waits for it.

    It replaces, for good, a private function of TensorFlow; until then TensorFlow is
    unchanged.

    Example:
    ```python
    tfs.keras.isolate_workers()
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
    for _ in range(1000):
        coordinator.schedule(train_step, args=(per_worker_iterator,))
    coordinator.join()
    ```
    """
    context.executor_scope = _executor_scope


@contextlib.contextmanager
def _executor_scope(executor: Any) -> Iterator[None]:
    """Does the same as TensorFlow's function, without the wait.

    A coordinator's thread for a worker calls each closure in an `executor_scope`. At
    the end of it Python destroys the `Executor` that was there before: that of the
    context, which all of these threads share. Before it is destroyed it waits for
    everything that is pending there, of which nothing concerns the closure. Among other
    things, releases of tensors on workers are pending, each until its worker has
    answered. So while one worker hangs, all threads stop between two closures until
    that worker goes on.
    """
    eager_context = context.context()
    eager_context.ensure_initialized()
    # This is only the handle: the `Executor` around it would wait when it is destroyed.
    before = pywrap_tfe.TFE_ContextGetExecutorForThread(eager_context._handle)
    try:
        eager_context.executor = executor
        yield
    finally:
        pywrap_tfe.TFE_ContextSetExecutorForThread(eager_context._handle, before)
        pywrap_tfe.TFE_DeleteExecutor(before)
