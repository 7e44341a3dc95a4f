"""Trains in one process, and is sent SIGTERM at a step; `case` says what else is so.

Arguments: a folder for checkpoints, the case, and the number of that step, or -1.
"""

import signal
import sys
import threading

import numpy as np
import tensorflow as tf

import tf_syncrep as tfs

STEPS, EPOCHS = 5, 4


class Terminated(tf.keras.callbacks.Callback):
    def __init__(self, step, after_training):
        super().__init__()
        self._left, self._after_training = step, after_training

    def on_train_batch_end(self, batch, logs=None):
        if self._left == 0 and not self._after_training:
            signal.raise_signal(signal.SIGTERM)  # it arrives at once
        self._left -= 1

    def on_train_end(self, logs=None):
        if self._after_training:
            signal.raise_signal(signal.SIGTERM)  # it arrives at once


def train(folder, case, step):
    layers = [tf.keras.layers.Input((1,)), tf.keras.layers.Dense(1)]
    model = tf.keras.Sequential(layers)
    model.compile(tfs.keras.SGD(0.1), "mse")
    checkpoint = tfs.keras.Checkpoint(folder, every_n_steps=3)
    callbacks = [Terminated(step, case == "after the last step")]
    if case != "no checkpoint":
        callbacks.append(checkpoint)
    x = np.ones([STEPS, 1], np.float32)
    fit = tfs.keras.fit if case == "tfs.keras.fit" else tf.keras.Model.fit
    fit(model, x, x, batch_size=1, epochs=EPOCHS, verbose=0, callbacks=callbacks)
    print("trained", int(model.optimizer.iterations), flush=True)


if __name__ == "__main__":
    folder, case, step = sys.argv[1:]
    if case == "a handler":
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(9))
    if case == "a handler that returns":
        signal.signal(signal.SIGTERM, lambda *_: print("handled", flush=True))
    if case == "ignored":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if case == "in a thread":
        thread = threading.Thread(target=train, args=(folder, case, int(step)))
        thread.start()
        thread.join()
    else:
        train(folder, case, int(step))
