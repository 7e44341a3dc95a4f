"""`tf-syncrep launch` of a script that calls `tfs.keras.fit`, with a worker killed."""

import os
import re
import signal
import time

import commands
import keras_variants
import pytest

TRAINS = """
import os, sys
import tensorflow as tf
import tf_syncrep as tfs

resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
strategy = tf.distribute.ParameterServerStrategy(resolver)

def dataset(context):
    tf.print("reads as", context.input_pipeline_id)

    def batch(_):
        return tf.ones([4, 2]), tf.ones([4, 1])

    return tf.data.Dataset.range(1).repeat().map(batch)

with strategy.scope():
    model = tf.keras.Sequential([tf.keras.layers.Dense(1)])
    model.compile(OPTIMIZER, loss="mse")


class StopWhenTold(tf.keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        self.model.stop_training = os.path.exists(sys.argv[1])

tfs.keras.fit(
    model, dataset, epochs=10**6, steps_per_epoch=20, verbose=0,
    callbacks=[StopWhenTold()],
)
print("fit ended", flush=True)
"""
FAILS = """
import tensorflow as tf
import tf_syncrep as tfs

class OwnError(Exception):
    pass

class Model(tf.keras.Model):
    def train_step(self, data):
        BODY

resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
strategy = tf.distribute.ParameterServerStrategy(resolver)
with strategy.scope():
    inputs = tf.keras.Input([2])
    model = Model(inputs, tf.keras.layers.Dense(1)(inputs))
    optimizer = tfs.keras.SyncReplicas(tfs.keras.AdamAsync(), 2, 2)
    model.compile(optimizer, loss="mse")
batches = tf.data.Dataset.from_tensors((tf.ones([4, 2]), tf.ones([4, 1])))
tfs.keras.fit(model, batches.repeat(), steps_per_epoch=20, verbose=0)
"""
# It took a minute when the process waited for something that it cannot have.
END_SECS = 20.0


@pytest.mark.slow
@pytest.mark.skipif(
    not keras_variants.IS_KERAS_3, reason="Keras 2 has a fit of its own there"
)
@pytest.mark.parametrize(
    ("optimizer", "policy"),
    [
        ("tfs.keras.AdamAsync()", "restart"),
        ("tfs.keras.SyncReplicas(tf.keras.optimizers.Adam(), 2, 2)", "restart"),
        ("tfs.keras.SyncReplicas(tf.keras.optimizers.Adam(), 1, 2)", "continue"),
    ],
    ids=["asynchronous", "synchronous", "backup"],
)
def test_process_ends_soon_after_fit_and_a_worker_that_returns_has_its_number_again(
    optimizer, policy, tmp_path
):
    path, stop = tmp_path / "script.py", tmp_path / "stop"
    path.write_text(TRAINS.replace("OPTIMIZER", optimizer))
    reads = r"worker-1 \| reads as 1$"
    with commands.Command(
        "launch", "--workers", 2, "--on-worker-failure", policy, path, stop
    ) as command:
        pid = command.wait_for_line(r"worker-1 starts at \S+ \(pid (\d+)\)")[1]
        command.wait_for_line(reads)
        os.kill(int(pid), signal.SIGKILL)
        if policy == "restart":
            command.wait_for_line(reads, occurrence=2)
        else:
            command.wait_for_line("going on without it")
        stop.touch()
        command.wait_for_line("fit ended")
        ended = time.monotonic()
        assert command.wait() == 0, command.output
        assert time.monotonic() - ended < END_SECS
    # The coordinator reads nothing: it builds the model by the specs of the batches.
    read = [x.partition(" ")[2] for x in command.stderr if "reads as" in x]
    returned = 2 if policy == "restart" else 1
    assert sorted(read) == [
        "worker-0 | reads as 0",
        *returned * ["worker-1 | reads as 1"],
    ]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("body", "last"),
    [
        ('raise OwnError("in a trace")', r"(__main__\.)?OwnError: in a trace"),
        (
            'tf.debugging.check_numerics(data[0] / 0.0, "in a step")\n'
            "        return super().train_step(data)",
            r"in a step : Tensor had Inf values \[\[\{\{node .*\}\}\]\].*",
        ),
    ],
    ids=["trace", "step"],
)
def test_error_of_a_step_is_what_a_script_says_last(body, last, tmp_path):
    path = tmp_path / "script.py"
    path.write_text(FAILS.replace("BODY", body))
    result = commands.run(
        "launch", "--workers", 2, path, env={"TF_CPP_MIN_LOG_LEVEL": "0"}
    )
    assert result.process.returncode == 1
    lines = [x.split(" chief    | ", 1)[1:] for x in result.stderr]
    said = " ".join(" ".join(x for line in lines for x in line).split())
    assert re.search(f"{last}$", said), said[-2000:]
