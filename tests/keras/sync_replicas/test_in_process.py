"""SyncReplicas in one process: k batches are like one batch k times as large."""

import keras_sync_replicas as helpers
import keras_variants
import numpy as np
import pytest
import tensorflow as tf
from same import assert_same

import tf_syncrep as tfs

K = 4
SIZE = 8  # of a batch


make_inner = helpers.OPTIMIZERS["averaged"]


def fit(optimizer, num_examples=64, epochs=1, **compile_options):
    model = keras_variants.small_model()
    model.compile(optimizer=optimizer, loss="mse", **compile_options)
    words, targets = keras_variants.small_data(num_examples)
    model.fit(words, targets, batch_size=SIZE, epochs=epochs, shuffle=False, verbose=0)
    return model


def of_sgd(quorum, rate=1.0, **options):
    return tfs.keras.SyncReplicas(tf.keras.optimizers.SGD(rate), quorum, **options)


def train_with_large_batches(optimizer, num_examples=64, epochs=1):
    model = keras_variants.small_model()
    words, targets = (x[:num_examples] for x in keras_variants.small_data(80))
    for _ in range(epochs):
        for i in range(0, num_examples, K * SIZE):
            part = slice(i, i + K * SIZE)
            keras_variants.train_on_batch(model, words[part], targets[part], optimizer)
    return model


def assert_same_weights(model, expected):
    assert_same(model.get_weights(), expected.get_weights(), 1e-5)


def test_fit_on_small_batches_is_training_on_large_ones():
    optimizer = tfs.keras.SyncReplicas(make_inner(), K)
    model = fit(optimizer, epochs=3)
    inner = make_inner()
    expected = train_with_large_batches(inner, epochs=3)
    inner.finalize_variable_values(expected.trainable_variables)
    assert_same_weights(model, expected)
    assert helpers.iterations_of(optimizer) == 6


def test_weights_stay_until_the_round_is_full():
    optimizer, variable = of_sgd(3), tf.Variable([0.0])
    seen = []
    for gradient in (1.0, 2.0, 6.0, 3.0):
        optimizer.apply_gradients([(tf.constant([gradient]), variable)])
        seen.append(float(variable[0]))
    assert seen == [0.0, 0.0, -3.0, -3.0]
    assert optimizer.stats() == {
        "step": 1,
        "quorum": 3,
        "updates": 1,
        "applied": 3,
        "pending": 1,
        "rejected": 0,
        "workers": {},
    }


@pytest.mark.parametrize(
    ("flush_last", "updates", "applied"), [(True, 3, 10), (False, 2, 8)]
)
def test_last_incomplete_round_of_fit_is_applied_or_dropped(
    flush_last, updates, applied
):
    optimizer = of_sgd(K, 0.1, flush_last=flush_last)
    model = fit(optimizer, num_examples=80)
    stats = optimizer.stats()
    assert (stats["updates"], stats["applied"]) == (updates, applied)
    assert stats["pending"] == 0
    # The large batch that ends early has the last two batches in it.
    sgd = tf.keras.optimizers.SGD(0.1)
    assert_same_weights(model, train_with_large_batches(sgd, applied * SIZE))


def test_nonfinite_gradient_is_dropped_on_request():
    optimizer, variable = of_sgd(2, reject_nonfinite=True), tf.Variable([0.0])
    for gradient in (1.0, float("nan"), float("inf"), 3.0):
        optimizer.apply_gradients([(tf.constant([gradient]), variable)])
    assert variable.numpy() == [-2.0]
    assert optimizer.stats()["rejected"] == 2


def test_quorum_can_be_changed_between_batches():
    optimizer, variable = of_sgd(3), tf.Variable([0.0])

    @tf.function
    def step(gradient):
        optimizer.apply_gradients([(gradient, variable)])

    step(tf.constant([1.0]))
    optimizer.configure(2, 2)
    step(tf.constant([3.0]))
    assert variable.numpy() == [-2.0]
    assert optimizer.get_config()["replicas_to_aggregate"] == 2


def test_gradients_of_another_kind_are_refused():
    optimizer, table = of_sgd(3), tf.Variable(tf.zeros([5, 1]))
    optimizer.apply_gradients([(tf.ones([5, 1]), table)])
    sparse = tf.IndexedSlices(tf.ones([1, 1]), tf.constant([1]), (5, 1))
    with pytest.raises(ValueError, match=r"sparse float32 for .*; after dense"):
        optimizer.apply_gradients([(sparse, table)])


def test_second_set_of_variables_is_refused_and_the_first_goes_on():
    optimizer = of_sgd(2)
    one, other = tf.Variable([0.0]), tf.Variable([0.0])
    optimizer.build([one, other])
    optimizer.apply_gradients([(tf.ones([1]), one)])
    message = "train other variables with a separate optimizer"
    with pytest.raises(ValueError, match=message):
        optimizer.apply_gradients([(tf.ones([1]), other)])
    optimizer.apply_gradients([(tf.ones([1]), one)])
    assert (one.numpy(), other.numpy()) == ([-1.0], [0.0])


def test_gradient_accumulation_is_the_same_by_its_name(caplog):
    model = fit(tfs.keras.GradientAccumulation(make_inner(), K), num_examples=80)
    assert_same_weights(model, fit(tfs.keras.SyncReplicas(make_inner(), K), 80))
    assert "GradientAccumulation says so" in caplog.text  # only SyncReplicas says so
    assert caplog.text.count("trains in this process alone") == 1


def test_gradient_accumulation_is_saved_and_goes_on(tmp_path):
    model = fit(tfs.keras.GradientAccumulation(tfs.keras.AdamAsync(0.05), K))
    model.save(tmp_path / "model.keras")
    restored = tf.keras.models.load_model(tmp_path / "model.keras")
    assert type(restored.optimizer) is tfs.keras.GradientAccumulation
    words, targets = keras_variants.small_data(64)
    for each in (model, restored):
        each.fit(words, targets, batch_size=SIZE, shuffle=False, verbose=0)
    assert_same_weights(restored, model)
    assert restored.optimizer.stats()["step"] == 4


def test_gradient_of_another_shape_is_refused_and_the_round_goes_on():
    optimizer, variable = of_sgd(2), tf.Variable([0.0, 0.0])

    @tf.function(input_signature=[tf.TensorSpec(None)])
    def step(gradient):
        optimizer.apply_gradients([(gradient, variable)])

    step(tf.ones([2]))
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"must have shape"):
        step(tf.ones([3]))
    step(tf.ones([2]))
    np.testing.assert_allclose(variable, [-1.0, -1.0])


def test_gradients_may_be_lists_and_arrays():
    optimizer = of_sgd(1)
    table, bias = tf.Variable(tf.zeros([5, 1])), tf.Variable(tf.zeros([2]))
    rows = tf.IndexedSlices([[2.0]], [1], (5, 1))
    optimizer.apply_gradients([(rows, table), (np.float32([1, 3]), bias)])
    np.testing.assert_allclose(table[:, 0], [0, -2, 0, 0, 0])
    np.testing.assert_allclose(bias, [-1, -3])


def test_no_gradient_at_all_is_refused():
    with pytest.raises(ValueError, match="No gradients provided"):
        of_sgd(2).apply_gradients([(None, tf.Variable([0.0]))])


def test_no_gradients_of_no_variables_change_nothing():
    optimizer, variable = of_sgd(1), tf.Variable([0.0])
    if keras_variants.IS_KERAS_3:
        optimizer.apply([], [])
    else:
        optimizer.apply_gradients([])
    optimizer.apply_gradients([(tf.ones([1]), variable)])
    assert int(optimizer.iterations) == 1
    np.testing.assert_allclose(variable, [-1.0])


@pytest.mark.skipif(keras_variants.IS_KERAS_3, reason="Keras 3 sets no counters")
@pytest.mark.parametrize("is_set", [False, True])
@pytest.mark.parametrize("kind", ["wrapper", "several"])
def test_counter_is_that_of_the_inner_optimizer_and_saved(kind, is_set, tmp_path):
    inner, variable = tf.keras.optimizers.SGD(1.0), tf.Variable([0.0])
    optimizer = (
        tfs.keras.GradientAccumulation(inner, 1)
        if kind == "wrapper"
        else tfs.keras.TableOptimizers(inner)
    )
    if is_set:
        optimizer.iterations = tf.Variable(5, dtype=tf.int64)
    optimizer.apply_gradients([(tf.ones([1]), variable)])
    count = 6 if is_set else 1
    assert int(inner.iterations) == int(optimizer.iterations) == count
    path = tf.train.Checkpoint(optimizer=optimizer).write(tmp_path / "checkpoint")
    key = "optimizer/_iterations/.ATTRIBUTES/VARIABLE_VALUE"
    assert tf.train.load_variable(path, key) == count


def test_xla_is_refused_with_the_remedy():
    with pytest.raises(Exception, match="pass `jit_compile=False` to `compile`"):
        fit(of_sgd(2), jit_compile=True)


def test_mixed_precision_scales_and_unscales_the_loss():
    with keras_variants.policy("mixed_float16"):
        model = fit(tfs.keras.SyncReplicas(tfs.keras.AdamAsync(0.05), 2), epochs=20)
        loss = model.evaluate(*keras_variants.small_data(64), verbose=0)
    optimizer = model.optimizer.inner_optimizer
    assert isinstance(optimizer, tfs.keras.SyncReplicas)
    assert optimizer.stats()["updates"] > 70
    assert loss < 0.1


def test_learning_rate_callbacks_reach_the_inner_optimizer():
    optimizer = of_sgd(2)
    model = keras_variants.small_model()
    model.compile(optimizer=optimizer, loss="mse")
    words, targets = keras_variants.small_data(32)
    scheduler = tf.keras.callbacks.LearningRateScheduler(lambda epoch: 0.125)
    model.fit(words, targets, batch_size=8, verbose=0, callbacks=[scheduler])
    assert float(optimizer.inner_optimizer.learning_rate) == 0.125


class At(tf.keras.callbacks.Callback):
    """Calls a function with the model in a hook."""

    def __init__(self, hook, function):
        super().__init__()
        setattr(self, hook, lambda *_, **__: function(self.model))


def one_weight(optimizer):
    """A model whose gradient is 1 whatever its weight is."""
    model = tf.keras.Sequential(
        [
            tf.keras.layers.Input([1]),
            tf.keras.layers.Dense(1, use_bias=False, kernel_initializer="zeros"),
        ]
    )
    model.compile(
        optimizer, loss=lambda _, y: tf.reduce_mean(y, axis=-1), jit_compile=False
    )
    return model


def train_one_weight(model, batches, epochs=1, fit=tfs.keras.fit, callbacks=()):
    ones = np.ones([batches, 1], np.float32)
    options = {"batch_size": 1, "epochs": epochs, "callbacks": [*callbacks]}
    fit(model, ones, ones, verbose=0, **options)
    return model.get_weights()[0].item()


def interrupt(model):
    raise KeyboardInterrupt


@pytest.mark.parametrize("fit", [tfs.keras.fit, tf.keras.Model.fit])
def test_gradients_of_an_interrupted_fit_go_into_no_later_update(fit):
    optimizer = tfs.keras.GradientAccumulation(tf.keras.optimizers.SGD(1.0), 2)
    model = one_weight(optimizer)
    with pytest.raises(KeyboardInterrupt):
        train_one_weight(model, 4, 1, fit, [At("on_train_batch_end", interrupt)])
    assert optimizer.stats()["pending"] == 0
    assert train_one_weight(model, 2, 1, fit) == -1.0
    assert optimizer.stats()["applied"] == 2


def test_gradients_before_a_fit_go_into_none_of_its_updates():
    model = one_weight(of_sgd(2))
    model.train_on_batch(np.ones([1, 1]), np.ones([1, 1]))
    assert model.optimizer.stats()["pending"] == 1
    assert train_one_weight(model, 2) == -1.0
    assert model.optimizer.stats()["applied"] == 2


@pytest.mark.parametrize("hook", ["on_epoch_end", "on_train_batch_end"])
@pytest.mark.parametrize("fit", [tfs.keras.fit, tf.keras.Model.fit])
def test_last_round_is_not_applied_to_weights_of_a_callback_that_stops(
    fit, hook, caplog
):
    def stop(model):
        model.set_weights([np.full([1, 1], 7.0)])
        model.stop_training = True

    model = one_weight(of_sgd(4))
    assert train_one_weight(model, 3, 2, fit, [At(hook, stop)]) == 7.0
    assert "of a last incomplete round" in caplog.text
    # It is the training that was stopped, and not the optimizer.
    assert train_one_weight(model, 3, 1, fit) == 6.0


def test_optimizer_of_a_layer_that_was_frozen_since_says_what_to_do():
    model, optimizer = keras_variants.small_model(), of_sgd(2)
    words, targets = keras_variants.small_data(16)
    for trainable in (True, False):
        model.layers[-1].trainable = trainable
        model.compile(optimizer, "mse", jit_compile=False)
        if trainable:
            model.fit(words, targets, verbose=0)
    message = "make another optimizer after a layer was frozen or freed"
    with pytest.raises(ValueError, match=message):
        model.fit(words, targets, verbose=0)


@pytest.mark.parametrize(
    "make",
    [of_sgd, lambda quorum: tfs.keras.GradientAccumulation("sgd", quorum)],
    ids=["SyncReplicas", "GradientAccumulation"],
)
def test_loop_in_one_process_ends_its_last_round(make):
    optimizer, variable = make(2), tf.Variable([0.0])
    optimizer.learning_rate = 1.0
    with optimizer.updater() as updater:
        for gradient in (1.0, 3.0, 5.0):
            optimizer.apply_gradients([(tf.constant([gradient]), variable)])
        updater.drain()
        assert variable.numpy() == [-2.0]
    assert variable.numpy() == [-7.0]
    assert optimizer.stats()["pending"] == 0


def test_loop_in_one_process_that_fails_leaves_nothing_for_the_next_one():
    optimizer, variable = of_sgd(2), tf.Variable([0.0])

    def loop(gradient, end):
        with optimizer.updater():
            optimizer.apply_gradients([(tf.constant([gradient]), variable)])
            end(None)

    with pytest.raises(KeyboardInterrupt):
        loop(1.0, interrupt)
    loop(5.0, lambda _: None)
    assert variable.numpy() == [-5.0]


def test_updater_where_nothing_can_train_says_so():
    with tf.distribute.MirroredStrategy(["CPU:0"]).scope():
        optimizer = of_sgd(2)
    with pytest.raises(ValueError, match="MirroredStrategy"), optimizer.updater():
        pass


def test_step_without_parameter_servers_does_nothing():
    optimizer, variable = of_sgd(1), tf.Variable([0.0])
    with optimizer.step():
        optimizer.apply_gradients([(tf.ones([1]), variable)])
    assert variable.numpy() == [-1.0]
