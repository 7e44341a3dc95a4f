"""Trains in one process, and is sent SIGTERM at a step; `case` says what else is so.

Arguments: a folder for checkpoints, the case, and the number of that step, or -1.
"""

import contextlib
import signal
import sys
import threading

import numpy as np
import tensorflow as tf
from waiting import until

import tf_syncrep as tfs

STEPS, EPOCHS = 5, 4


class Terminated(tf.keras.callbacks.Callback):
    def __init__(self, step, case):
        super().__init__()
        self._left, self._case = step, case

    def on_train_batch_end(self, batch, logs=None):
        if self._left == 0 and self._case != "after the last step":
            terminate(self._case)
        self._left -= 1

    def on_train_end(self, logs=None):
        if self._case == "after the last step":
            terminate(self._case)


class Waiting(tf.keras.callbacks.Callback):
    """Lets a `fit` wait for the program's end."""

    def __init__(self):
        super().__init__()
        self.begun = threading.Event()

    def on_train_begin(self, logs=None):
        self.begun.set()
        threading.Event().wait()


def terminate(case):
    if case == "within another fit":
        return fit(tf.keras.Model.fit, [Terminated(0, "")])
    if case == "beside another fit":
        waiting = Waiting()
        arguments = (tf.keras.Model.fit, [waiting])
        threading.Thread(target=fit, args=arguments, daemon=True).start()
        waiting.begun.wait()
        before = listening()
        signal.raise_signal(signal.SIGTERM)
        until(lambda: listening() < before)
        return None
    signal.raise_signal(signal.SIGTERM)  # it arrives at once
    if case == "no checkpoint, and a handler":
        until(lambda: listening() == 0)
    if case == "an error":
        raise ValueError("of a callback")
    return None


def listening():
    return sum(thread.name == "notice" for thread in threading.enumerate())


def fit(function, callbacks):
    layers = [tf.keras.layers.Input((1,)), tf.keras.layers.Dense(1)]
    model = tf.keras.Sequential(layers)
    model.compile(tfs.keras.SGD(0.1), "mse")
    x = np.ones([STEPS, 1], np.float32)
    function(model, x, x, batch_size=1, epochs=EPOCHS, verbose=0, callbacks=callbacks)
    return int(model.optimizer.iterations)


def train(folder, case, step):
    checkpoint = tfs.keras.Checkpoint(folder, every_n_steps=3)
    callbacks = [Terminated(step, case)]
    if not case.startswith("no checkpoint"):
        callbacks.append(checkpoint)
    function = tfs.keras.fit if case == "tfs.keras.fit" else tf.keras.Model.fit
    with contextlib.suppress(ValueError):
        print("trained", fit(function, callbacks), flush=True)
    print("went on", flush=True)


if __name__ == "__main__":
    folder, case, step = sys.argv[1:]
    if case == "a handler":
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(9))
    if case in ("a handler that returns", "no checkpoint, and a handler"):
        signal.signal(signal.SIGTERM, lambda *_: print("handled", flush=True))
    if case == "ignored":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if case == "in a thread":
        thread = threading.Thread(target=train, args=(folder, case, int(step)))
        thread.start()
        thread.join()
    else:
        train(folder, case, int(step))
