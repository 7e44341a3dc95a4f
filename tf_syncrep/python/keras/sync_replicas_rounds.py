"""SyncReplicas on a cluster: its gate and accumulators, as the ops of each task.

The gate sits where the optimizer's `iterations` is, each accumulator where its variable
is. All of them have names that no other process uses: functions that a dead
coordinator has left behind on a parameter server must not touch them.
"""

import dataclasses
import threading
import uuid
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tf_syncrep.python.ops import sync_gate_ops
from tf_syncrep.python.sync import gradient_checks
from tf_syncrep.python.sync.gradient_accumulators import (
    NO_ROUND,
    GradientKind,
    kind_of,
    make_accumulator,
)

# A coordinator is busy tracing functions for longer than a worker should be silent.
_SHORTEST_UPDATER_LEASE_SECS = 60.0


@dataclasses.dataclass
class Permit:
    """What a worker holds from `acquire` on: tensors, and whether they were used."""

    gate: tf.Tensor
    worker: tuple[tf.Tensor, tf.Tensor]
    generation: tf.Tensor
    round: tf.Tensor
    used: bool = False

    @property
    def contribution(self) -> tuple[tf.Tensor, ...]:
        """The arguments of the gate's ops that are about this contribution."""
        return (self.gate, self.generation, self.round, *self.worker)


class ClusterRounds:
    """Builds the ops of workers, updater and coordinator."""

    def __init__(
        self,
        quorum: int,
        total: int,
        lease_secs: float,
        start_secs: float,
        reject_nonfinite: bool,
        device: str,
    ):
        """Chooses the names; makes nothing yet.

        Args:
            quorum: gradients that make up an update.
            total: workers that take part.
            lease_secs: how long a worker may be silent.
            start_secs: the same before its first gradient, at most.
            reject_nonfinite: whether a worker drops its gradient, and computes another,
                if there is a NaN or an infinity in it.
            device: where the gate is to be.
        """
        self._quorum = quorum
        self._total = total
        self._lease_secs = lease_secs
        self._start_secs = start_secs
        self._reject_nonfinite = reject_nonfinite
        self._name = f"sync_replicas/{uuid.uuid4().hex}"
        self._device = device
        self._lock = threading.Lock()  # Guards _targets while functions are traced.
        self._targets: list[_Target] | None = None
        # Set once a train step was traced: the updater knows what to update.
        self.has_targets = threading.Event()

    @property
    def heartbeat_secs(self) -> float:
        """How often the updater has to call the gate, at least."""
        return min(self._lease_secs, self._start_secs) / 4

    def gate(self) -> tf.Tensor:
        """Makes or finds the gate; its handle."""
        with tf.device(self._device):
            return sync_gate_ops.sync_gate(
                self._quorum,
                self._total,
                shared_name=f"{self._name}/gate",
                lease_secs=self._lease_secs,
                start_secs=self._start_secs,
                updater_lease_secs=max(self._lease_secs, _SHORTEST_UPDATER_LEASE_SECS),
                strict=False,
            )

    # --- Worker ---

    def acquire(self) -> Permit:
        """Waits until the round needs a gradient from this worker."""
        with tf.device("/device:CPU:0"):
            worker = tuple(sync_gate_ops.task_id())
        gate = self.gate()
        with tf.device(self._device):
            generation, round_number, _ = sync_gate_ops.sync_gate_acquire(gate, *worker)
        return Permit(gate, worker, generation, round_number)

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
        self._check_targets(
            [
                _Target(variable, native, id(native), native.name, kind_of(gradient))
                for gradient, variable, native in zip(
                    gradients, variables, natives, strict=True
                )
            ]
        )
        checks = [
            gradient_checks.check_against(gradient, native)
            for gradient, native in zip(gradients, natives, strict=True)
        ]
        fit = tf.constant(True)
        if self._reject_nonfinite:
            fit = gradient_checks.all_finite(gradients)
        # All gradients are there before the gate is asked: who is admitted keeps the
        # others waiting.
        ready = [
            *(check for check in checks if check is not None),
            *tf.nest.flatten(gradients, expand_composites=True),
        ]
        with tf.control_dependencies(ready), tf.device(self._device):
            admitted = sync_gate_ops.sync_gate_admit(*permit.contribution, fit)
            # Without a cond around the pushes, gradients are on their way meanwhile.
            pushed_round = tf.where(admitted, permit.round, NO_ROUND)
        pushes = [
            accumulator.push(gradient, pushed_round)
            for accumulator, gradient in zip(
                self._accumulators(), gradients, strict=True
            )
        ]
        with tf.control_dependencies(pushes), tf.device(self._device):
            sync_gate_ops.sync_gate_commit(
                permit.gate, permit.generation, pushed_round, *permit.worker
            )
        permit.used = True

    def give_back(self, permit: Permit) -> None:
        """Frees the place of a permit that did not lead to a contribution."""
        with tf.device(self._device):
            sync_gate_ops.sync_gate_abort(*permit.contribution)

    # --- Updater ---

    def open(self, step: tf.Tensor) -> tf.Tensor:
        """Starts a generation; its number."""
        with tf.device(self._device):
            return sync_gate_ops.sync_gate_open(self.gate(), step)

    def wait_quorum(self, generation: tf.Tensor, timeout_secs: float):
        """Waits for a full round; the round and its number of gradients."""
        with tf.device(self._device):
            return sync_gate_ops.sync_gate_wait_quorum(
                self.gate(), generation, timeout_secs=timeout_secs
            )

    def take(self, round_number: tf.Tensor, num_gradients: tf.Tensor):
        """Takes the mean gradients of a round; they and their variables."""
        gradients = [
            accumulator.take(round_number, num_gradients)
            for accumulator in self._accumulators()
        ]
        assert self._targets is not None
        return gradients, [target.variable for target in self._targets]

    def advance(self, generation, round_number, step) -> tf.Tensor:
        """Ends a round that was applied; whether it did."""
        with tf.device(self._device):
            return sync_gate_ops.sync_gate_advance(
                self.gate(), generation, round_number, step
            )

    def flush(self, generation: tf.Tensor):
        """Ends a round that will not fill; the round and its number of gradients."""
        with tf.device(self._device):
            return sync_gate_ops.sync_gate_flush(self.gate(), generation)

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

    def _check_targets(self, targets: list["_Target"]) -> None:
        with self._lock:
            if self._targets is None:
                self._targets = targets
                self.has_targets.set()
        if targets != self._targets:
            raise ValueError(
                "All train steps must have gradients of the same kinds for the same "
                f"variables. Received: {targets}, after {self._targets}."
            )

    def _accumulators(self):
        """Makes or finds the accumulators of all variables."""
        assert self._targets is not None
        return [
            make_accumulator(
                target.kind,
                target.native,
                shared_name=f"{self._name}/{index}",
                sparse_reduction_type="CMEAN",
            )
            for index, target in enumerate(self._targets)
        ]


@dataclasses.dataclass(frozen=True)
class _Target:
    """A variable, and what its gradients are like."""

    variable: Any = dataclasses.field(compare=False, repr=False)
    native: Any = dataclasses.field(compare=False, repr=False)
    key: int = dataclasses.field(repr=False)
    name: str
    kind: GradientKind
