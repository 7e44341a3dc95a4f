"""Synchronous training in v1: MonitoredTrainingSession and between-graph replication.

Each worker runs this script and builds its own copy of the graph; variables lie on the
parameter servers. Per step, the chief (worker 0) applies the mean of one gradient of
each worker, once, and all go on with the new weights. The two tables of embeddings get
sparse gradients, which AdamAsync applies to just the rows that they name.

    tf-syncrep launch --workers 2 --ps 2 --run-script-on workers \
        examples/sync_session.py

With `--replicas_to_aggregate 1` one of 2 workers is a backup: the gradient that comes
late is dropped.
"""

from __future__ import annotations

from typing import Any

import clicks
import tensorflow.compat.v1 as tf
from absl import app, flags, logging

import tf_syncrep as tfs

FLAGS = flags.FLAGS
flags.DEFINE_integer("steps", 200, "Updates in all.", lower_bound=1)
flags.DEFINE_integer("replicas_to_aggregate", None, "Default: all.", lower_bound=1)

tf.disable_v2_behavior()
# The library logs by absl, and TensorFlow by a logger of its own, whose lines absl
# would print a second time.
logging.set_verbosity(logging.INFO)
tf.logging.set_verbosity(tf.logging.INFO)
tf.get_logger().propagate = False


def main(_: list[str]) -> None:
    """Trains as the task that TF_CONFIG names."""
    resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
    cluster = resolver.cluster_spec()
    if "ps" not in cluster.jobs:
        raise SystemExit(
            "There are no parameter servers in TF_CONFIG. Start this script by: "
            "tf-syncrep launch --workers 2 --ps 2 --run-script-on workers "
            "examples/sync_session.py"
        )
    num_workers, num_ps = cluster.num_tasks("worker"), cluster.num_tasks("ps")
    task = resolver.task_id
    is_chief = task == 0
    server = tfs.distribute.Server(cluster, job_name="worker", task_index=task)

    device = f"/job:worker/task:{task}"
    with tf.device(
        tf.train.replica_device_setter(cluster=cluster, worker_device=device)
    ):
        global_step = tf.train.get_or_create_global_step()
        inputs, loss = clicks.build_model(num_ps)
        optimizer = tfs.train.SyncReplicasOptimizer(
            tfs.train.AdamAsyncOptimizer(0.05),
            replicas_to_aggregate=FLAGS.replicas_to_aggregate or num_workers,
            total_num_replicas=num_workers,
        )
        train_op = optimizer.minimize(loss, global_step=global_step)

    sync_hook = optimizer.make_session_run_hook(is_chief, log_every_n_steps=50)
    hooks = [sync_hook, tf.train.StopAtStepHook(last_step=FLAGS.steps)]
    # Each worker sees only the parameter servers and itself. So none has to wait for
    # another one that has not started yet, or has ended.
    config = tf.ConfigProto(device_filters=["/job:ps", device])
    if not is_chief:
        # MonitoredTrainingSession would look every 30 seconds whether the chief has
        # initialized the variables.
        uninitialized = tf.report_uninitialized_variables(tf.global_variables())
        tf.train.SessionManager(
            ready_op=uninitialized, recovery_wait_secs=1
        ).wait_for_session(server.target, config)
    losses = []
    with tf.train.MonitoredTrainingSession(
        server.target, is_chief=is_chief, hooks=hooks, config=config
    ) as session:
        for batch in clicks.batches(seed=task, size=512):
            if session.should_stop():
                break
            feed = clicks.feed(inputs, batch)
            losses.append(session.run([loss, train_op], feed)[0])
    first, last = sum(losses[:10]) / 10, sum(losses[-10:]) / 10
    print(f"{len(losses)} batches, loss {first:.3f} to {last:.3f}")
    if is_chief:
        report(sync_hook.stats)


def report(stats: dict[str, Any]) -> None:
    """Prints what each worker has contributed."""
    print(f"{stats['updates']} updates of {stats['applied']} gradients")
    for name, worker in stats["workers"].items():
        print(
            f"{name}: {worker['contributed']} gradients, "
            f"{worker['late'] + worker['stale']} dropped, "
            f"waited {worker['waited_secs']:.1f} s"
        )


if __name__ == "__main__":
    app.run(main)
