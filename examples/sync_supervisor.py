"""Synchronous training in v1 by a Supervisor, which runs every op by itself.

This script does by itself what a session hook does elsewhere: it runs the init ops of
the chief and of the others, the chief's queue runner, and the init tokens.

    tf-syncrep launch --workers 2 --ps 2 --run-script-on workers \
        examples/sync_supervisor.py
"""

from __future__ import annotations

import clicks
import tensorflow.compat.v1 as tf
from absl import app

import tf_syncrep as tfs

tf.disable_v2_behavior()

LAST_STEP = 200


def main(_: list[str]) -> None:
    """Trains as the task that TF_CONFIG names."""
    resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
    cluster, task = resolver.cluster_spec(), resolver.task_id
    is_chief = task == 0
    server = tfs.distribute.Server(cluster, job_name="worker", task_index=task)

    device = f"/job:worker/task:{task}"
    setter = tf.train.replica_device_setter(cluster=cluster, worker_device=device)
    with tf.device(setter):
        global_step = tf.train.get_or_create_global_step()
        inputs, loss = clicks.build_model(cluster.num_tasks("ps"))
        optimizer = tfs.train.SyncReplicasOptimizer(
            tfs.train.AdamAsyncOptimizer(0.05),
            replicas_to_aggregate=cluster.num_tasks("worker"),
            total_num_replicas=cluster.num_tasks("worker"),
        )
        train_op = optimizer.minimize(loss, global_step=global_step)
        queue_runner = optimizer.get_chief_queue_runner()
        init_tokens_op = optimizer.get_init_tokens_op()

    supervisor = tf.train.Supervisor(
        is_chief=is_chief,
        init_op=tf.global_variables_initializer(),
        local_init_op=(
            optimizer.chief_init_op if is_chief else optimizer.local_step_init_op
        ),
        ready_for_local_init_op=optimizer.ready_for_local_init_op,
        global_step=global_step,
        recovery_wait_secs=1,
    )
    config = tf.ConfigProto(device_filters=["/job:ps", device])
    losses = []
    with supervisor.managed_session(server.target, config=config) as session:
        if is_chief:
            supervisor.start_queue_runners(session, [queue_runner])
            session.run(init_tokens_op)
        step = 0
        for batch in clicks.batches(seed=task, size=512):
            if supervisor.should_stop() or step >= LAST_STEP:
                break
            # The value of the train op is the step that the next gradient is for.
            feed = clicks.feed(inputs, batch)
            value, step = session.run([loss, train_op], feed)
            losses.append(value)
        if is_chief:
            stats = optimizer.stats(session)
            print(f"{stats['updates']} updates of {stats['applied']} gradients")
    # The end of the chief is the end of input for the other workers, which ends their
    # sessions in an orderly way.
    first, last = sum(losses[:10]) / 10, sum(losses[-10:]) / 10
    print(f"{len(losses)} batches, loss {first:.3f} to {last:.3f}")


if __name__ == "__main__":
    app.run(main)
