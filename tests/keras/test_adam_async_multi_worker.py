"""AdamAsync under MultiWorkerMirroredStrategy, in two real processes.

Each task has one replica, whose number is the task's.
"""

import clusters
import keras_variants
import numpy as np
import programs
import pytest
import replica_steps
import tensorflow as tf

import tf_syncrep as tfs

pytestmark = pytest.mark.ci

CONTEXTS = ("replica", "cross_replica")
TASKS = ("worker-0", "worker-1")
each_context = pytest.mark.parametrize("context", CONTEXTS)


def train(strategy, context):
    """Three steps; returns the variables and slots of this task."""
    with strategy.scope():
        variables = replica_steps.make_variables()
        optimizer = tfs.keras.AdamAsync(0.25, weight_decay=0.5, global_clipnorm=100.0)
        optimizer.build(variables)
    replica_steps.train(strategy, context, optimizer, variables, tf.function)
    states = [keras_variants.state_of(optimizer, x) for x in variables]
    return {
        "states": [[x.tolist() for x in state] for state in states],
        "iterations": int(optimizer.iterations.numpy()),
    }


def train_v1(strategy):
    """Three steps of the v1 optimizer; returns the variables of this task."""
    with strategy.scope():
        variables = replica_steps.make_variables()
    optimizer = tfs.train.AdamAsyncOptimizer(0.25)
    replica_steps.train(strategy, "replica", optimizer, variables, tf.function)

    def state_of(variable):
        names = optimizer.get_slot_names()
        slots = (optimizer.get_slot(variable, name) for name in names)
        return [x.numpy().tolist() for x in (variable, *slots)]

    return [state_of(variable) for variable in variables]


def learn(strategy):
    """Trains a model on each task's half of the data, by fit if Keras supports it."""
    data = tf.data.Dataset.from_tensor_slices(keras_variants.small_data()).batch(16)
    options = tf.data.Options()
    policies = tf.data.experimental.AutoShardPolicy
    options.experimental_distribute.auto_shard_policy = policies.DATA
    data = data.with_options(options)
    with strategy.scope():
        model = keras_variants.small_model(tf.keras.layers.BatchNormalization())
        optimizer = tfs.keras.AdamAsync(keras_variants.slow_decay(0.05))
        model.compile(optimizer=optimizer, loss="mse")
    if keras_variants.IS_KERAS_3:
        losses = loop(strategy, model, optimizer, data)
    else:
        losses = model.fit(data, epochs=10, verbose=0).history["loss"]
    return {
        "losses": losses,
        "trained": [x.numpy().tolist() for x in model.trainable_variables],
        "iterations": int(optimizer.iterations.numpy()),
    }


def loop(strategy, model, optimizer, data):
    """The result of fit, which fails in Keras 3 under this strategy."""
    with strategy.scope():
        optimizer.build(model.trainable_variables)

    @tf.function
    def step(words, targets):
        def run(words, targets):
            def loss():
                errors = (model(words, training=True) - targets) ** 2
                return tf.reduce_mean(errors) / strategy.num_replicas_in_sync

            return keras_variants.update(optimizer, model.trainable_variables, loss)

        losses = strategy.run(run, args=(words, targets))
        return strategy.reduce(tf.distribute.ReduceOp.SUM, losses, axis=None)

    distributed = strategy.experimental_distribute_dataset(data)
    epochs = [[float(step(*batch)) for batch in distributed] for _ in range(10)]
    return [sum(losses) / len(losses) for losses in epochs]


def train_as_a_task():
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    updates = {context: train(strategy, context) for context in CONTEXTS}
    result = {"updates": updates, "v1": train_v1(strategy)}
    return {**result, "learning": learn(strategy)}


@pytest.fixture(scope="module")
def tasks():
    """The reports of both tasks."""
    cluster = clusters.Cluster(
        num_workers=2, num_ps=0, chief=False, env=programs.environment()
    )
    # It is not entered, since the tasks run the program and do not serve.
    try:
        for name in TASKS:
            cluster.start(name, programs.call_command(train_as_a_task))
        for name in TASKS:
            assert cluster.wait(name) == 0, cluster.output(name)[-5000:]
        return [programs.result_in(cluster.output(name)) for name in TASKS]
    finally:
        cluster.__exit__()


@each_context
def test_replicas_gradients_are_summed(tasks, context):
    variables = replica_steps.train_alone(tfs.keras.AdamAsync(0.25, weight_decay=0.5))
    for task in tasks:
        training = task["updates"][context]
        assert training["iterations"] == 3
        for (value, *_), expected in zip(training["states"], variables, strict=True):
            np.testing.assert_allclose(value, expected.numpy(), rtol=1e-5)


def test_v1_optimizer_sums_gradients_and_keeps_both_tasks_identical(tasks):
    variables = replica_steps.train_alone(tfs.train.AdamAsyncOptimizer(0.25))
    first, second = (task["v1"] for task in tasks)
    for (value, *_), expected in zip(first, variables, strict=True):
        np.testing.assert_allclose(value, expected.numpy(), rtol=1e-5)
    assert first == second
    assert [len(state) for state in first] == [5, 5]


@each_context
def test_variables_and_slots_are_identical_in_both_tasks(tasks, context):
    first, second = (task["updates"][context] for task in tasks)
    assert first == second


def test_cross_replica_update_is_as_good_as_a_replicas(tasks):
    for task in tasks:
        assert task["updates"]["cross_replica"] == task["updates"]["replica"]


def test_a_model_learns_and_stays_the_same_in_both_tasks(tasks):
    first, second = (task["learning"] for task in tasks)
    assert first["losses"][-1] < first["losses"][0] / 2
    assert first["iterations"] == 40
    assert first == second
