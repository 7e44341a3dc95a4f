"""Trains in one epoch that is longer than any test.

The argument says how: "synchronous", with two gradients of three; "asynchronous", by
`tfs.keras.fit`; or "custom", by steps that this program schedules itself. Prints a line
for each step that has ended.
"""

import json
import sys
import threading
import time

import keras_sync_replicas as helpers
import tensorflow as tf

import tf_syncrep as tfs

STEP = "step is over"


def train_by_fit(is_synchronous):
    with helpers.make_strategy().scope():
        model = helpers.make_model()
        optimizer = tfs.keras.AdamAsync(1e-3)
        if is_synchronous:
            optimizer = tfs.keras.SyncReplicas(optimizer, 2, 3)
        model.compile(optimizer, loss=helpers.loss)
    tell = tf.keras.callbacks.LambdaCallback(
        on_train_batch_end=lambda batch, logs: print(STEP, flush=True)
    )
    tfs.keras.fit(
        model, helpers.dataset(), steps_per_epoch=10**6, verbose=0, callbacks=[tell]
    )


def train_by_own_loop():
    tfs.keras.isolate_workers()
    strategy = helpers.make_strategy()
    with strategy.scope():
        weight, num_steps = tf.Variable(0.0), tf.Variable(0)
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
    batches = iter(coordinator.create_per_worker_dataset(helpers.dataset))

    @tf.function
    def step(batches):
        inputs, _ = next(batches)
        weight.assign_add(tf.reduce_sum(tf.cast(inputs, tf.float32)))
        num_steps.assign_add(1)

    def schedule():
        while True:
            coordinator.schedule(step, args=(batches,))

    threading.Thread(target=schedule, daemon=True).start()
    told = 0
    while True:
        now = int(num_steps)
        print(f"{STEP}\n" * (now - told), end="", flush=True)
        told = now
        time.sleep(0.01)


def main(kind):
    if kind == "custom":
        train_by_own_loop()
    else:
        train_by_fit(kind == "synchronous")


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
