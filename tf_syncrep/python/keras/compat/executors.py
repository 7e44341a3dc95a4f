"""Closures of a ClusterCoordinator that do not wait for a worker that hangs.

A coordinator's thread for a worker calls each closure in an `executor_scope`, at whose
end Python collects the `Executor` that was there before: that of the context, which all
of the threads share. It waits before it goes for whatever is pending there, of which
nothing concerns the closure. Pending are, among other things, the releases of tensors
on workers, each until its worker has answered. So while one worker hangs all threads
stand still, between two closures, until it goes on.
"""

import contextlib
from collections.abc import Iterator
from typing import Any

# Private: nothing public gives a thread an executor, or lets go of one.
from tensorflow.python import pywrap_tfe  # pyright: ignore
from tensorflow.python.eager import context  # pyright: ignore


def isolate_workers() -> None:
    """Keeps a worker that hangs from stopping the others of a ClusterCoordinator.

    TensorFlow's coordinator has a thread for each worker. While one worker hangs, where
    its host is suspended or its network lost, say, all of these threads wait for it, as
    a rule, and no step is made on any worker. After this call, once in a program, the
    others go on. `tfs.keras.fit` and `SyncReplicas` do that by themselves; a custom
    loop without SyncReplicas calls it before it schedules its first step. A step that
    hangs has no result until its worker goes on, and `join()` waits for it.

    It replaces, for good, a private function of TensorFlow; until then TensorFlow is as
    it was.

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
    """As the one of TensorFlow, but for the wait."""
    eager_context = context.context()
    eager_context.ensure_initialized()
    # As a handle, as it is the `Executor` around it that waits when it is deleted.
    before = pywrap_tfe.TFE_ContextGetExecutorForThread(eager_context._handle)
    try:
        eager_context.executor = executor
        yield
    finally:
        pywrap_tfe.TFE_ContextSetExecutorForThread(eager_context._handle, before)
        pywrap_tfe.TFE_DeleteExecutor(before)
