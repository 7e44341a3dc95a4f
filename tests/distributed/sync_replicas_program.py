"""One replica of a small synchronous training in a v1 session; see the test beside it.

Run as a task of TF_CONFIG with JSON arguments: for each worker how many batches it
has, then keyword arguments of the optimizer. Batch b of worker i is
`sync_replicas_twin.batch(i, b)`.
"""

import json
import os
import sys
import time

import programs
import sync_replicas_twin as twin
import tensorflow.compat.v1 as tf

import tf_syncrep as tfs

tf.disable_v2_behavior()


def main(batches, replicas_to_aggregate, arguments):
    """Trains, and reports what the chief saw at the end."""
    config = json.loads(os.environ["TF_CONFIG"])
    cluster = tf.train.ClusterSpec(config["cluster"])
    index = config["task"]["index"]
    is_chief = index == 0
    server = tf.distribute.Server(cluster, job_name="worker", task_index=index)
    setter = tf.train.replica_device_setter(
        cluster=cluster, worker_device=f"/job:worker/task:{index}"
    )
    with tf.device(setter):
        global_step = tf.train.get_or_create_global_step()
        dense = tf.get_variable("dense", initializer=twin.DENSE)
        table = tf.get_variable("table", initializer=twin.TABLE)
        target = tf.placeholder(dense.dtype, dense.shape)
        rows = tf.placeholder(tf.int64, [None])
        loss = tf.reduce_sum((dense - target) ** 2) + tf.reduce_sum(
            tf.gather(table, rows) ** 2
        )
        optimizer = tfs.train.SyncReplicasOptimizer(
            tf.train.GradientDescentOptimizer(twin.LEARNING_RATE),
            replicas_to_aggregate,
            len(batches),
            sparse_reduction_type="CMEAN",
            **arguments,
        )
        train_op = optimizer.minimize(loss, global_step=global_step)
    hook = optimizer.make_session_run_hook(is_chief)
    seen = None
    with tf.train.MonitoredTrainingSession(
        server.target, is_chief=is_chief, hooks=[hook]
    ) as session:
        for number in range(batches[index]):
            if session.should_stop():
                break
            batch = twin.batch(index, number)
            session.run(train_op, {target: batch.target, rows: batch.rows})
            print(f"ran {number}", flush=True)
        if is_chief:
            seen = session.run([global_step, dense, table])
            stats = optimizer.stats(session)
        closing = time.monotonic()
    if seen is not None:
        programs.report(
            {
                "global_step": int(seen[0]),
                "dense": seen[1].tolist(),
                "table": seen[2].tolist(),
                "stats": stats,
                "close_secs": time.monotonic() - closing,
            }
        )
    print("ended", flush=True)


if __name__ == "__main__":
    main(*map(json.loads, sys.argv[1:]))
