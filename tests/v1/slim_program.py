"""Trains by tf_slim's loop; reports the loss of the last step. Argument: a folder."""

import json
import sys

import programs
import tensorflow.compat.v1 as tf
from tf_slim import learning

import tf_syncrep as tfs


def main():
    tf.disable_v2_behavior()
    server = tf.train.Server.create_local_server()
    weight = tf.get_variable("weight", initializer=5.0)
    optimizer = tfs.train.SyncReplicasOptimizer(
        tf.train.GradientDescentOptimizer(0.25), replicas_to_aggregate=1
    )
    train_op = learning.create_train_op(
        weight**2,
        optimizer,
        global_step=tf.train.get_or_create_global_step(),
        check_numerics=False,
    )
    loss = learning.train(
        train_op,
        json.loads(sys.argv[1]),
        master=server.target,
        number_of_steps=6,
        sync_optimizer=optimizer,
        startup_delay_steps=0,
        save_summaries_secs=None,
    )
    programs.report(float(loss))


if __name__ == "__main__":
    main()
