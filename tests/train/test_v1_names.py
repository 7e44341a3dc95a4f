"""install_v1_names, and scripts that rely on it."""

import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf

import tf_syncrep as tfs

# The example of DeepRec's manual: what its users' scripts look like. Its one changed
# line is the import of TensorFlow.
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
    table = sess.run(tf.convert_to_tensor(var))
"""

IMPORT_ORDERS = {
    "installed_first": """
import tensorflow
held = tensorflow.compat.v1
import tf_syncrep
tf_syncrep.install_v1_names()
import tensorflow.compat.v1 as tf
""",
    "installed_last": """
import tensorflow
held = tensorflow.compat.v1
import tensorflow.compat.v1 as tf
import tensorflow.compat.v1.train
import tf_syncrep
tf_syncrep.install_v1_names()
tf_syncrep.install_v1_names()
""",
    "tf_syncrep_first": """
import tf_syncrep
tf_syncrep.install_v1_names()
import tensorflow
held = tensorflow.compat.v1
import tensorflow.compat.v1 as tf
""",
}

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


def run(program, folder):
    """Runs it in a folder of its own, where only installed packages are found."""
    result = subprocess.run(
        [sys.executable, "-c", program],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert result.returncode == 0, result.stderr


@pytest.mark.parametrize("order", IMPORT_ORDERS)
def test_names_are_there_under_every_name_of_the_module(order, tmp_path):
    run(IMPORT_ORDERS[order] + CHECKS, tmp_path)


def test_the_manuals_example_runs_as_a_script(tmp_path):
    run(
        "import tensorflow.compat.v1 as tf\n"
        "tf.disable_v2_behavior()\n"
        "import tf_syncrep\n"
        "tf_syncrep.install_v1_names()\n"
        + MANUALS_EXAMPLE
        + "assert abs(losses[2] - 153.6) < 1e-3, losses\n",
        tmp_path,
    )


@pytest.mark.parametrize("partitions", [None, 1, 3])
@pytest.mark.parametrize("use_resource", [False, True], ids=["ref", "resource"])
def test_the_manuals_example_runs_on_each_kind_of_variable(use_resource, partitions):
    tfs.install_v1_names()
    tf1 = tf.compat.v1
    partitioner = partitions and tf1.fixed_size_partitioner(partitions)
    namespace = {}
    with (
        tf.Graph().as_default(),
        tf1.variable_scope("", use_resource=use_resource, partitioner=partitioner),
    ):
        exec(MANUALS_EXAMPLE, namespace)

    # The same gradient at every step: Adam moves each row by the learning rate.
    np.testing.assert_allclose(namespace["losses"], [192.0, 172.8, 153.6], rtol=1e-6)
    assert np.count_nonzero(np.isclose(namespace["table"][:, 0], 0.7)) == 6
    assert np.count_nonzero(namespace["table"][:, 0] == 1.0) == 4


def test_the_classes_example_says_what_it_prints(capsys):
    docstring = tfs.train.AdamAsyncOptimizer.__doc__
    source = docstring.split("```python\n")[1].split("```")[0]
    source = "\n".join(line[4:] for line in source.splitlines())
    promised = [line.split("# ")[1] for line in source.splitlines() if "# " in line]
    exec(source, {})
    assert capsys.readouterr().out.split() == promised
