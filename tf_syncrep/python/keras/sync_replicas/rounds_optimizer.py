"""The base class of optimizers that collect gradients before they apply them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, ClassVar

import tensorflow as tf
from absl import logging

from tf_syncrep.python.keras import compat
from tf_syncrep.python.keras.compat.trainer import is_optimizer_built
from tf_syncrep.python.keras.optimizers.outer_optimizer import OuterOptimizer, update
from tf_syncrep.python.keras.optimizers.saved_optimizers import optimizer_from
from tf_syncrep.python.keras.parts import optimizers_of
from tf_syncrep.python.keras.sync_replicas.rounds import Rounds
from tf_syncrep.python.keras.tables.trainers import note_trainer
from tf_syncrep.python.sync.gradients import as_tensors

# What to do in place of setting an attribute of an optimizer.
ANOTHER = "make another optimizer"


class _OfInner:
    """An attribute that is read from, and set in, the inner optimizer.

    It is an ordinary attribute until the base class's constructor has run, and there is
    an inner optimizer.
    """

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, optimizer: Any, owner: type | None = None) -> Any:
        if optimizer is None:
            return self
        attributes = vars(optimizer)
        if "inner_optimizer" in attributes:
            return getattr(attributes["inner_optimizer"], self._name)
        try:
            return attributes[self._name]
        except KeyError:
            raise AttributeError(self._name) from None

    def __set__(self, optimizer: Any, value: Any) -> None:
        attributes = vars(optimizer)
        if "inner_optimizer" in attributes:
            setattr(attributes["inner_optimizer"], self._name, value)
        else:
            attributes[self._name] = value


class RoundsOptimizer(OuterOptimizer):
    """Passes gradients to its rounds, which make updates by the inner optimizer.

    All else is the inner optimizer's. Subclasses set `_rounds` and `flush_last`, and
    their rounds call `_update` to make an update with all that belongs to it: clipping,
    weight decay, averages, `iterations`.
    """

    weight_decay = _OfInner()
    clipnorm = _OfInner()
    clipvalue = _OfInner()
    global_clipnorm = _OfInner()
    use_ema = _OfInner()
    ema_momentum = _OfInner()
    ema_overwrite_frequency = _OfInner()
    loss_scale_factor = _OfInner()  # Keras 3 alone has it.

    flush_last: bool
    _rounds: Rounds
    #: Attributes that cannot be set once they are there, each with what to do instead:
    #: rounds take them when they are made.
    _fixed: ClassVar[Mapping[str, str]] = {}

    def __init__(self, inner_optimizer: Any, name: str):
        inner_optimizer = _check_inner(inner_optimizer)
        super().__init__(inner_optimizer, name)
        self.inner_optimizer = inner_optimizer
        self._strategy = tf.distribute.get_strategy()

    def __setattr__(self, name: str, value: Any) -> None:
        if name in self._fixed and name in vars(self):
            raise AttributeError(
                f"`{name}` of {type(self).__name__} cannot be set after the "
                f"constructor: {self._fixed[name]}. Received: {name}={value!r}"
            )
        super().__setattr__(name, value)

    def _optimizers(self) -> list[Any]:
        return [self.inner_optimizer]

    def _build_inner(self, variables: Sequence[Any]) -> None:
        if not is_optimizer_built(self.inner_optimizer):
            self.inner_optimizer.build(variables)

    def _update(self, gradients: Sequence[Any], variables: Sequence[Any]) -> None:
        """Makes an update of the inner optimizer, in replica context."""
        update(self.inner_optimizer, gradients, variables)

    def scale_loss(self, loss: Any) -> Any:
        """Scales a loss as the inner optimizer does; Keras 3 calls it."""
        return self.inner_optimizer.scale_loss(loss)

    def load_own_variables(self, store: Any) -> None:
        """Loads nothing, except from files that hold the inner optimizer's state."""
        if len(store.keys()):
            self.inner_optimizer.load_own_variables(store)

    def set_weights(self, weights: Sequence[Any]) -> None:
        """Sets the inner optimizer's variables.

        Args:
            weights: arrays, in the order of `variables`.
        """
        self.inner_optimizer.set_weights(weights)

    def build(self, variables: Sequence[Any]) -> None:
        """Makes the inner optimizer's variables, once.

        Args:
            variables: the variables that will be trained.
        """
        note_trainer(self, variables)
        super().build(variables)
        place(self, variables)

    def _receive(self, gradients: Sequence[Any], variables: Sequence[Any]) -> None:
        """Hands in the gradients of a batch; called by Keras.

        Raises RuntimeError: XLA compiles the step. Errors of the rounds are raised as
        well.
        """
        if compat.compiled_by_xla():
            raise RuntimeError(
                f"{type(self).__name__} cannot be compiled by XLA: pass "
                "`jit_compile=False` to `compile`."
            )
        self._rounds.receive(
            [as_tensors(gradient) for gradient in gradients],
            variables,
        )

    @contextlib.contextmanager
    def updater(self, strategy: Any = None) -> Iterator[Rounds]:
        """Encloses a custom loop, on the coordinator of a cluster or in one process.

        When the loop ends without an error, it completes the present updates and
        applies, or drops, an incomplete last round. On a cluster it runs the updates,
        and the loop must have joined its closures by then.

        Args:
            strategy: the strategy in whose scope the optimizer was made, which is the
                default.

        Yields:
            An object with `drain()`, which waits until no update is in progress.

        Raises:
            ValueError: it is another strategy, or one under which it cannot train.
            RuntimeError: updates are running already.
            tf.errors.OpError: an update failed.
        """
        if strategy is not None and strategy is not self._strategy:
            raise ValueError(
                "`strategy` must be the one in whose scope the optimizer was made. "
                f"Received: strategy={strategy}"
            )
        if self._rounds.is_training:
            raise RuntimeError(
                f"{type(self).__name__} is training already: one `fit`, or one "
                "`updater()`, at a time."
            )
        with ending(self._rounds):
            self._rounds.start()
            yield self._rounds
            self._rounds.finish(flush=self.flush_last)

    def may_begin_maintenance(self) -> bool:
        """Returns whether rows of tables may be removed now."""
        return self._rounds.may_begin_maintenance()

    def begin_maintenance(self) -> None:
        """Notes that rows of tables are removed now."""
        self._rounds.begin_maintenance()

    def drop_gradients(self, change: Callable[[], None], reason: str) -> None:
        """Changes variables, and drops gradients of what was there, and says so."""

        def change_and_drop() -> None:
            change()
            if dropped := self._rounds.drop():
                logging.warning(
                    "%s: dropped %d gradients of an incomplete round, since %s.",
                    type(self).__name__,
                    dropped,
                    reason,
                )

        self._rounds.between_updates(change_and_drop)

    def finalize_variable_values(self, var_list: Sequence[Any]) -> None:
        """Ends a training; called by `fit`.

        An incomplete last round is applied first, or dropped: a callback that has
        stopped training may have set weights to which its gradients do not belong.

        Args:
            var_list: the model's variables.
        """
        is_stopped = getattr(self._rounds.model, "stop_training", False)
        self._rounds.finish(flush=self.flush_last and not is_stopped)
        compat.finalize_variable_values(self.inner_optimizer, var_list)

    @classmethod
    def from_config(cls, config: dict[str, Any], custom_objects: Any = None) -> Any:
        """Makes an optimizer from what `get_config` returned.

        Args:
            config: the arguments by name, with the inner optimizer serialised.
            custom_objects: classes by name, for the inner optimizer.

        Returns:
            The optimizer, without state.
        """
        inner_optimizer = optimizer_from(config["inner_optimizer"], custom_objects)
        return cls(**{**config, "inner_optimizer": inner_optimizer})


def rounds_of(optimizer: Any) -> Rounds:
    """Returns the rounds of an optimizer; if it has none, rounds that do nothing."""
    return optimizer._rounds if isinstance(optimizer, RoundsOptimizer) else Rounds()


def place(optimizer: Any, variables: Sequence[Any]) -> None:
    """Tells the rounds of an optimizer what will be trained, before the first step.

    `variables`: the variables, as Keras has them; a variable in parts counts as its
    parts.
    """
    natives = [compat.native(variable) for variable in variables]
    rounds_of(optimizer).place(
        [part for native in natives for part in getattr(native, "variables", [native])]
    )


@contextlib.contextmanager
def alone(model: Any) -> Iterator[None]:
    """Encloses a `fit` by Keras' own loop, which neither begins nor ends rounds."""
    with contextlib.ExitStack() as stack:
        for optimizer in list(optimizers_of(model)):
            rounds = rounds_of(optimizer)
            stack.enter_context(ending(rounds))
            rounds.close()  # What came before is no part of this training.
            rounds.model = model
            stack.callback(setattr, rounds, "model", None)
        yield


@contextlib.contextmanager
def ending(rounds: Rounds) -> Iterator[None]:
    """Ends a training after an error, and raises the error that is behind it."""
    try:
        yield
    except Exception as error:
        rounds.close()
        cause = rounds.cause
        if cause is not None and cause is not error:
            raise cause from error
        raise
    finally:
        rounds.close()


def _check_inner(inner_optimizer: Any) -> Any:
    if isinstance(inner_optimizer, str):
        inner_optimizer = tf.keras.optimizers.get(inner_optimizer)
    if not isinstance(inner_optimizer, tf.keras.optimizers.Optimizer):
        raise ValueError(
            "`inner_optimizer` must be a tf.keras.optimizers.Optimizer, or the name of "
            f"one. Received: inner_optimizer={inner_optimizer!r}"
        )
    if hasattr(inner_optimizer, "inner_optimizer"):
        raise ValueError(
            "`inner_optimizer` must not be around an optimizer itself: a "
            "LossScaleOptimizer goes around SyncReplicas. Received: inner_optimizer="
            f"{type(inner_optimizer).__name__}"
        )
    if getattr(inner_optimizer, "gradient_accumulation_steps", None):
        raise ValueError(
            "`inner_optimizer` must not accumulate gradients itself. Received: "
            "gradient_accumulation_steps="
            f"{inner_optimizer.gradient_accumulation_steps}"
        )
    return inner_optimizer
