"""A synchronous training in the manner of scripts from TensorFlow's first years.

They pass `replica_id`, and know neither session hooks nor the init ops of later
versions: they start the chief's queue runner, run the init tokens, and at the end the
clean-up op. Such a script runs unchanged after `tfs.install_v1_names()`.

    tf-syncrep launch --workers 2 --ps 2 --run-script-on workers examples/sync_oldest.py
"""

from __future__ import annotations

import click_model
import clicks
import tensorflow.compat.v1 as tf
from absl import app

import tf_syncrep as tfs

tf.disable_v2_behavior()
tfs.install_v1_names()

LAST_STEP = 200


def main(_: list[str]) -> None:
    """Trains as the task that TF_CONFIG names."""
    resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
    cluster, task = resolver.cluster_spec(), resolver.task_id
    num_workers = cluster.num_tasks("worker")
    is_chief = task == 0
    server = tf.train.Server(cluster, job_name="worker", task_index=task)

    device = f"/job:worker/task:{task}"
    with tf.device(
        tf.train.replica_device_setter(cluster=cluster, worker_device=device)
    ):
        global_step = tf.Variable(0, name="global_step", trainable=False)
        inputs, loss = click_model.build(cluster.num_tasks("ps"))
        optimizer = tf.train.SyncReplicasOptimizer(
            tf.train.AdamOptimizer(0.05),
            replicas_to_aggregate=num_workers,
            replica_id=task,
            total_num_replicas=num_workers,
            use_locking=True,
        )
        gradients = optimizer.compute_gradients(loss)
        train_op = optimizer.apply_gradients(gradients, global_step=global_step)
    chief_queue_runner = optimizer.get_chief_queue_runner()
    init_tokens_op = optimizer.get_init_tokens_op()
    clean_up_op = optimizer.get_clean_up_op()

    supervisor = tf.train.Supervisor(
        is_chief=is_chief,
        init_op=tf.global_variables_initializer(),
        global_step=global_step,
        recovery_wait_secs=1,
    )
    config = tf.ConfigProto(
        allow_soft_placement=True, device_filters=["/job:ps", device]
    )
    session = supervisor.prepare_or_wait_for_session(server.target, config=config)
    if is_chief:
        supervisor.start_queue_runners(session, [chief_queue_runner])
        session.run(init_tokens_op)

    losses = []
    step = 0
    batches = clicks.batches(seed=task, size=512)
    while not supervisor.should_stop() and step < LAST_STEP:
        feed = click_model.feed(inputs, next(batches))
        try:
            value, _, step = session.run([loss, train_op, global_step], feed)
        except tf.errors.OutOfRangeError:
            break  # The chief has ended the training.
        losses.append(value)
    if is_chief:
        session.run(clean_up_op)
    supervisor.stop()
    first, last = sum(losses[:10]) / 10, sum(losses[-10:]) / 10
    print(f"{len(losses)} batches, loss {first:.3f} to {last:.3f}")


if __name__ == "__main__":
    app.run(main)
