"""A program that is killed (SIGKILL) in its warm start, and is started again."""

import os
import signal

import numpy as np
import programs
import pytest
import tensorflow as tf
from warm_models import make, saved, tables_of, train

import tf_syncrep as tfs
from tf_syncrep.python.checkpoint.function_calls import FunctionCalls

STEPS = 2


def start(folder, source, epochs, kill_after=None):
    """Trains; `kill_after`: the step of the warm start after which it dies."""
    if kill_after:
        step = getattr(FunctionCalls, kill_after)

        def die(*args):
            step(*args)
            os.kill(os.getpid(), signal.SIGKILL)

        setattr(FunctionCalls, kill_after, die)
    model = make({"user": 12})
    checkpoint = tfs.keras.Checkpoint(folder, warm_start=source)
    began = {}

    class Begins(tf.keras.callbacks.Callback):
        def on_train_batch_begin(self, batch, logs=None):
            if not began:
                began["iterations"] = int(model.optimizer.iterations)
                began.update((x, y.tolist()) for x, y in tables_of(model).items())

    data = tf.data.Dataset.from_tensors((np.zeros([4, 1], np.int64), np.ones([4, 1])))
    tfs.keras.fit(
        model,
        data.repeat(),
        epochs=epochs,
        steps_per_epoch=STEPS,
        callbacks=[checkpoint, Begins()],
        verbose=0,
    )
    report = checkpoint.warm_started
    return began, report and report["tables/user"].rows


@pytest.mark.slow
@pytest.mark.parametrize("kill_after", ["restore", "assign"])
def test_the_next_start_takes_all_of_it_again(kill_after, tmp_path):
    """Once there is a checkpoint of its own, training goes on from that."""
    old = train(make({"user": 10}))
    saved(old, tmp_path / "old")
    folder, source = str(tmp_path / "new"), str(tmp_path / "old")
    for _ in range(2):
        command = programs.call_command(start, folder, source, 1, kill_after)
        finished = programs.run_source(*command[2:])
        assert finished.returncode in (-signal.SIGKILL, 128 + signal.SIGKILL)
        assert not [*(tmp_path / "new").glob("ckpt-*")]
    began, rows = programs.call(start, folder, source, 1)
    assert rows == 10
    assert began["iterations"] == 3
    for name, values in tables_of(old).items():
        np.testing.assert_array_equal(np.float32(began[name][:10]), values, name)
    began, rows = programs.call(start, folder, source, 2)
    assert rows is None
    assert began["iterations"] == 3 + STEPS
