"""One replica of a v1 training that saves, publishes and has a queue, for the tests.

Run it as a task of TF_CONFIG with JSON arguments, which are those of `main` by name.
The gradient is a function of the global step, so that all replicas give the same. It
prints "restored", "past TENS." and "read ITEM", line by line. It makes no more than
15 steps without a checkpoint: a fast machine would have none when a task is killed. At
each step of `holds` it waits until there is a file `go-STEP` in the folder.
"""

import json
import pathlib
import sys

import programs
import tensorflow.compat.v1 as tf
import v1_checkpoint_models
import v1_sessions
import waiting

import tf_syncrep as tfs
from tf_syncrep.python.checkpoint.directory import Directory

LAST_WITHOUT_CHECKPOINT = 15
DEADLINE_SECS = 60


class Tell(tf.train.SessionRunHook):
    """Reports sessions and steps."""

    def __init__(self, hook, directory, first_step, holds):
        self._hook = hook
        self._holds = {x: pathlib.Path(directory, f"go-{x}") for x in sorted(holds)}
        self._first_step = first_step
        self._directory = Directory(directory)
        self._step = tf.train.get_global_step()

    def after_create_session(self, session, coord):
        del session, coord
        if self._hook.restored:
            print("restored", flush=True)

    def before_run(self, run_context):
        del run_context
        return tf.train.SessionRunArgs(self._step)

    def after_run(self, run_context, run_values):
        del run_context
        step = run_values.results
        print(f"past {step // 10 * 10}.", flush=True)
        if step >= self._first_step + LAST_WITHOUT_CHECKPOINT:
            waiting.until(self._directory.manifests, secs=DEADLINE_SECS)
        for hold, go in self._holds.items():
            if step >= hold:
                waiting.until(go.exists, secs=DEADLINE_SECS)


def main(
    directory,
    last_step,
    use_resource,
    parts,
    sync,
    items,
    warm_start=None,
    first_step=0,
    holds=(),
):
    """Trains."""
    worker = v1_sessions.Worker()
    with tf.device(worker.setter):
        queue = tfs.data.WorkQueue(items, num_epochs=None, name="items")
        iterator = tf.data.make_initializable_iterator(queue.dataset())
        tf.add_to_collection(tf.GraphKeys.TABLE_INITIALIZERS, iterator.initializer)
        item = iterator.get_next()
        loss = v1_checkpoint_models.loss(use_resource, parts)
        opt = tfs.train.AdamAsyncOptimizer(0.01)
        hooks = []
        if sync:
            opt = tfs.train.SyncReplicasOptimizer(opt, 2, strict=True)
            hooks = [opt.make_session_run_hook(worker.is_chief)]
        train_op = opt.minimize(loss, global_step=tf.train.get_global_step())
    hook = tfs.train.CheckpointSaverHook(
        directory,
        save_steps=10,
        is_chief=worker.is_chief,
        full_every=3,
        work_queues={"items": queue},
        warm_start=warm_start,
    )
    publisher = tfs.train.PublisherHook(
        f"{directory}/published",
        lambda: v1_checkpoint_models.serve(parts),
        every_n_steps=3,
        is_chief=worker.is_chief,
        full_every=5,
    )
    hooks += [hook, publisher, Tell(hook, directory, first_step, holds)]
    hooks.append(tf.train.StopAtStepHook(last_step=last_step))
    with tf.train.MonitoredSession(worker.session_creator(), hooks) as session:
        print("begun", flush=True)
        while not session.should_stop():
            read, _ = session.run([item, train_op])
            print(f"read {read}", flush=True)
    if worker.is_chief:
        with tf.Session(worker.target, config=worker.config) as session:
            values = v1_checkpoint_models.values(session)
            programs.report({name: value.tolist() for name, value in values.items()})
    print("ended", flush=True)


if __name__ == "__main__":
    main(**json.loads(sys.argv[1]))
