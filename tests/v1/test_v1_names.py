"""install_v1_names, and scripts that rely on it."""

import importlib.metadata
import os
import sys

import commands
import programs
import pytest
import tensorflow as tf

# The example of DeepRec's manual, which is what its users' scripts look like. The only
# changed line is the import of TensorFlow.
MANUALS_EXAMPLE = """
import tensorflow.compat.v1 as tf

var = tf.get_variable(
    "var_0", shape=[10, 16], initializer=tf.ones_initializer(tf.float32)
)

emb = tf.nn.embedding_lookup(var, tf.cast([0, 1, 2, 5, 6, 7], tf.int64))
fun = tf.multiply(emb, 2.0, name="multiply")
loss = tf.reduce_sum(fun, name="reduce_sum")

gs = tf.train.get_or_create_global_step()
opt = tf.train.AdamAsyncOptimizer(0.1)

g_v = opt.compute_gradients(loss)
train_op = opt.apply_gradients(g_v)

init = tf.global_variables_initializer()

sess_config = tf.ConfigProto(allow_soft_placement=True, log_device_placement=False)
with tf.Session(config=sess_config) as sess:
    sess.run([init])
    losses = []
    for _ in range(3):
        losses.append(sess.run([loss, emb, train_op])[0])
"""

CHECKS = """
from tensorflow.compat import v1
import tensorflow.compat.v1.train as train
from tensorflow.compat.v1.train import AdamAsyncOptimizer, SyncReplicasOptimizer

imported = (AdamAsyncOptimizer, SyncReplicasOptimizer)
for name, found in zip(("AdamAsyncOptimizer", "SyncReplicasOptimizer"), imported):
    expected = getattr(tf_syncrep.train, name)
    assert found is expected
    assert getattr(train, name) is expected
    for module in (held, tf, v1, tensorflow.compat.v1, tf.compat.v1):
        assert getattr(module.train, name) is expected, module
    assert name in dir(tf.train)
"""


def test_manuals_example_runs_if_tensorflows_v1_is_imported_after_the_names(tmp_path):
    program = """
import tf_syncrep
tf_syncrep.install_v1_names()
import tensorflow
held = tensorflow.compat.v1
import tensorflow.compat.v1 as tf
tf.disable_v2_behavior()
"""
    example = MANUALS_EXAMPLE + "assert abs(losses[2] - 153.6) < 1e-3, losses\n"
    # Nothing is imported before, and in a folder of its own only installed packages are
    # found.
    words = ("-c", program + example + CHECKS)
    result = commands.run(*words, program=[sys.executable], cwd=tmp_path)
    assert result.process.returncode == 0, result.output


def test_names_are_there_if_tensorflows_v1_was_imported_before():
    program = """
import tensorflow
held = tensorflow.compat.v1
import tensorflow.compat.v1 as tf
import tensorflow.compat.v1.train
import tf_syncrep
tf_syncrep.install_v1_names()
tf_syncrep.install_v1_names()
"""
    result = programs.run_source(program + CHECKS)
    assert result.returncode == 0, result.stderr


LAYERS = """
import tensorflow.compat.v1 as tf
import tf_syncrep
tf_syncrep.install_v1_names()
tf_syncrep.install_v1_names()
tf.disable_v2_behavior()
from tensorflow.compat import v1
values = tf.placeholder(tf.float32, [None, 4])
"""


def in_keras(version, source):
    """Runs a program of v1 with Keras 3, or with Keras 2."""
    package = "keras" if version == "3" else "tf_keras"
    try:
        installed = importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        pytest.skip(f"{package} is not installed")
    if not installed.startswith(version):
        pytest.skip(f"Keras {version} is not installed, but {package} {installed}")
    legacy = "1" if version == "2" else "0"
    environment = {**os.environ, "TF_USE_LEGACY_KERAS": legacy}
    return programs.run_source(LAYERS + source, env=environment)


@pytest.mark.parametrize(
    ("expression", "name"),
    [
        ("tf.layers.dense(values, 3)", "tf.layers.dense"),
        ("v1.layers.Dense(3)", "tf.layers.Dense"),
        ("tf.compat.v1.layers.dense(values, 3)", "tf.layers.dense"),
        ("tf.nn.rnn_cell.LSTMCell(3)", "tf.nn.rnn_cell.LSTMCell"),
    ],
)
def test_layers_that_keras_3_has_not_are_an_error_that_says_what_to_install(
    expression, name
):
    stderr = in_keras("3", expression).stderr
    minor = ".".join(tf.__version__.split(".")[:2])
    assert (
        f"AttributeError: `{name}` needs Keras 2: pip install 'tf_keras=={minor}.*', "
        "and set TF_USE_LEGACY_KERAS=1 before TensorFlow is imported."
    ) in stderr


def test_layers_of_keras_2_stay_tensorflows():
    source = "tf.layers.dense(values, 3), tf.nn.rnn_cell.LSTMCell(3)"
    result = in_keras("2", source)
    assert result.returncode == 0, result.stderr
