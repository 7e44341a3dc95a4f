"""What hooks write beside the steps of a session: when and how it begins."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tf_syncrep.python.checkpoint.contents import Contents
from tf_syncrep.python.checkpoint.directory import Manifest
from tf_syncrep.python.checkpoint.engine import Moment, Saving
from tf_syncrep.python.checkpoint.run import Run
from tf_syncrep.python.v1.sync_replicas.optimizer import optimizers_of_graph


class SessionSavings:
    """Writes one after another, on the chief, as long as the default graph is trained.

    `saving`: the last one that was begun; None before the first one.
    """

    def __init__(
        self,
        run: Run,
        contents: Contents,
        begin: Callable[[Moment], Saving],
        wait: Callable[[], None],
    ):
        """Begins nothing yet.

        `begin`: begins one at a moment. `wait`: waits until nothing is being written.
        """
        self.saving: Saving | None = None
        self._run, self._begin, self._wait = run, begin, wait
        devices = (tf.DeviceSpec.from_string(x.device) for x in contents.shares)
        self._is_local = all(device.job is None for device in devices)
        optimizers = optimizers_of_graph()
        self._optimizer = optimizers[0] if len(optimizers) == 1 else None
        self._beginning: threading.Thread | None = None

    def join(self) -> None:
        """Waits until what is to begin has begun, in its session."""
        if self._beginning is not None:
            self._beginning.join()

    def wait_if_local(self) -> None:
        """Waits for a writer that is in this process, and would end with the session.

        It is called after a step.
        """
        if self._is_local:
            self._wait()

    def begin_if_due(self, step: int) -> None:
        """Begins the next one if it is time."""
        if not self._run.is_due(step) or self._is_saving():
            return
        self._run.begin_interval(step)
        # It does not happen here: it has to wait for the next update, which may wait
        # for the chief's own next gradient.
        self._beginning = threading.Thread(
            target=self._save, args=(self._moment,), daemon=True
        )
        self._beginning.start()
        if self._is_local and self._optimizer is None:
            self._beginning.join()

    def end_training(self, session: Any) -> None:
        """Lets no more gradients be applied, and waits for what is being written."""
        if self._optimizer is not None:
            self._optimizer.close(session)
        self.join()
        self._wait()

    def save_last(self) -> Manifest | None:
        """Writes the end of a training; returns None if that fails."""
        self._save(lambda function: function())
        self._wait()
        if self.saving is None:
            return None
        self._run.note_failure(self.saving)
        return self.saving.manifest

    def _is_saving(self) -> bool:
        if self._beginning is not None and self._beginning.is_alive():
            return True
        saving = self.saving
        return saving is not None and not saving.is_over

    def _moment(self, function: Callable[[], None]) -> None:
        if self._optimizer is None:
            function()
        else:
            self._optimizer.between_updates(function)

    def _save(self, moment: Moment) -> None:
        """Begins one; a failure is logged, and training goes on."""
        self._run.note_failure(self.saving)
        self.saving = self._run.try_to_save(lambda: self._begin(moment))
