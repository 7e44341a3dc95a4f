"""Trains as the coordinator of a ParameterServerStrategy; reports the results.

Arguments: the number of parts of variables, and the number of steps.
"""

import contextlib
import json
import sys
import tempfile

import keras_variants
import programs
import tensorflow as tf

import tf_syncrep as tfs

ROWS, DIM = 10, 4


def make_strategy(num_parts):
    partitioner = None
    if num_parts > 1:
        partitioners = tf.distribute.experimental.partitioners
        partitioner = partitioners.FixedShardsPartitioner(num_parts)
    return tf.distribute.ParameterServerStrategy(
        tf.distribute.cluster_resolver.TFConfigClusterResolver(),
        variable_partitioner=partitioner,
    )


def make_model():
    layers = tf.keras.layers
    tf.keras.utils.set_random_seed(1)
    return tf.keras.Sequential(
        [
            layers.Input((3,), dtype="int32"),
            layers.Embedding(ROWS, DIM),
            layers.Flatten(),
            layers.Dense(1),
        ]
    )


def gradient_of_ones(variable):
    """Sparse for the table and its parts, with row 1 twice; dense for the rest."""
    if variable.shape[1:] != (DIM,):
        return tf.ones(variable.shape)
    shape = tf.constant(list(variable.shape))
    return tf.IndexedSlices(tf.ones([2, DIM]), tf.constant([1, 1]), shape)


def report_on(optimizer, variable):
    """The place and the values of a variable, or part of one, and of its slots."""
    slots = optimizer.slots(variable).values()
    return {
        "device": keras_variants.native(variable).device,
        "slot_devices": [keras_variants.native(x).device for x in slots],
        "state": [x.numpy().tolist() for x in (variable, *slots)],
    }


def train_concurrently(strategy, coordinator, num_steps, **options):
    """Schedules steps of constant gradients, which all workers run at once."""
    with strategy.scope():
        model = make_model()  # Keras 2 refers only weakly to what its parts belong to.
        variables = model.trainable_variables
        optimizer = tfs.keras.AdamAsync(0.01, **options)
        optimizer.build(variables)
        steps = tf.Variable(0, dtype=tf.int64)
    start = [x.numpy().tolist() for x in variables]

    def update():
        grads = [gradient_of_ones(x) for x in variables]
        optimizer.apply_gradients(zip(grads, variables, strict=True))

    @tf.function
    def step():
        strategy.run(update)
        steps.assign_add(1)

    def outcome():
        return {
            "iterations": int(optimizer.iterations.numpy()),
            "variables": [report_on(optimizer, x) for x in variables],
        }

    for _ in range(num_steps):
        coordinator.schedule(step)
    coordinator.join()
    result = {"start": start, "steps": int(steps.numpy()), "scheduled": outcome()}
    # One more step comes from the coordinator, which is in cross-replica context.
    with strategy.scope():
        tf.function(update)()
    return {**result, "from_the_coordinator": outcome()}


def train_v1(strategy, coordinator, num_steps):
    """The same by the v1 optimizer, whose slots are made in the first step."""
    with strategy.scope():
        variables = [tf.Variable(tf.ones([ROWS, DIM])), tf.Variable(tf.ones([3]))]
    optimizer = tfs.train.AdamAsyncOptimizer(0.01)

    @tf.function
    def step():
        def update():
            grads = [gradient_of_ones(x) for x in variables]
            optimizer.apply_gradients(zip(grads, variables, strict=True))

        strategy.run(update)

    for _ in range(num_steps):
        coordinator.schedule(step)
    coordinator.join()

    def report_on_it(variable):
        names = optimizer.get_slot_names()
        slots = [optimizer.get_slot(variable, name) for name in names]
        return {
            "device": variable.device,
            "slot_devices": [slot.device for slot in slots],
            "value": variable.numpy().tolist(),
            "power": float(optimizer.get_slot(variable, "beta1_power").numpy()),
        }

    return [report_on_it(variable) for variable in variables]


def train_custom_loop(strategy, coordinator):
    """A model's own gradients in a scheduled loop, with all of Keras's extras."""
    words, targets = keras_variants.small_data()
    words, targets = tf.constant(words % ROWS), tf.constant(targets)
    with strategy.scope():
        model = make_model()
        optimizer = tfs.keras.AdamAsync(
            keras_variants.slow_decay(0.05),
            global_clipnorm=5.0,
            weight_decay=1e-4,
            use_ema=True,
            ema_overwrite_frequency=20,
        )
        optimizer.build(model.trainable_variables)

    @tf.function
    def step():
        def run():
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean((model(words, training=True) - targets) ** 2)
            variables = model.trainable_variables
            grads = tape.gradient(loss, variables)
            optimizer.apply_gradients(zip(grads, variables, strict=True))
            return loss

        return strategy.run(run)

    losses = [coordinator.schedule(step) for _ in range(60)]
    coordinator.join()
    losses = [float(x.fetch()) for x in losses]
    return {"losses": losses, "iterations": int(optimizer.iterations.numpy())}


def synchronous(inner):
    """No gradient comes late beside a spare one, so that the updates can be counted."""
    return tfs.keras.SyncReplicas(inner, 2, 2, spares=False)


def train_unbuilt(strategy, coordinator):
    """TensorFlow's tutorial, in which optimizers make their slots in the first step."""
    with strategy.scope():
        model = make_model()  # Keras 2 refers only weakly to what its parts belong to.
        variables = model.trainable_variables
        optimizers = {
            "adam_async": tfs.keras.AdamAsync(0.01),
            "sync_adam_async": synchronous(tfs.keras.AdamAsync(0.01)),
            "sync_adam": synchronous(tf.keras.optimizers.Adam(0.01)),
        }

    def place(variable):
        variable = keras_variants.native(variable)
        return [list(variable.shape), variable.device]

    def train(optimizer):
        is_synchronous = isinstance(optimizer, tfs.keras.SyncReplicas)
        gradient_step = optimizer.step if is_synchronous else contextlib.nullcontext

        def update():
            grads = [gradient_of_ones(x) for x in variables]
            optimizer.apply_gradients(zip(grads, variables, strict=True))

        @tf.function
        def step():
            with gradient_step():
                strategy.run(update)

        updater = optimizer.updater(strategy) if is_synchronous else gradient_step()
        with updater:
            for _ in range(8):
                coordinator.schedule(step)
            coordinator.join()
        return {
            "variables": [place(x) for x in variables],
            "slots": [place(x) for x in optimizer.variables],
            "updates": int(optimizer.iterations.numpy()),
        }

    return {name: train(optimizer) for name, optimizer in optimizers.items()}


def fit(strategy):
    """Model.fit, saved half way and continued by another model."""
    words, targets = keras_variants.small_data()
    dataset = tf.data.Dataset.from_tensors((words % ROWS, targets)).repeat()

    def compiled():
        with strategy.scope():
            model = make_model()
            optimizer = tfs.keras.AdamAsync(keras_variants.slow_decay(0.05))
            model.compile(optimizer=optimizer, loss="mse")
            model.optimizer.build(model.trainable_variables)
        return model

    def state(model):
        optimizer = model.optimizer
        return [report_on(optimizer, x)["state"] for x in model.trainable_variables]

    def run(model):
        history = model.fit(dataset, steps_per_epoch=20, epochs=1, verbose=0)
        return history.history["loss"][0]

    model, restored = compiled(), compiled()
    losses = [run(model)]
    with tempfile.TemporaryDirectory() as folder:
        path = tf.train.Checkpoint(model=model, optimizer=model.optimizer).save(
            f"{folder}/checkpoint"
        )
        checkpoint = tf.train.Checkpoint(model=restored, optimizer=restored.optimizer)
        checkpoint.restore(path).assert_consumed()
    result = {"saved": state(model), "restored": state(restored)}
    losses.append(run(restored))
    return {
        **result,
        "losses": losses,
        "iterations": int(restored.optimizer.iterations.numpy()),
        "powers": [x[3] for x in state(restored)],
    }


def main():
    num_parts, num_steps = map(json.loads, sys.argv[1:])
    strategy = make_strategy(num_parts)
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
    result = {"concurrent": train_concurrently(strategy, coordinator, num_steps)}
    if num_parts == 1:
        result["custom_loop"] = train_custom_loop(strategy, coordinator)
        result["unbuilt"] = train_unbuilt(strategy, coordinator)
        result["v1"] = train_v1(strategy, coordinator, num_steps)
    # Keras 3 has no fit under this strategy.
    if not keras_variants.IS_KERAS_3:
        result["fit"] = fit(strategy)
    programs.report(result)


if __name__ == "__main__":
    main()
