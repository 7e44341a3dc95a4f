"""Synchronous training of v1's canned DNNClassifier, on TensorFlow 2.15.

The classifier is given the optimizer, and its training the optimizer's hook. Users and
items are embedded by feature columns.

    tf-syncrep launch --workers 1 --ps 2 --chief --run-script-on all \
        examples/sync_canned_estimator.py
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
flags.DEFINE_integer("steps", 400, "Updates in all.", lower_bound=1)
flags.DEFINE_string(
    "model_dir", "build/sync_canned_estimator", "A folder of all tasks."
)

tf.disable_v2_behavior()
# The library logs by absl, and TensorFlow by a logger of its own, whose lines absl
# would print a second time.
logging.set_verbosity(logging.INFO)
tf.logging.set_verbosity(tf.logging.INFO)
tf.get_logger().propagate = False


def make_classifier(
    config: tf.estimator.RunConfig, optimizer: tf.train.Optimizer
) -> tf.estimator.DNNClassifier:
    """Makes a network of one hidden layer on top of embeddings."""
    columns = [
        tf.feature_column.embedding_column(
            tf.feature_column.categorical_column_with_identity(name, rows),
            dimension=8,
            initializer=tf.random_normal_initializer(stddev=0.3, seed=rows),
        )
        for name, rows in (("user", clicks.NUM_USERS), ("item", clicks.NUM_ITEMS))
    ]
    return tf.estimator.DNNClassifier([32], columns, optimizer=optimizer, config=config)


def input_fn(seed: int) -> tf.data.Dataset:
    """Makes the dataset of one worker, batches of features and labels."""
    shapes = {"user": [512], "item": [512], "click": [512]}
    types = {"user": tf.int64, "item": tf.int64, "click": tf.float32}
    dataset = tf.data.Dataset.from_generator(
        lambda: clicks.batches(seed, size=512), types, shapes
    )

    def split(batch):
        return batch, tf.cast(batch.pop("click")[:, tf.newaxis], tf.int64)

    return dataset.map(split).prefetch(2)


def main(_: list[str]) -> None:
    """Runs the task that TF_CONFIG names, or trains alone without it."""
    config = tf.estimator.RunConfig(model_dir=FLAGS.model_dir)
    seed = config.global_id_in_cluster or 0
    optimizer = tfs.train.SyncReplicasOptimizer(
        tfs.train.AdamAsyncOptimizer(0.02),
        # The chief counts as a worker here.
        replicas_to_aggregate=config.num_worker_replicas,
        total_num_replicas=config.num_worker_replicas,
    )
    hook = optimizer.make_session_run_hook(config.is_chief)
    classifier = make_classifier(config, optimizer)
    if config.cluster_spec:
        # This starts the servers that `train` alone would leave to the script.
        tf.estimator.train_and_evaluate(
            classifier,
            tf.estimator.TrainSpec(
                lambda: input_fn(seed), max_steps=FLAGS.steps, hooks=[hook]
            ),
            tf.estimator.EvalSpec(lambda: input_fn(1000), steps=10),
        )
    else:
        classifier.train(lambda: input_fn(seed), [hook], max_steps=FLAGS.steps)
    if config.is_chief:
        # It evaluates by itself, since it needs only the checkpoint of the cluster.
        os.environ.pop("TF_CONFIG", None)
        config = tf.estimator.RunConfig(model_dir=FLAGS.model_dir)
        metrics = make_classifier(config, optimizer).evaluate(
            lambda: input_fn(1000), steps=10
        )
        print(
            f"step {metrics['global_step']}: loss {metrics['average_loss']:.3f}, "
            f"accuracy {metrics['accuracy']:.3f}"
        )


if __name__ == "__main__":
    app.run(main)
