"""Closures of a ClusterCoordinator that do not wait for a worker that hangs.

A coordinator's thread for a worker calls each closure in an `executor_scope`. At the
end of it Python destroys the `Executor` that was there before: that of the context,
which all of these threads share. Before it is destroyed it waits for everything that is
pending there, of which nothing concerns the closure. Among other things, releases of
tensors on workers are pending, each until its worker has answered. So while one worker
hangs, all threads stop between two closures until that worker goes on.
"""

import contextlib
from collections.abc import Iterator
from typing import Any

# Private: nothing public gives a thread an executor, or releases one.
from tensorflow.python import pywrap_tfe  # pyright: ignore
from tensorflow.python.eager import context  # pyright: ignore


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
    """Does the same as TensorFlow's function, without the wait."""
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
