"""Reads work queues on all workers of a cluster, one of which a test kills.

Argument: a folder, in which a file "killed" tells that the worker is dead.
"""

import json
import pathlib
import sys

import programs
import tensorflow as tf
import waiting
from keras_sync_replicas import make_strategy

import tf_syncrep as tfs

WORKERS, ITEMS, EPOCHS = 3, 30, 3
# This is more than there are items: a reader that has read its last one asks again.
STEPS = 300


class Reading:
    """Reads a queue of its own, and counts how often it saw each item."""

    def __init__(self, strategy, coordinator):
        with strategy.scope():
            self.queue = tfs.data.WorkQueue(
                ITEMS, num_epochs=EPOCHS, shuffle=True, seed=3
            )
            self._read = tf.Variable(tf.zeros([ITEMS], tf.int64))
        self._coordinator = coordinator
        dataset = coordinator.create_per_worker_dataset(
            lambda context=None: self.queue.dataset()
        )
        self._iterator = iter(dataset)

        @tf.function
        def step(iterator):
            item = iterator.get_next_as_optional()
            if item.has_value():
                one = tf.ones([1], tf.int64)
                self._read.scatter_add(tf.IndexedSlices(one, [item.get_value()]))

        self._step = step

    def make_steps(self, number):
        for _ in range(number):
            self._coordinator.schedule(self._step, args=(self._iterator,))
        self._coordinator.join()

    def result(self):
        return {"read": self._read.numpy().tolist(), "stats": self.queue.stats()}


def main():
    killed = pathlib.Path(json.loads(sys.argv[1])) / "killed"
    strategy = make_strategy()
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
    undisturbed = Reading(strategy, coordinator)
    undisturbed.make_steps(STEPS)
    disturbed = Reading(strategy, coordinator)
    disturbed.make_steps(ITEMS)
    while disturbed.queue.stats()["in_flight"] < WORKERS:
        disturbed.make_steps(1)  # until each worker has begun an item
    print("half", flush=True)
    waiting.until(killed.exists)
    disturbed.make_steps(STEPS)
    programs.report(
        {"undisturbed": undisturbed.result(), "disturbed": disturbed.result()}
    )


if __name__ == "__main__":
    main()
