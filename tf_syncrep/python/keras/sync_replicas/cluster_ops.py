"""The ops of SyncReplicas on a cluster: those of its gate and its accumulators.

The gate sits with most of what is trained, or where the optimizer's `iterations` is,
and each accumulator where its variable is. All of them live as long as their handles
here, as the variables do, and nobody else finds them: functions that a dead coordinator
has left behind on a parameter server must not touch them.
"""

import dataclasses
import threading
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tf_syncrep.python.keras.sync_replicas.targets import Targets
from tf_syncrep.python.ops import sync_gate_ops
from tf_syncrep.python.sync import (
    gate_placement,
    gradient_checks,
    gradient_transfers,
    messages,
)
from tf_syncrep.python.sync.gradient_accumulators import NO_ROUND
from tf_syncrep.python.sync.gradients import flatten

# A coordinator is busy tracing functions for longer than a worker should be silent.
_SHORTEST_UPDATER_LEASE_SECS = 60.0
# On the worker, in a function that it runs.
_HERE = "/device:CPU:0"


@dataclasses.dataclass
class Permit:
    """What a worker holds from `acquire` on: tensors, and whether they were used."""

    gate: tf.Tensor
    worker: tuple[tf.Tensor, tf.Tensor]
    generation: tf.Tensor
    round: tf.Tensor
    incarnation: tf.Tensor  # On the worker; all others are on the gate's task.
    used: bool = False

    @property
    def contribution(self) -> tuple[tf.Tensor, ...]:
        """The arguments of the gate's ops that are about this contribution."""
        return (self.gate, self.generation, self.round, *self.worker)


class ClusterOps:
    """Builds the ops of workers, updater and coordinator."""

    def __init__(
        self,
        quorum: int,
        total: int,
        lease_secs: float,
        start_secs: float,
        reject_nonfinite: bool,
        spares: bool,
        device: str,
    ):
        """Makes nothing yet.

        Args:
            quorum: gradients that make up an update.
            total: workers that take part.
            lease_secs: how long a worker may be silent.
            start_secs: the same before its first gradient, at most.
            reject_nonfinite: whether a worker drops its gradient, and computes another,
                if there is a NaN or an infinity in it.
            spares: whether idle workers take over from one that is overdue.
            device: where the gate is to be, unless `place_gate` finds a better place.
        """
        self._quorum = quorum
        self._total = total
        self._lease_secs = lease_secs
        self._start_secs = start_secs
        self._reject_nonfinite = reject_nonfinite
        self._spares = spares
        self._fallback_device = self._device = device
        self.targets = Targets()
        # Guards the gate, and its place, while functions are traced by several threads.
        self._lock = threading.Lock()
        self._gate: Any = None  # a tensor, once it is made

    @property
    def heartbeat_secs(self) -> float:
        """How often the updater has to call the gate, at least."""
        return min(self._lease_secs, self._start_secs) / 4

    @property
    def device(self) -> str:
        """Where the gate is."""
        return self._device

    def place_gate(self, variables: Sequence[Any]) -> None:
        """Chooses where the gate is to be, if it was not made yet.

        Args:
            variables: TensorFlow's variables, those that are to be trained.
        """
        with self._lock:
            if self._gate is None:
                self._device = gate_placement.gate_device(
                    variables, self._fallback_device
                )

    def gate(self) -> tf.Tensor:
        """Makes the gate once; its handle."""
        with self._lock:
            if self._gate is None:
                # Not in a function that is being traced. Functions would order ops
                # that make handles, one task after the other, at each call.
                with tf.init_scope(), tf.device(self._device):
                    self._gate = sync_gate_ops.sync_gate(
                        self._quorum,
                        self._total,
                        lease_secs=self._lease_secs,
                        start_secs=self._start_secs,
                        updater_lease_secs=max(
                            self._lease_secs, _SHORTEST_UPDATER_LEASE_SECS
                        ),
                        strict=False,
                        spares=self._spares,
                        counted=True,
                    )
            return self._gate

    # --- Worker ---

    def acquire(self) -> Permit:
        """Waits until the round needs a gradient from this worker."""
        gate = self.gate()
        with tf.device(_HERE):
            here = sync_gate_ops.task_id()
        message = messages.pack(here)
        with tf.device(self._device):
            name, incarnation = messages.unpack(message, here)
            worker = (name, incarnation)
            generation, round_number, _ = sync_gate_ops.sync_gate_acquire(gate, *worker)
        return Permit(gate, worker, generation, round_number, here[1])

    def contribute(
        self,
        permit: Permit,
        gradients: Sequence[Any],
        variables: Sequence[Any],
        natives: Sequence[Any],
    ) -> None:
        """Hands in a gradient: admit, push to all accumulators, commit.

        Args:
            permit: as acquired.
            gradients: one for each variable.
            variables: as the optimizer got them.
            natives: the same as TensorFlow's variables.

        Raises:
            ValueError: other variables have gradients, or of another kind, than in the
                function that was traced first.
        """
        self.targets.check(gradients, variables, natives)
        checked = [
            gradient_checks.checked(gradient, native)
            for gradient, native in zip(gradients, natives, strict=True)
        ]
        sent = gradient_transfers.join_small(
            checked, [native.device for native in natives]
        )
        # All gradients must be there before the gate is asked: a worker that is
        # admitted keeps the others waiting. Those for the gate's own task are awaited
        # over there.
        at_gate = [native.device == self._device for native in natives]
        elsewhere = [x for x, is_at in zip(checked, at_gate, strict=True) if not is_at]
        with tf.device(self._device):
            fit = tf.constant(True)
        if self._reject_nonfinite or elsewhere:
            fit = self._tell_when_computed(permit, elsewhere, checked)
        sent, fit = self._when_all_are_there(sent, at_gate, fit)
        with tf.device(self._device):
            admitted = sync_gate_ops.sync_gate_admit(*permit.contribution, fit)
            # Without a cond around the pushes, gradients are on their way meanwhile.
            pushed_round = tf.where(admitted, permit.round, NO_ROUND)
        pushes = [
            accumulator.push(gradient, pushed_round)
            for accumulator, gradient in zip(
                self.targets.accumulators, sent, strict=True
            )
        ]
        # Groups by task first, so that each task reports once.
        with tf.device(self._device):
            pushed = tf.group(pushes)
        with tf.control_dependencies([pushed]), tf.device(self._device):
            sync_gate_ops.sync_gate_commit(
                permit.gate, permit.generation, pushed_round, *permit.worker
            )
        permit.used = True

    def _when_all_are_there(
        self, sent: Sequence[Any], at_gate: Sequence[bool], fit: tf.Tensor
    ) -> tuple[list[Any], tf.Tensor]:
        """The gradients, and what the gate is told once those for its task came."""
        awaited = [x for x, is_at in zip(sent, at_gate, strict=True) if is_at]
        with tf.device(self._device):
            # In one op with what the gate is told. A control dependency on what comes
            # from another task would be a message beside the gradient's own.
            *arrived, fit = tf.identity_n([*flatten(awaited), fit])
        arrived = tf.nest.pack_sequence_as(awaited, arrived, expand_composites=True)
        of_gate = iter(arrived)
        return [
            next(of_gate) if is_at else x
            for x, is_at in zip(sent, at_gate, strict=True)
        ], fit

    def _tell_when_computed(self, permit, awaited, gradients) -> tf.Tensor:
        """Tells the gate's task that gradients are there, and whether all are fit."""
        with tf.control_dependencies(flatten(awaited)), tf.device(_HERE):
            fit = tf.constant(1, tf.int64)
            if self._reject_nonfinite:
                fit = tf.cast(gradient_checks.all_finite(gradients), tf.int64)
            # With something that is not a constant: a constant would be made over
            # there, and wait for each gradient by a message of its own.
            message = messages.join([permit.incarnation, fit])
        with tf.device(self._device):
            return tf.equal(message[1], 1)

    def give_back(self, permit: Permit) -> None:
        """Frees the place of a permit that did not lead to a contribution."""
        with tf.device(self._device):
            sync_gate_ops.sync_gate_abort(*permit.contribution)

    # --- Updater ---

    def open(self, step: tf.Tensor) -> tf.Tensor:
        """Starts a generation; its number."""
        with tf.device(self._device):
            return sync_gate_ops.sync_gate_open(self.gate(), step)

    def wait_quorum(self, generation: tf.Tensor, timeout_secs: float) -> tf.Tensor:
        """Waits for a full round; the round and its number of gradients."""
        with tf.device(self._device):
            return messages.join(
                sync_gate_ops.sync_gate_wait_quorum(
                    self.gate(), generation, timeout_secs=timeout_secs
                )
            )

    def take(self, quorum: tf.Tensor):
        """Takes the mean gradients of a round; they and their variables.

        Args:
            quorum: the round and its number of gradients.
        """
        gradients = [
            accumulator.take(quorum) for accumulator in self.targets.accumulators
        ]
        return gradients, self.targets.variables

    def advance(self, generation, quorum, step) -> tf.Tensor:
        """Ends a round that was applied; whether it did."""
        with tf.device(self._device):
            return sync_gate_ops.sync_gate_advance(
                self.gate(), generation, quorum[0], step
            )

    def flush(self, generation: tf.Tensor) -> tf.Tensor:
        """Ends a round that will not fill; the round and its number of gradients."""
        with tf.device(self._device):
            return messages.join(sync_gate_ops.sync_gate_flush(self.gate(), generation))

    # --- Coordinator ---

    def drain(self, generation: tf.Tensor) -> None:
        """Waits until no gradient is on its way and no full round unapplied."""
        with tf.device(self._device):
            sync_gate_ops.sync_gate_drain(self.gate(), generation)

    def cancel_updater(self, generation: tf.Tensor) -> None:
        """Ends the updater's wait."""
        with tf.device(self._device):
            sync_gate_ops.sync_gate_cancel_updater(self.gate(), generation)

    def configure(self, quorum: int, total: int) -> None:
        """Changes the quorum and the number of workers from the next round on."""
        with tf.device(self._device):
            sync_gate_ops.sync_gate_configure(self.gate(), quorum, total)

    def fail(self, generation: Any, code: int, message: tf.Tensor) -> None:
        """Ends all waits with an error."""
        with tf.device(self._device):
            sync_gate_ops.sync_gate_fail(self.gate(), code, message, generation)

    def stats(self):
        """Reads the gate's counters, as `sync_gate_stats` returns them."""
        with tf.device(self._device):
            return sync_gate_ops.sync_gate_stats(self.gate())
