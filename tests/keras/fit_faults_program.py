"""Trains by `tfs.keras.fit`, slowly enough for a test to kill other tasks meanwhile.

Argument: how many steps. Prints a line when the first tenth of them is done.
"""

import json
import sys

import keras_variants
import programs
import tensorflow as tf

import tf_syncrep as tfs


class Tell(tf.keras.callbacks.Callback):
    def __init__(self, num_steps):
        super().__init__()
        self.num_steps, self.num_batches = num_steps, 0

    def on_train_batch_end(self, batch, logs=None):
        self.num_batches += 1
        if batch == self.num_steps // 10:
            print("UNDER WAY", flush=True)


def main():
    num_steps = json.loads(sys.argv[1])
    strategy = tf.distribute.ParameterServerStrategy(
        tf.distribute.cluster_resolver.TFConfigClusterResolver()
    )
    with strategy.scope():
        model = keras_variants.small_model()
        model.compile(tfs.keras.AdamAsync(0.01), loss="mse", metrics=["mae"])
    words, targets = keras_variants.small_data()
    dataset = tf.data.Dataset.from_tensors((words, targets))
    tell = Tell(num_steps)
    raised, loss = None, None
    try:
        history = tfs.keras.fit(
            model,
            dataset,
            steps_per_epoch=num_steps,
            epochs=2,
            verbose=0,
            callbacks=[tell],
            validation_data=dataset,
        )
        loss = history.history["val_loss"]
    except Exception as error:
        raised = f"{type(error).__name__}: {error}"
    result = {"raised": raised, "loss": loss, "batches": tell.num_batches}
    if raised is None:
        result["iterations"] = int(model.optimizer.iterations.numpy())
    programs.report(result)


if __name__ == "__main__":
    main()
