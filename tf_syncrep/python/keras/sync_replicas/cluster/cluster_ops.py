"""The ops of SyncReplicas on a cluster: those of its gate and its accumulators.

The gate is placed on the task that has most of the trained variables, or beside the
optimizer's `iterations`, and each accumulator beside its variable. All of them live as
long as their handles here, as the variables do. Nobody else finds them: functions that
a dead coordinator has left on a parameter server must not touch them.
"""

import dataclasses
import threading
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from tf_syncrep.python.base import messages
from tf_syncrep.python.keras import compat
from tf_syncrep.python.keras.sync_replicas.targets import Targets
from tf_syncrep.python.ops import sync_gate_ops
from tf_syncrep.python.sync import gate_placement, gradient_checks
from tf_syncrep.python.sync.gradient_accumulators import push_and_commit
from tf_syncrep.python.sync.gradients import flatten

# A coordinator may trace functions for longer than a worker should be silent.
_SHORTEST_UPDATER_LEASE_SECS = 60.0
# The device of the worker, in a function that it runs.
_HERE = "/device:CPU:0"


@dataclasses.dataclass
class Permit:
    """The permit of a worker: tensors, and whether it was used."""

    gate: tf.Tensor
    worker: tuple[tf.Tensor, tf.Tensor]
    generation: tf.Tensor
    round: tf.Tensor
    # This one is on the worker; all others are on the gate's task.
    incarnation: tf.Tensor
    used: bool = False

    @property
    def contribution(self) -> tuple[tf.Tensor, ...]:
        """The arguments with which the gate's ops refer to this contribution."""
        return (self.gate, self.generation, self.round, *self.worker)


@dataclasses.dataclass(eq=False)
class ClusterOps:
    """Builds the ops of workers, updater and coordinator.

    `device`: the device of the gate. All else is as in `SyncReplicas`.
    """

    quorum: int
    total: int
    lease_secs: float
    start_secs: float
    reject_nonfinite: bool
    spares: bool
    device: str

    def __post_init__(self):
        self._fallback_device = self.device
        self.targets = Targets()
        # The names of the tensors that tell of the worker, by function. The tensors
        # themselves would keep the function's graph alive.
        self._workers: weakref.WeakKeyDictionary[Any, list[str]] = (
            weakref.WeakKeyDictionary()
        )
        # It guards the gate, and its device, while several threads trace functions.
        self._lock = threading.Lock()
        self._gate: Any = None  # It is a tensor once it is made.

    @property
    def heartbeat_secs(self) -> float:
        """How often the updater has to call the gate, at least."""
        return min(self.lease_secs, self.start_secs) / 4

    def place_gate(self, variables: Sequence[Any]) -> None:
        """Chooses the gate's device, unless the gate has been made."""
        with self._lock:
            if self._gate is None:
                self.device = gate_placement.gate_device(
                    variables, self._fallback_device
                )

    def gate(self) -> tf.Tensor:
        """Returns the handle of the gate, which is made once."""
        with self._lock:
            if self._gate is None:
                # It must not be made in a function that is being traced: at each call,
                # functions run ops that make handles one after the other, on all tasks.
                with tf.init_scope(), tf.device(self.device):
                    self._gate = sync_gate_ops.sync_gate(
                        self.quorum,
                        self.total,
                        lease_secs=self.lease_secs,
                        start_secs=self.start_secs,
                        updater_lease_secs=max(
                            self.lease_secs, _SHORTEST_UPDATER_LEASE_SECS
                        ),
                        strict=False,
                        spares=self.spares,
                        counted=True,
                    )
            return self._gate

    def at_gate(self, op: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Builds one of the gate's ops, on the gate's task."""
        with tf.device(self.device):
            built = op(self.gate(), *args, **kwargs)
        # A `tf.function` may return nothing, but not an op.
        return None if isinstance(built, tf.Operation) else built

    # --- Worker ---

    def acquire(self) -> Permit:
        """Waits until the round needs a gradient from this worker."""
        gate = self.gate()
        graph = None if tf.executing_eagerly() else tf.compat.v1.get_default_graph()
        if graph is not None and graph in self._workers:
            # Of several steps in a function, only the first tells who the worker is.
            names = self._workers[graph]
            name, at_gate, here = map(graph.get_tensor_by_name, names)
        else:
            name, at_gate, here = self._told()
            if graph is not None:
                self._workers[graph] = [x.name for x in (name, at_gate, here)]
        with tf.device(self.device):
            generation, round_number, _ = sync_gate_ops.sync_gate_acquire(
                gate, name, at_gate
            )
        return Permit(gate, (name, at_gate), generation, round_number, here)

    def _told(self) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        """Tells the gate's task who the worker is."""
        with tf.device(_HERE):
            here = sync_gate_ops.task_id()
        message = messages.pack(here)
        with tf.device(self.device):
            name, incarnation = messages.unpack(message, here)
        return name, incarnation, here[1]

    def contribute(
        self,
        permit: Permit,
        gradients: Sequence[Any],
        variables: Sequence[Any],
    ) -> None:
        """Hands in a gradient: admit, push to all accumulators, commit.

        `variables`: the variables, as Keras has them. Raises ValueError: the variables
        that have gradients, or the gradients' kinds, differ from those of the function
        that was traced first.
        """
        self.targets.check(gradients, variables)
        natives = [compat.native(variable) for variable in variables]
        checked = [
            gradient_checks.checked(gradient, native)
            for gradient, native in zip(gradients, natives, strict=True)
        ]
        # All gradients must be ready before the gate is asked, since a worker that is
        # admitted keeps the others waiting. Gradients for the gate's own task are
        # awaited there.
        at_gate = [native.device == self.device for native in natives]
        elsewhere = [x for x, is_at in zip(checked, at_gate, strict=True) if not is_at]
        with tf.device(self.device):
            fit = tf.constant(True)
        if self.reject_nonfinite or elsewhere:
            fit = self._tell_when_computed(permit, elsewhere, checked)
        sent, fit = self._when_all_are_there(checked, at_gate, fit)
        with tf.device(self.device):
            admitted = sync_gate_ops.sync_gate_admit(*permit.contribution, fit)
        push_and_commit(
            permit.contribution,
            admitted,
            sent,
            self.targets.accumulators,
            self.device,
        )
        permit.used = True

    def _when_all_are_there(
        self, gradients: Sequence[Any], at_gate: Sequence[bool], fit: tf.Tensor
    ) -> tuple[list[Any], tf.Tensor]:
        """Returns the gradients, and the message to the gate.

        The message is sent after the gradients for the gate's task.
        """
        awaited = [x for x, is_at in zip(gradients, at_gate, strict=True) if is_at]
        with tf.device(self.device):
            # They go through one op with the message to the gate. A control dependency
            # on tensors from another task would be one more message beside the
            # gradients themselves.
            *arrived, fit = tf.identity_n([*flatten(awaited), fit])
        arrived = tf.nest.pack_sequence_as(awaited, arrived, expand_composites=True)
        of_gate = iter(arrived)
        return [
            next(of_gate) if is_at else x
            for x, is_at in zip(gradients, at_gate, strict=True)
        ], fit

    def _tell_when_computed(self, permit, awaited, gradients) -> tf.Tensor:
        """Tells the gate's task that gradients are ready, and whether all are fit."""
        with tf.control_dependencies(flatten(awaited)), tf.device(_HERE):
            fit = tf.constant(1, tf.int64)
            if self.reject_nonfinite:
                fit = tf.cast(gradient_checks.all_finite(gradients), tf.int64)
            # It includes a tensor that is not a constant: a constant would be made on
            # the gate's task, and would wait for each gradient by a message of its own.
            message = messages.join([permit.incarnation, fit])
        with tf.device(self.device):
            return tf.equal(message[1], 1)

    def give_back(self, permit: Permit) -> None:
        """Releases a permit that did not lead to a contribution."""
        with tf.device(self.device):
            sync_gate_ops.sync_gate_abort(*permit.contribution)

    # --- Updater ---

    def quorum_of(self, op: Callable[..., Any], *args: Any, **kwargs: Any) -> tf.Tensor:
        """Builds an op that waits for a round or ends one.

        Returns the round and its number of gradients, as one tensor.
        """
        with tf.device(self.device):
            return messages.join(self.at_gate(op, *args, **kwargs))

    def take(self, quorum: tf.Tensor):
        """Takes the mean gradients of a round; returns them and their variables."""
        gradients = [
            accumulator.take(quorum) for accumulator in self.targets.accumulators
        ]
        return gradients, self.targets.variables
