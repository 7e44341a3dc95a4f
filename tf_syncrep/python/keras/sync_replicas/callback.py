"""The callback of SyncReplicas for `fit` under ParameterServerStrategy."""

from typing import Any

import tensorflow as tf

from tf_syncrep.python.keras.sync_replicas.report import Report


class SyncReplicasCallback(tf.keras.callbacks.Callback):
    """Trains synchronously while `fit` runs.

    Made by `SyncReplicas.make_callback`.
    """

    def __init__(self, optimizer, *, log_dir, every_n_updates, verbose):
        """Keeps its arguments.

        Args:
            optimizer: the `SyncReplicas`.
            log_dir: where TensorBoard scalars go, or None.
            every_n_updates: how often.
            verbose: whether a line is printed after each epoch.
        """
        super().__init__()
        self._optimizer = optimizer
        self._report = Report(optimizer.stats, log_dir, every_n_updates)
        self._verbose = verbose
        self._updater: Any = None
        self._cause: BaseException | None = None

    def set_model(self, model):
        """Makes the model's train step wait for its permit, and turns XLA off.

        Args:
            model: the model, whose train function is made after this.

        Raises:
            ValueError: the model has another optimizer.
        """
        super().set_model(model)
        self._cause = None  # of an earlier `fit`
        optimizer = getattr(model, "optimizer", None)
        if self._optimizer not in (
            optimizer,
            getattr(optimizer, "inner_optimizer", None),
        ):
            raise ValueError(
                "The callback must be made by the optimizer that the model was "
                f"compiled with. Received: a callback of {self._optimizer.name!r}, "
                f"and a model with {getattr(optimizer, 'name', None)!r}."
            )
        if self._optimizer.is_distributed and optimizer is not self._optimizer:
            raise ValueError(
                "SyncReplicas under ParameterServerStrategy has no place in a "
                f"{type(optimizer).__name__}: train with mixed_bfloat16, without "
                "loss scaling, or, in Keras 3, with `loss_scale_factor` of the inner "
                "optimizer and `auto_scale_loss=False` in `compile`."
            )
        if getattr(model, "jit_compile", False):
            tf.get_logger().warning(
                "SyncReplicas: jit_compile is turned off; XLA cannot compile its ops."
            )
            model.jit_compile = False
        if self._optimizer.is_distributed:
            self._wrap_methods(model)

    def on_epoch_begin(self, epoch, logs=None):
        """Opens the gate, if this is the first epoch.

        Not earlier: by now other callbacks have restored what there is to restore.

        Args:
            epoch: unused.
            logs: unused.
        """
        del epoch, logs
        if self._optimizer.is_distributed and self._updater is None:
            if self.model.built:
                self._optimizer.place_gate(self.model.trainable_variables)
            self._report.start()
            self._updater = self._optimizer.start_updater(self._report.on_update)

    def on_test_begin(self, logs=None):
        """Completes the updates that are under way.

        Args:
            logs: unused.
        """
        del logs
        self.drain()

    def on_epoch_end(self, epoch: int, logs: Any = None):
        """Completes the updates that are under way, and reports.

        Args:
            epoch: number of the epoch.
            logs: to which the gate's counters are added.
        """
        if self._updater is None:
            return
        if self.model.stop_training or epoch + 1 >= self.params.get("epochs", 0):
            self._finish()
        else:
            self.drain()
        line = self._report.on_epoch_end(logs)
        if self._verbose:
            print(line, flush=True)

    def on_train_end(self, logs=None):
        """Applies or drops a last incomplete round, and ends the training.

        Args:
            logs: unused.
        """
        del logs
        self._finish()
        self.close()

    def drain(self):
        """Waits until no gradient is on its way and no full round unapplied.

        Raises:
            tf.errors.OpError: an update failed.
        """
        if self._updater is not None:
            self._updater.drain()

    def cause(self):
        """What was behind an error that ended the training, if that is known.

        Returns:
            An exception to raise instead, or None.
        """
        return self._cause

    def close(self):
        """Ends the training, if it has not ended, without any further update."""
        if self._updater is not None:
            self._updater.close()
            self._cause = self._updater.cause
            self._updater = None
            self._report.close()
        if self.model is not None:
            _unwrap_methods(self.model)

    def _finish(self):
        """Applies or drops a last incomplete round, if that was not done yet."""
        if self._updater is None:
            return
        left = self._optimizer.finish_updater()
        if left and self._verbose:
            what = "applied" if self._optimizer.flush_last else "dropped"
            print(
                f"SyncReplicas: {what} a last incomplete round of {left} gradients",
                flush=True,
            )

    def _wrap_methods(self, model) -> None:
        """Puts what synchrony needs around two methods of the model."""
        _unwrap_methods(model)  # those of a `fit` that an error has ended
        train_step, get_metrics_result = model.train_step, model.get_metrics_result

        def synchronous_train_step(*args, **kwargs):
            with self._optimizer.step():
                return train_step(*args, **kwargs)

        def complete_metrics_result():
            # Keras calls it when the steps of an epoch have ended, before it
            # evaluates and before callbacks save anything; and in train steps.
            if not tf.inside_function():
                self.drain()
            return get_metrics_result()

        for name, method, original in (
            ("train_step", synchronous_train_step, train_step),
            ("get_metrics_result", complete_metrics_result, get_metrics_result),
        ):
            method.original = original
            setattr(model, name, method)


def _unwrap_methods(model) -> None:
    for name in ("train_step", "get_metrics_result"):
        original = getattr(getattr(model, name), "original", None)
        if original is not None:
            setattr(model, name, original)
