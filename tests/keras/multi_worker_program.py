"""Trains as one task of a MultiWorkerMirroredStrategy; reports the results.

Each task has one replica, whose number is the task's.
"""

import keras_variants
import programs
import tensorflow as tf

import tf_syncrep as tfs

CONTEXTS = ("replica", "cross_replica")


def gradients():
    """A sparse and a dense gradient, different in all replicas."""
    replica = tf.distribute.get_replica_context().replica_id_in_sync_group
    size = tf.cast(replica + 1, tf.float32)
    values = size * tf.ones([2, 2])
    table_gradient = tf.IndexedSlices(
        values, tf.stack([replica, 3]), tf.constant([5, 2])
    )
    return table_gradient, size * tf.ones([3])


def train(strategy, context):
    """Three steps; returns the variables and slots of this task."""
    with strategy.scope():
        variables = [tf.Variable(tf.ones([5, 2])), tf.Variable(tf.ones([3]))]
        optimizer = tfs.keras.AdamAsync(0.25, weight_decay=0.5, global_clipnorm=100.0)
        optimizer.build(variables)

    def update(*grads):
        optimizer.apply_gradients(zip(grads, variables, strict=True))

    @tf.function
    def step():
        if context == "replica":
            strategy.run(lambda: update(*gradients()))
        else:
            update(*strategy.run(gradients))

    with strategy.scope():
        for _ in range(3):
            step()
    states = [keras_variants.state_of(optimizer, x) for x in variables]
    return {
        "states": [[x.tolist() for x in state] for state in states],
        "iterations": int(optimizer.iterations.numpy()),
    }


def train_v1(strategy):
    """Three steps of the v1 optimizer; returns the variables of this task."""
    with strategy.scope():
        variables = [tf.Variable(tf.ones([5, 2])), tf.Variable(tf.ones([3]))]
    optimizer = tfs.train.AdamAsyncOptimizer(0.25)

    def replica():
        optimizer.apply_gradients(list(zip(gradients(), variables, strict=True)))

    @tf.function
    def step():
        strategy.run(replica)

    for _ in range(3):
        step()
    return [
        [
            x.numpy().tolist()
            for x in (
                variable,
                *(optimizer.get_slot(variable, y) for y in optimizer.get_slot_names()),
            )
        ]
        for variable in variables
    ]


def make_model():
    layers = tf.keras.layers
    tf.keras.utils.set_random_seed(1)
    return tf.keras.Sequential(
        [
            layers.Input((3,), dtype="int32"),
            layers.Embedding(20, 4),
            layers.Flatten(),
            layers.BatchNormalization(),
            layers.Dense(1),
        ]
    )


def learn(strategy):
    """Trains a model on each task's half of the data, by fit if Keras supports it."""
    data = tf.data.Dataset.from_tensor_slices(keras_variants.small_data()).batch(16)
    options = tf.data.Options()
    policies = tf.data.experimental.AutoShardPolicy
    options.experimental_distribute.auto_shard_policy = policies.DATA
    data = data.with_options(options)
    with strategy.scope():
        model = make_model()
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
            with tf.GradientTape() as tape:
                errors = (model(words, training=True) - targets) ** 2
                loss = tf.reduce_mean(errors) / strategy.num_replicas_in_sync
            variables = model.trainable_variables
            grads = tape.gradient(loss, variables)
            optimizer.apply_gradients(zip(grads, variables, strict=True))
            return loss

        losses = strategy.run(run, args=(words, targets))
        return strategy.reduce(tf.distribute.ReduceOp.SUM, losses, axis=None)

    distributed = strategy.experimental_distribute_dataset(data)
    epochs = [[float(step(*batch)) for batch in distributed] for _ in range(10)]
    return [sum(losses) / len(losses) for losses in epochs]


def main():
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    updates = {context: train(strategy, context) for context in CONTEXTS}
    result = {"updates": updates, "v1": train_v1(strategy)}
    programs.report({**result, "learning": learn(strategy)})


if __name__ == "__main__":
    main()
