"""Synchronous training by an Estimator of one's own, on TensorFlow 2.15.

The hook of SyncReplicasOptimizer goes into the `training_hooks` of the model function's
EstimatorSpec. A canned Estimator such as DNNClassifier is given the optimizer, and
`TrainSpec` or `train` its hook, which may be made before the graph. On a cluster, the
tasks find their parts in TF_CONFIG: parameter servers serve, the chief and the workers
train, and then the chief evaluates the model.

    tf-syncrep launch --workers 1 --ps 2 --chief --run-script-on all \
        examples/sync_estimator.py
"""

from __future__ import annotations

import os

import clicks
import tensorflow.compat.v1 as tf
from absl import app, flags, logging

import tf_syncrep as tfs

if not hasattr(tf, "estimator"):
    raise SystemExit(
        "This example needs Estimator, which TensorFlow 2.15 was the last to have. "
        f"Found: TensorFlow {tf.__version__}."
    )
FLAGS = flags.FLAGS
flags.DEFINE_integer("steps", 200, "Updates in all.", lower_bound=1)
flags.DEFINE_string("model_dir", "build/sync_estimator", "A folder of all tasks.")

tf.disable_v2_behavior()
# The library logs by absl, and TensorFlow by a logger of its own, whose lines absl
# would print a second time.
logging.set_verbosity(logging.INFO)
tf.logging.set_verbosity(tf.logging.INFO)
tf.get_logger().propagate = False


def model_fn(features, labels, mode, config) -> tf.estimator.EstimatorSpec:
    """Builds the model: a click is likely if two embeddings agree."""
    user, item = (
        tf.nn.embedding_lookup(
            tf.get_variable(
                f"{name}s",
                [rows, 8],
                initializer=tf.random_normal_initializer(stddev=0.3, seed=rows),
            ),
            features[name],
        )
        for name, rows in (("user", clicks.NUM_USERS), ("item", clicks.NUM_ITEMS))
    )
    logits = tf.reduce_sum(user * item, axis=1)
    loss = tf.losses.sigmoid_cross_entropy(labels, logits)
    if mode == tf.estimator.ModeKeys.EVAL:
        accuracy = tf.metrics.accuracy(labels, tf.cast(logits > 0, tf.float32))
        return tf.estimator.EstimatorSpec(
            mode, loss=loss, eval_metric_ops={"accuracy": accuracy}
        )
    optimizer = tfs.train.SyncReplicasOptimizer(
        tfs.train.AdamAsyncOptimizer(0.05),
        # The chief counts as a worker here.
        replicas_to_aggregate=config.num_worker_replicas,
        total_num_replicas=config.num_worker_replicas,
    )
    train_op = optimizer.minimize(loss, global_step=tf.train.get_global_step())
    hook = optimizer.make_session_run_hook(config.is_chief)
    return tf.estimator.EstimatorSpec(
        mode, loss=loss, train_op=train_op, training_hooks=[hook]
    )


def input_fn(seed: int) -> tf.data.Dataset:
    """Makes the dataset of one worker, batches of features and labels."""
    shapes = {"user": [512], "item": [512], "click": [512]}
    types = {"user": tf.int64, "item": tf.int64, "click": tf.float32}
    dataset = tf.data.Dataset.from_generator(
        lambda: clicks.batches(seed, size=512), types, shapes
    )
    return dataset.map(lambda batch: (batch, batch.pop("click"))).prefetch(2)


def main(_: list[str]) -> None:
    """Runs the task that TF_CONFIG names, or trains alone without it."""
    config = tf.estimator.RunConfig(model_dir=FLAGS.model_dir)
    seed = config.global_id_in_cluster or 0
    tf.estimator.train_and_evaluate(
        tf.estimator.Estimator(model_fn, config=config),
        tf.estimator.TrainSpec(lambda: input_fn(seed), max_steps=FLAGS.steps),
        tf.estimator.EvalSpec(lambda: input_fn(1000), steps=10),
    )
    if config.is_chief:
        # It evaluates by itself, since it needs only the checkpoint of the cluster.
        os.environ.pop("TF_CONFIG", None)
        config = tf.estimator.RunConfig(model_dir=FLAGS.model_dir)
        estimator = tf.estimator.Estimator(model_fn, config=config)
        metrics = estimator.evaluate(lambda: input_fn(1000), steps=10)
        print(
            f"step {metrics['global_step']}: loss {metrics['loss']:.3f}, "
            f"accuracy {metrics['accuracy']:.3f}"
        )


if __name__ == "__main__":
    app.run(main)
