"""Trains a model of TensorFlow Recommenders in one process, and then on a cluster.

It is a model of its tutorials, with the tasks of the others: retrieval and ranking. It
needs Keras 2, which is `TF_USE_LEGACY_KERAS=1` where there is another one.
"""

import json
import sys

import numpy as np
import programs
import tensorflow as tf
import tensorflow_recommenders as tfrs
from keras_sync_replicas import make_strategy

import tf_syncrep as tfs

layers = tf.keras.layers
USERS, MOVIES, BATCH, EPOCHS = 60, 40, 64, 3
RATINGS = 20 * BATCH
DIMENSIONS = 8
USER_IDS = [str(user) for user in range(USERS)]
TITLES = [f"Film {movie} ({1950 + movie})" for movie in range(MOVIES)]


def ratings():
    """Users, films, and stars; users see more of the films of their own kind."""
    random = np.random.default_rng(1)
    users = random.integers(USERS, size=RATINGS)
    movies = random.integers(MOVIES, size=RATINGS)
    # Beside each film there is one of each other kind.
    is_moved = random.random(RATINGS) < 0.7
    movies = np.where(is_moved, movies // 4 * 4 + users % 4, movies)
    stars = 1 + users % 3 + movies % 3
    return {
        "user_id": np.array(USER_IDS)[users],
        "movie_title": np.array(TITLES)[movies],
        "user_rating": (stars + random.normal(0, 0.2, RATINGS)).astype(np.float32),
    }


def batches(context=None):
    """Batches of ratings, or a worker's share of them."""
    data = tf.data.Dataset.from_tensor_slices(ratings()).batch(BATCH)
    if context is not None:
        data = data.shard(context.num_input_pipelines, context.input_pipeline_id)
    return data.cache()


def tower(vocabulary):
    """Embeds strings."""
    return tf.keras.Sequential(
        [
            layers.StringLookup(vocabulary=vocabulary, mask_token=None),
            layers.Embedding(len(vocabulary) + 1, DIMENSIONS),
        ]
    )


def retrieval_task():
    return tfrs.tasks.Retrieval(loss_metrics=[tf.keras.metrics.Mean("retrieval_loss")])


def ranking_task():
    # The tutorials' loss has no reduction, which Keras 2 refuses with any strategy.
    return tfrs.tasks.Ranking(
        loss=tf.keras.losses.MeanSquaredError(reduction="sum"),
        metrics=[tf.keras.metrics.RootMeanSquaredError("error_of_stars")],
    )


class BothTasks(tfrs.Model):
    """The same towers for both tasks, whose losses have weights."""

    def __init__(self):
        super().__init__()
        self.movie_model, self.user_model = tower(TITLES), tower(USER_IDS)
        self.rating_model = tf.keras.Sequential(
            [layers.Dense(16, activation="relu"), layers.Dense(1)]
        )
        self.rating_task, self.retrieval_task = ranking_task(), retrieval_task()
        self.rating_weight, self.retrieval_weight = 1.0, 0.5

    def call(self, features):
        users = self.user_model(features["user_id"])
        movies = self.movie_model(features["movie_title"])
        stars = self.rating_model(tf.concat([users, movies], axis=1))
        return users, movies, stars

    def compute_loss(self, features, training=False):
        del training
        stars = features.pop("user_rating")
        users, movies, predictions = self(features)
        rating_loss = self.rating_task(labels=stars, predictions=predictions)
        retrieval_loss = self.retrieval_task(users, movies)
        return self.rating_weight * rating_loss + self.retrieval_weight * retrieval_loss


# The logs also have the losses of last steps.
METRICS = ("error_of_stars", "retrieval_loss")


def main(is_of_cluster):
    """The results of each way, in this process or on the cluster of `TF_CONFIG`."""
    strategy = make_strategy() if is_of_cluster else tf.distribute.get_strategy()
    ways = {"sent": batches()} | ({"of workers": batches} if is_of_cluster else {})
    results = {}
    for way, data in ways.items():
        tf.keras.utils.set_random_seed(1)
        with strategy.scope():
            model = BothTasks()
            model.compile(tf.keras.optimizers.Adagrad(0.1))
        fit = tfs.keras.fit if is_of_cluster else tf.keras.Model.fit
        history = fit(model, data, epochs=EPOCHS, verbose=0)
        results[way] = {
            "weights": [x.numpy().tolist() for x in model.trainable_variables],
            "iterations": int(model.optimizer.iterations.numpy()),
            "metrics": {k: v for k, v in history.history.items() if k in METRICS},
        }
    return results


if __name__ == "__main__":
    programs.report(main(*map(json.loads, sys.argv[1:])))
