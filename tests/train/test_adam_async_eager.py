"""AdamAsyncOptimizer without a graph: eagerly, in tf.function, under strategies."""

import subprocess
import sys

import adam_async_reference as reference
import numpy as np
import pytest
import tensorflow as tf
import v1_models

import tf_syncrep as tfs

OPTIONS = {"beta1": 0.8, "beta2": 0.95, "epsilon": 1e-6}
STEPS = 4

# Trains under a strategy over two devices, writes the table and what its replicas
# hold, and exits with an error if these differ. Two halves of a GPU are two devices.
_STRATEGY_SCRIPT = """
import sys

import numpy as np
import tensorflow as tf

device = sys.argv[3]
tf.config.set_logical_device_configuration(
    tf.config.list_physical_devices(device)[0],
    [
        tf.config.LogicalDeviceConfiguration(
            memory_limit=1024 if device == "GPU" else None
        )
    ]
    * 2,
)
names = [f"{device}:0", f"{device}:1"]

import tf_syncrep as tfs
import v1_models

if sys.argv[1] == "mirrored":
    strategy = tf.distribute.MirroredStrategy(names)
else:
    strategy = tf.distribute.experimental.CentralStorageStrategy(names)
with strategy.scope():
    table = tf.Variable(tf.constant(v1_models.TABLE, tf.float32))
    vector = tf.Variable(tf.constant(v1_models.VECTOR, tf.float32))
optimizer = tfs.train.AdamAsyncOptimizer(0.05, beta1=0.8, beta2=0.95, epsilon=1e-6)


@tf.function
def train(rows, row_grads, vector_grad):
    def replica(rows, row_grads, vector_grad):
        # Gradients of replicas are summed: each gives one half.
        optimizer.apply_gradients(
            [
                (tf.IndexedSlices(row_grads / 2, rows, tf.constant([9, 4])), table),
                (vector_grad / 2, vector),
            ]
        )

    strategy.run(replica, (rows, row_grads, vector_grad))


for step in range(4):
    rows, row_grads, vector_grad = v1_models.gradients(step)
    train(
        tf.constant(rows),
        tf.constant(row_grads, tf.float32),
        tf.constant(vector_grad, tf.float32),
    )

for variable in (table, vector):
    slots = [optimizer.get_slot(variable, x) for x in optimizer.get_slot_names()]
    for state in (variable, *slots):
        first, *others = strategy.experimental_local_results(state)
        for other in others:
            np.testing.assert_array_equal(first, other)
np.savez(sys.argv[2], table=table.numpy(), vector=vector.numpy())
"""


def expected():
    """Table and vector after STEPS steps, by the twin."""
    table = reference.initial_state(v1_models.TABLE, 0.8, 0.95)
    vector = reference.initial_state(v1_models.VECTOR, 0.8, 0.95)
    for step in range(STEPS):
        rows, row_grads, vector_grad = v1_models.gradients(step)
        table = reference.adam_async_sparse(
            *table, lr=0.05, **OPTIONS, grad=row_grads, indices=rows
        )
        vector = reference.adam_async_dense(
            *vector, lr=0.05, **OPTIONS, grad=vector_grad
        )
    return table.var, vector.var


@pytest.mark.parametrize("in_function", [False, True], ids=["eager", "function"])
def test_minimize_of_a_loss_function_agrees_with_the_twin(in_function):
    table = tf.Variable(v1_models.TABLE, dtype=tf.float32)
    vector = tf.Variable(v1_models.VECTOR, dtype=tf.float32)
    optimizer = tfs.train.AdamAsyncOptimizer(0.05, **OPTIONS)

    def train(rows, row_grads, vector_grad):
        def loss():
            found = tf.nn.embedding_lookup(table, rows)
            return tf.reduce_sum(found * row_grads) + tf.reduce_sum(
                vector * vector_grad
            )

        optimizer.minimize(loss, var_list=[table, vector])

    if in_function:
        train = tf.function(train)
    for step in range(STEPS):
        rows, row_grads, vector_grad = v1_models.gradients(step)
        train(
            tf.constant(rows),
            tf.constant(row_grads, tf.float32),
            tf.constant(vector_grad, tf.float32),
        )
    for actual, want in zip((table, vector), expected(), strict=True):
        np.testing.assert_allclose(actual, want, rtol=1e-5, atol=1e-6)


def test_a_function_is_not_traced_anew_at_each_step():
    x = tf.Variable([1.0, 2.0])
    optimizer = tfs.train.AdamAsyncOptimizer(0.1)
    traces = []

    @tf.function
    def train(grad):
        traces.append(None)
        optimizer.apply_gradients([(grad, x)])

    train(tf.ones([2]))
    first = len(traces)
    for _ in range(3):
        train(tf.ones([2]))
    assert len(traces) == first
    assert len(optimizer.variables()) == 4


def test_one_optimizer_serves_eager_code_and_functions():
    x = tf.Variable([1.0, 2.0])
    optimizer = tfs.train.AdamAsyncOptimizer(0.1, epsilon=0.0)

    @tf.function
    def train():
        optimizer.apply_gradients([(tf.ones([2]), x)])

    train()
    optimizer.apply_gradients([(tf.ones([2]), x)])
    train()
    np.testing.assert_allclose(x, [0.7, 1.7], rtol=1e-5)
    power = optimizer.get_slot(x, "beta1_power")
    np.testing.assert_allclose(power, 0.9**4, rtol=1e-6)


@pytest.mark.parametrize(
    "make_strategy",
    [
        tf.distribute.OneDeviceStrategy,
        lambda name: tf.distribute.MirroredStrategy([name]),
    ],
    ids=["one_device", "mirrored"],
)
def test_one_replica_agrees_with_the_twin(make_strategy, device):
    strategy = make_strategy(f"{device}:0")
    with strategy.scope():
        vector = tf.Variable(tf.constant(v1_models.VECTOR, tf.float32))
    optimizer = tfs.train.AdamAsyncOptimizer(0.05, **OPTIONS)

    @tf.function
    def train(grad):
        strategy.run(lambda grad: optimizer.apply_gradients([(grad, vector)]), (grad,))

    for step in range(STEPS):
        train(tf.constant(v1_models.gradients(step)[2], tf.float32))
    np.testing.assert_allclose(vector.numpy(), expected()[1], rtol=1e-5)


@pytest.mark.parametrize("strategy", ["mirrored", "central_storage"])
def test_two_replicas_agree_with_the_twin_and_with_each_other(
    strategy, device, tmp_path
):
    path = tmp_path / "values.npz"
    program = f"import sys\nsys.path[:] = {sys.path!r}\n{_STRATEGY_SCRIPT}"
    result = subprocess.run(
        [sys.executable, "-c", program, strategy, path, device],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    with np.load(path) as values:
        for name, want in zip(("table", "vector"), expected(), strict=True):
            np.testing.assert_allclose(values[name], want, rtol=1e-5, atol=1e-6)


def test_sync_replicas_optimizer_says_eagerly_what_to_use_instead():
    optimizer = tfs.train.SyncReplicasOptimizer(
        tfs.train.AdamAsyncOptimizer(), replicas_to_aggregate=2
    )
    variable = tf.Variable(1.0)
    with pytest.raises(RuntimeError, match=r"tfs\.keras\.SyncReplicas.*eager mode"):
        optimizer.minimize(lambda: variable**2, tf.Variable(0, dtype=tf.int64))
