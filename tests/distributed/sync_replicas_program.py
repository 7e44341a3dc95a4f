"""One replica of a small synchronous training in a v1 session; see the tests beside it.

Run it as a task of TF_CONFIG with JSON arguments, which are those of `main` by name.
Batch b of worker i is `sync_replicas_twin.batch(i, b)`. It reports line by line:
"committed [generation, round, worker, batch]" when the gate has counted a gradient,
"waiting BATCH" when it is asked for the next permit, "ran BATCH" after each train op,
and the chief "opened [generation, step]".
"""

import json
import signal
import sys
import time

import numpy as np
import programs
import replaced_ops
import sync_replicas_twin as twin
import tensorflow.compat.v1 as tf
import v1_sessions

from tf_syncrep.python.ops import accumulator_ops, sync_gate_ops


class Seams:
    """Points of the train op at which a replica can stop itself, and its reports.

    "computing": before its gradient is ready. "half_pushed": the first of two pushes
    was acknowledged, and the second is not begun. "committed": it counts, and the wait
    for the next permit begins. The arguments are those of `main`.
    """

    def __init__(self, worker, stop_at, compute_secs, malformed_push):
        self._device = f"/job:worker/task:{worker}/cpu:0"
        self._worker = worker
        self._stop_at = stop_at
        self._compute_secs = compute_secs
        self._malformed_push = malformed_push
        self._pushes: list[tf.Tensor] = []
        self._waiting = tf.no_op()
        self.number = tf.placeholder(tf.int64, [])

    def stop(self, point: str) -> tf.Operation:
        """Builds a point: the process stops there, in all of its threads."""

        def run(number):
            if point == "computing":
                time.sleep(self._compute_secs)
            if number in self._stop_at.get(point, ()):
                print(f"at {point} {number}", flush=True)
                # The signal goes to this very thread, which so goes no further. If it
                # went to the process, by kill(), another thread could take it a moment
                # too late.
                signal.raise_signal(signal.SIGSTOP)
            return np.int64(0)

        with tf.device(self._device):
            return tf.numpy_function(run, [self.number], tf.int64).op

    def in_place(self):
        """Puts the points into the train op that is built within the context."""
        pushes = ("accumulator_apply_dense", "accumulator_apply_sparse")
        replacements = [(accumulator_ops, name, self._push) for name in pushes]
        replacements.append((sync_gate_ops, "sync_gate_commit", self._commit))
        return replaced_ops.replaced(replacements)

    def _push(self, push, handle, round_number, *gradient):
        gradient = [self._malformed(tensor) for tensor in gradient]
        with tf.control_dependencies(self._pushes):
            stops = [self.stop("half_pushed")] if self._pushes else []
        with tf.control_dependencies(stops):
            self._pushes.append(push(handle, round_number, *gradient))
        return self._pushes[-1]

    def _malformed(self, tensor):
        """Makes indices of a batch wrong, after the replica's own checks."""
        if self._malformed_push is None or not tensor.dtype.is_integer:
            return tensor
        is_wrong = tf.equal(self.number, self._malformed_push)
        return tensor + 1000 * tf.cast(is_wrong, tensor.dtype)

    def _commit(self, commit, handle, generation, round_number, *args):
        counts = commit(handle, generation, round_number, *args)

        def record(counts, *numbers):
            if counts:
                generation, round_number, number = map(int, numbers)
                place = [generation, round_number, self._worker, number]
                print(f"committed {place}", flush=True)
            return counts

        with tf.device(self._device):
            recorded = tf.numpy_function(
                record, [counts, generation, round_number, self.number], tf.bool
            )
        with tf.control_dependencies([recorded]):
            stop = self.stop("committed")
        with tf.control_dependencies([stop]):
            recorded = tf.ensure_shape(tf.identity(recorded), [])
        # The gate's task knows it, and asks for the next permit itself.
        with tf.control_dependencies([recorded]), tf.device(self._device):
            self._waiting = tf.numpy_function(
                lambda number: print(f"waiting {number}", flush=True),
                [self.number],
                [],
            )
        return recorded

    def completed(self, train_op) -> tf.Operation:
        """The train op, with ops that are only for the reports."""
        return tf.group(train_op, self._waiting)


class ReportOpening(tf.train.SessionRunHook):
    """Reports each generation that the chief opens; comes after the chief's hook."""

    def __init__(self, sync, global_step):
        self._sync = sync
        self._global_step = global_step

    def after_create_session(self, session, coord):
        # The others wait for this replica's gradient meanwhile.
        del coord
        generation = self._sync.stats(session)["generation"]
        opened = [generation, int(session.run(self._global_step))]
        print(f"opened {opened}", flush=True)


def train_in_bare_session(train, sync, chief):
    """Trains as the chief in a bare session, until an error."""
    coordinator = tf.train.Coordinator()
    with tf.Session(chief.target, config=chief.config) as session:
        session.run(tf.global_variables_initializer())
        session.run(sync.chief_init_op)
        sync.get_chief_queue_runner().create_threads(
            session, coordinator, daemon=True, start=True
        )
        try:
            train(session)
        except tf.errors.OpError as error:
            print(f"failed with {type(error).__name__}", flush=True)


def main(
    quorum,
    total,
    batches,
    first_batch=0,
    stop_at=(),
    compute_secs=0.0,
    last_step=None,
    checkpoint_dir=None,
    bare=False,
    malformed_push=None,
    use_resource=False,
    optimizer=(),
):
    """Trains, and reports what the chief saw at the end.

    `stop_at`: lists of batches by points; see `Seams`. `optimizer`: further arguments
    of the optimizer, by name.
    """
    worker = v1_sessions.Worker()
    index, is_chief = worker.index, worker.is_chief
    seams = Seams(index, dict(stop_at), compute_secs, malformed_push)
    # The variables are on the two servers in turn; the gate is beside the larger one.
    with tf.device(worker.setter), seams.in_place():
        replica = twin.Replica(
            quorum,
            total,
            use_resource=use_resource,
            graph=tf.get_default_graph(),
            begins=[seams.stop("computing")],
            **dict(optimizer),
        )
        train_op = seams.completed(replica.train_op)
    sync = replica.optimizer

    def train(session):
        for number in range(first_batch, first_batch + batches):
            if not bare and session.should_stop():
                break
            feed = replica.feed(twin.batch(index, number))
            session.run(train_op, {**feed, seams.number: number})
            print(f"ran {number}", flush=True)

    if bare:
        train_in_bare_session(train, sync, worker)
        return
    closing = time.monotonic()  # in case the others end the training
    hooks = [sync.make_session_run_hook(is_chief)]
    if is_chief:
        hooks.append(ReportOpening(sync, replica.global_step))
    if is_chief and checkpoint_dir is not None:
        hooks.append(tf.train.CheckpointSaverHook(checkpoint_dir, save_steps=1))
    if last_step is not None:
        hooks.append(tf.train.StopAtStepHook(last_step=last_step))
    creator = worker.session_creator(checkpoint_dir)
    with tf.train.MonitoredSession(creator, hooks) as session:
        print("begun", flush=True)
        train(session)
        closing = time.monotonic()
    close_secs = time.monotonic() - closing
    if is_chief:
        with tf.Session(worker.target, config=worker.config) as session:
            step, *weights = session.run([replica.global_step, *replica.weights])
            programs.report(
                {
                    "global_step": int(step),
                    "weights": [weight.tolist() for weight in weights],
                    "stats": sync.stats(session),
                    "close_secs": close_secs,
                }
            )
    print("ended", flush=True)


if __name__ == "__main__":
    main(**json.loads(sys.argv[1]))
