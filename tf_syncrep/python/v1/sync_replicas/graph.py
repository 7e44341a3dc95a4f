"""The ops of SyncReplicasOptimizer: the replica's part of a step, and the chief's."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
from typing import Any

import tensorflow as tf

from tf_syncrep.python.base import messages
from tf_syncrep.python.ops import sync_gate_ops
from tf_syncrep.python.sync import gate_placement, gradient_checks
from tf_syncrep.python.sync.gradient_accumulators import (
    kind_of,
    make_accumulator,
    push_and_commit,
)
from tf_syncrep.python.sync.gradients import flatten
from tf_syncrep.python.v1.sync_replicas import client, gradient_transfers
from tf_syncrep.python.v1.sync_replicas.chief_queue_runner import ChiefQueueRunner
from tf_syncrep.python.v1.sync_replicas.departures import Departures
from tf_syncrep.python.v1.sync_replicas.update import kept_for_checkpoints, waits_for


@dataclasses.dataclass(frozen=True)
class Settings:
    """The arguments of an optimizer; see SyncReplicasOptimizer's constructor."""

    name: str
    optimizer: Any
    quorum: int  # `replicas_to_aggregate`
    total_num_replicas: int
    variable_averages: Any
    variables_to_average: Any
    sparse_reduction_type: str
    lease_secs: float
    start_secs: float
    reject_nonfinite: bool
    strict: bool


class SyncReplicasOps:
    """The ops that one call of `apply_gradients` builds.

    `gate`: the gate's handle; `gate_device`: its device. `ready_for_local_init_op`:
    names the variables that are not initialized. `chief_init_op`: the same for the
    chief; it also begins the training.
    """

    def __init__(self, settings: Settings, grads_and_vars, global_step):
        """Builds the ops in the default graph; a gradient may be None."""
        self._settings = settings
        self._global_step = global_step
        self._make_local_variables()
        self._make_gate(grads_and_vars)
        with tf.compat.v1.name_scope(None, settings.name):
            self._make_accumulators(grads_and_vars)
            self._sync_op = self._make_sync_op(grads_and_vars)
            self._make_init_ops()
            self.train_op = self._make_train_op(grads_and_vars)
            self._make_end_ops()

    @property
    def running_queue_runner(self) -> ChiefQueueRunner:
        """The queue runner that applies the updates; the hook's if none does."""
        if self.chief_queue_runner.wait_for_end(0):
            return self.hooks_queue_runner
        return self.chief_queue_runner

    def _make_local_variables(self) -> None:
        """Makes the variables for a replica's permit, on the replica's own task."""
        anchor = tf.no_op()
        extended = tf.distribute.get_strategy().extended
        with extended.colocate_vars_with(anchor):
            self._local_step, self._local_permit = (
                tf.compat.v1.Variable(
                    initial_value=value,
                    trainable=False,
                    collections=[tf.compat.v1.GraphKeys.LOCAL_VARIABLES],
                    dtype=dtype,
                    name=name,
                )
                for name, value, dtype in (
                    ("sync_rep_local_step", 0, self._global_step.dtype.base_dtype),
                    # generation, round, and the client that has acquired it
                    ("sync_rep_local_permit", [0, 0, 0], tf.int64),
                )
            )
        with tf.device("/device:CPU:0"):
            self._worker = client.worker()

    def _make_gate(self, grads_and_vars) -> None:
        """Makes the gate beside most of what is trained, or beside the global step."""
        self.gate_device = gate_placement.gate_device(
            [variable for gradient, variable in grads_and_vars if gradient is not None],
            self._global_step.device,
        )
        self._shared_name = _shared_name(
            self._settings.name, self._global_step, grads_and_vars
        )
        make_gate = functools.partial(
            sync_gate_ops.sync_gate,
            self._settings.quorum,
            self._settings.total_num_replicas,
            shared_name=self._shared_name,
            lease_secs=self._settings.lease_secs,
            start_secs=self._settings.start_secs,
            strict=self._settings.strict,
            gathers=True,
        )
        with tf.device(self.gate_device):
            self.gate = make_gate()
            self.stats_op = sync_gate_ops.sync_gate_stats(self.gate)
        container = self.gate.op.get_attr("container").decode()

        def make_gate_again():
            with tf.compat.v1.container(container):
                return make_gate()

        self.departures = Departures(
            self.gate.graph,
            make_gate_again,
            client.worker,
            gate_device=self.gate_device,
            worker_device=self._worker[0].device,
        )

    def _make_accumulators(self, grads_and_vars) -> None:
        self._accumulators = [
            None
            if gradient is None
            else make_accumulator(
                kind_of(gradient),
                variable,
                shared_name=f"{self._shared_name}/{variable.name}/grad_accum",
                sparse_reduction_type=self._settings.sparse_reduction_type,
            )
            for gradient, variable in grads_and_vars
        ]

    def _make_sync_op(self, grads_and_vars) -> tf.Operation:
        """Builds the chief's part of a step: wait, take, apply, advance."""
        with tf.device(self.gate_device):
            generation = self._generation()
            round_number, num_gradients = sync_gate_ops.sync_gate_wait_quorum(
                self.gate, generation
            )
            quorum = messages.join([round_number, num_gradients])
        averages = []
        for accumulator, (_, variable) in zip(
            self._accumulators, grads_and_vars, strict=True
        ):
            with tf.device(variable.device):
                averages.append(accumulator and accumulator.take(quorum))
        variables = [variable for _, variable in grads_and_vars]
        optimizer = self._settings.optimizer
        has_moving_averages = self._settings.variable_averages is not None
        averages = kept_for_checkpoints(
            optimizer, averages, variables, has_moving_averages
        )
        with tf.device(self._global_step.device), tf.compat.v1.name_scope(""):
            with tf.control_dependencies(waits_for(optimizer, averages)):
                update_op = optimizer.apply_gradients(
                    list(zip(averages, variables, strict=True)), self._global_step
                )
            with tf.control_dependencies([update_op]):
                step = self._read_step()
            # The step follows all other work, so it alone is sent to the gate's task.
            with tf.device(self.gate_device):
                sync_op = sync_gate_ops.sync_gate_advance(
                    self.gate, generation, round_number, step
                ).op
            if self._settings.variable_averages is not None:
                with tf.control_dependencies([sync_op]):
                    sync_op = self._settings.variable_averages.apply(
                        self._settings.variables_to_average
                    )
        return sync_op

    def _make_init_ops(self) -> None:
        """Builds the ops that each replica runs before its first step."""
        # It is an identity since not every script uses the tensor, of which TensorFlow
        # would complain.
        self.ready_for_local_init_op = tf.identity(
            tf.compat.v1.report_uninitialized_variables(tf.compat.v1.global_variables())
        )
        self.local_step_init_op = self._acquire_op(first=True)
        # The accumulators are reset before the gate lets anybody push again, since a
        # dead chief's generation may have left gradients in them. The chief acquires at
        # once after it has opened the gate: replicas that wait for the opening could
        # fill the round meanwhile, and nobody applies their gradients before this op is
        # done. That is why its name is sent to the gate's task beforehand, too.
        resets = [
            accumulator.reset() for accumulator in self._accumulators if accumulator
        ]
        with tf.device(self.gate_device):
            worker = [tf.identity(part) for part in self._worker]
        with tf.control_dependencies([*resets, *worker]):
            step = self._read_step()
        with tf.device(self.gate_device):
            opened = sync_gate_ops.sync_gate_open(
                self.gate,
                step,
                quorum=self._settings.quorum,
                total=self._settings.total_num_replicas,
                lease_secs=self._settings.lease_secs,
                start_secs=self._settings.start_secs,
            )
        with tf.control_dependencies([opened]):
            self.chief_init_op = tf.group(self._acquire_op(first=True, worker=worker))

    def _make_train_op(self, grads_and_vars) -> tf.Operation:
        """Builds the replica's part of a step: admit, push, commit, acquire."""
        present = [pair for pair in grads_and_vars if pair[0] is not None]
        gradients = [gradient for gradient, _ in present]
        devices = [variable.device for _, variable in present]
        checks = [
            gradient_checks.check_against(gradient, variable)
            for gradient, variable in present
        ]
        along = gradient_transfers.choose_for_message(
            gradients, devices, self.gate_device
        )
        contribution, is_new, fit, arrived = self._tell_gate(checks, gradients, along)
        generation, round_number, device, incarnation = contribution
        with tf.device(self.gate_device):
            # If no init op has acquired for this client, its gradient belongs to no
            # round, and its first acquire is still to come. It must not hear of the end
            # of another client's training.
            admitted = _one_of(
                is_new,
                device,
                lambda device: tf.not_equal(device, device),
                lambda device: sync_gate_ops.sync_gate_admit(
                    self.gate, generation, round_number, device, incarnation, fit
                ),
            )
        sent = gradient_transfers.join_small(
            gradients, devices, dict(zip(along, arrived, strict=True))
        )
        counted = push_and_commit(
            (self.gate, *contribution),
            admitted,
            sent,
            [accumulator for accumulator in self._accumulators if accumulator],
            self.gate_device,
        )
        with tf.device(self.gate_device), tf.control_dependencies([counted]):
            worker = (tf.identity(device), tf.identity(incarnation))
        return self._acquire_op(first=is_new, worker=worker)

    def _tell_gate(self, checks, gradients, along):
        """Sends the gate's task its message, along with parts of gradients.

        The message is sent when all gradients are ready: a replica that is admitted
        keeps the others waiting, so the first to be ready should be admitted, not the
        first to have begun. It is one tensor, since each tensor that leaves a task
        costs a call.

        Returns the tensors on the gate's task: generation, round, device and
        incarnation of the contribution; whether this client has never acquired; whether
        its gradient is fit; and the parts that were sent along.
        """
        device, incarnation = self._worker
        with tf.control_dependencies([*checks, *flatten(gradients)]):
            permit = self._local_permit.read_value()
            fit = tf.constant(1, tf.int64)
            if self._settings.reject_nonfinite:
                fit = tf.cast(gradient_checks.all_finite(gradients), tf.int64)
        parts = [gradient_transfers.small_part(gradients[i]) for i in along]
        tensors = [permit, device, incarnation, fit, *parts]
        message = messages.pack(tensors)
        with tf.device(self.gate_device):
            permit, device, incarnation, fit, *arrived = messages.unpack(
                message, tensors
            )
            generation, round_number, acquired_by = tf.unstack(permit)
            contribution = (generation, round_number, device, incarnation)
            is_new = tf.not_equal(acquired_by, client.number())
            return contribution, is_new, tf.equal(fit, 1), arrived

    def _make_end_ops(self) -> None:
        with tf.device(self.gate_device):
            # Another chief's training must go on: that chief may have begun it anew.
            self.close_op = sync_gate_ops.sync_gate_close(self.gate, self._generation())
            self.leave_op = sync_gate_ops.sync_gate_leave(self.gate, *self._worker)
            stop_updater_op = sync_gate_ops.sync_gate_cancel_updater(
                self.gate, self._generation(), **sync_gate_ops.NO_WORKER
            )
            fail_updater_op = sync_gate_ops.sync_gate_cancel_updater(
                self.gate, self._generation(), *self._worker
            )
        # `cancel_op` ends the wait when the coordinator stops, `stop_op` when an error
        # has stopped it. The hook closes the gate itself at the end, since its runner
        # also ends when a session recovers from the loss of a task, and training goes
        # on.
        self.chief_queue_runner, self.hooks_queue_runner = (
            ChiefQueueRunner(
                permit=self._local_permit.read_value(),
                open_op=self.chief_init_op,
                stop_op=stop_updater_op,
                fail_op=fail_updater_op,
                departures=self.departures,
                queue=self.gate.op,
                enqueue_ops=[self._sync_op],
                close_op=close_op,
                cancel_op=cancel_op,
            )
            for close_op, cancel_op in (
                (self.close_op, self.close_op),
                (tf.no_op(), stop_updater_op),
            )
        )

    def _acquire_op(self, *, first: bool | tf.Tensor, worker=None):
        """Builds the wait for a permit, and keeps the permit; the value is the step.

        `first`: whether it is the first of a session. If it is a tensor, it is on the
        gate's task, as `worker` is.
        """
        device, incarnation = worker or self._worker

        def acquire(device, first):
            answer = sync_gate_ops.sync_gate_acquire(
                self.gate,
                device,
                incarnation,
                first=first,
                quorum=self._settings.quorum,
                total=self._settings.total_num_replicas,
            )
            return messages.join(answer)

        with tf.device(self.gate_device):
            if isinstance(first, bool):
                answer = acquire(device, first)
            else:
                answer = _one_of(
                    first,
                    device,
                    lambda device: acquire(device, True),
                    lambda device: acquire(device, False),
                )
        permit = tf.concat([answer[:2], tf.constant([client.number()], tf.int64)], 0)
        step = tf.cast(answer[2], self._local_step.dtype.base_dtype)
        with tf.control_dependencies([tf.compat.v1.assign(self._local_permit, permit)]):
            return tf.compat.v1.assign(self._local_step, step)

    def _read_step(self) -> tf.Tensor:
        """Reads the global step once the control dependencies are met.

        It is read on its own task: on another one the value of a reference variable
        might be an earlier one.
        """
        with tf.device(self._global_step.device):
            return tf.cast(self._global_step.read_value(), tf.int64)

    def _generation(self) -> tf.Tensor:
        """Reads the generation of this replica's permit; 0 before the first."""
        return self._local_permit.read_value()[0]


def _one_of(predicate, device, if_true, if_false) -> tf.Tensor:
    """Runs one of two ops, on the gate's task if all of their inputs are there.

    It uses TensorFlow's basic ops and not `tf.cond`, which may call functions
    elsewhere.

    `if_true`: builds the op that runs if `predicate` is true.
    """
    for_false, for_true = tf.raw_ops.Switch(data=device, pred=predicate)
    branches = [if_true(for_true), if_false(for_false)]
    return tf.raw_ops.Merge(inputs=branches).output


def _shared_name(name: str, global_step, grads_and_vars) -> str:
    """Returns a name for the gate that is the same in the graphs of all replicas.

    It distinguishes optimizers by their name, global step and variables and, if all of
    these are the same, by the order in which they were added to the graph.
    """
    variables = "\n".join(variable.name for _, variable in grads_and_vars)
    digest = hashlib.sha256(variables.encode()).hexdigest()[:16]
    return tf.compat.v1.get_default_graph().unique_name(
        f"sync_gate/{name}/{global_step.op.name}/{digest}"
    )
