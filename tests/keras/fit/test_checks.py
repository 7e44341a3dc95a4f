"""The warnings and errors of tfs.keras.fit that need no cluster."""

import functools

import keras_variants
import numpy as np
import pytest
import tensorflow as tf

import tf_syncrep as tfs
from tf_syncrep.python.keras.fit import api, building, checks, progress
from tf_syncrep.python.keras.fit.worker_datasets import differs_between_workers
from tf_syncrep.python.keras.parts import optimizers_of

# Arguments of fit, evaluate and predict.
COUNTS = (
    "batch_size",
    "steps",
    "steps_per_epoch",
    "validation_steps",
    "validation_batch_size",
)
EPOCHS = ("epochs", "initial_epoch")

keras_3_only = pytest.mark.skipif(
    not keras_variants.IS_KERAS_3, reason="Keras 2 reads rows, and has several workers"
)


@keras_3_only
def test_only_large_stock_tables_are_warned_of(caplog, monkeypatch):
    monkeypatch.setattr(checks, "LARGE_TABLE_BYTES", 1000)
    stock = tf.keras.layers.Embedding
    layers = [stock(50, 6, name="large"), stock(40, 6), tfs.keras.Embedding(50, 6)]
    inputs = tf.keras.Input((1,), dtype="int32")
    model = tf.keras.Model(inputs, [layer(inputs) for layer in layers])
    checks.warn_of_large_embeddings(model)
    (warning,) = caplog.messages
    assert "layer large" in warning
    assert "tfs.keras.Embedding" in warning


def test_second_sync_replicas_of_a_model_is_refused():
    model = keras_variants.small_model()
    model.compile(tfs.keras.SyncReplicas("sgd", 1))
    model.more = [tfs.keras.SyncReplicas("adam", 1, name="second")]
    with pytest.raises(
        ValueError, match=r"one SyncReplicas.* Received: second besides"
    ):
        checks.refuse_what_cannot_be(model)


@pytest.mark.skipif(
    not hasattr(tf.keras.optimizers, "MultiOptimizer"), reason="Keras has it since 3.15"
)
@pytest.mark.parametrize("is_known", [True, False])
def test_member_of_a_multi_optimizer_that_accumulates_is_refused(is_known):
    """Before anything is traced, or where it is made by the build."""
    member = tf.keras.optimizers.Adam(gradient_accumulation_steps=2)
    kinds = tf.keras.optimizers
    model = keras_variants.small_model()
    model.compile(
        kinds.MultiOptimizer(
            kinds.OptimizerMap(member) if is_known else lambda _: member
        )
    )
    build = functools.partial(building.build, kind="train")
    args = () if is_known else (keras_variants.small_data,)
    with pytest.raises(ValueError, match="Received: gradient_accumulation_steps=2"):
        (checks.refuse_what_cannot_be if is_known else build)(model, *args)


@pytest.mark.skipif(
    not hasattr(tf.keras.optimizers, "MultiOptimizer"), reason="Keras has it since 3.15"
)
def test_members_of_a_multi_optimizer_are_found():
    """Except, once it is built, those that train nothing and stay unbuilt."""
    kinds = tf.keras.optimizers
    unused, used = kinds.SGD(), kinds.Adam()
    model = keras_variants.small_model()
    several = kinds.MultiOptimizer(kinds.OptimizerMap(unused, {".*": used}))
    model.compile(several)
    assert [*optimizers_of(model)] == [several, used, unused]
    several.build(model.trainable_variables)
    assert [*optimizers_of(model)] == [several, used]


def test_tensorboard_without_its_package_is_refused_before_training(monkeypatch):
    """When the list of callbacks is made, and so before the first batch."""
    board = tf.keras.callbacks.TensorBoard()
    monkeypatch.setattr(tf.summary, "scalar", print, raising=False)
    checks.refuse_tensorboard_without_its_package([board])
    monkeypatch.delattr(tf.summary, "scalar")
    with pytest.raises(ImportError, match="pip install tensorboard"):
        api._callback_list(keras_variants.small_model(), [board], 0, 1)


def test_loss_that_is_no_number_is_told_once_in_a_training(caplog):
    callbacks = api._callback_list(
        keras_variants.small_model(), None, 0, 3, add_history=True
    ).callbacks
    (callback,) = (x for x in callbacks if isinstance(x, progress.LossWarning))
    for epoch in range(2):
        callback.on_epoch_begin(epoch)
        for batch, loss in enumerate(
            [0.5, np.float32("nan"), np.inf][: 3 * epoch or 1]
        ):
            callback.on_train_batch_end(batch, {"loss": loss})
    assert [line.partition(". ")[0] for line in caplog.messages] == [
        "fit: the loss is nan, seen first after step 2 of epoch 2"
    ]
    callback.on_train_batch_end(0, None)


def test_constraints_of_several_workers_are_warned_of(caplog, monkeypatch):
    layer = tf.keras.layers.Dense(1, kernel_constraint="non_neg")
    model = tf.keras.Sequential([tf.keras.Input((3,)), layer])
    for workers, optimizer in ((1, "sgd"), (2, tfs.keras.SyncReplicas("sgd", 1))):
        monkeypatch.setattr(checks, "num_tasks", lambda _, number=workers: number)
        model.compile(optimizer)
        checks.warn_of_constraints(model)
    assert not caplog.messages
    model.compile("sgd")
    checks.warn_of_constraints(model)
    (warning,) = caplog.messages
    assert "After each update of variable " in warning


@pytest.mark.parametrize("workers", [1, 2])
def test_several_workers_do_not_mix_the_states_of_a_layer(workers, monkeypatch):
    monkeypatch.setattr(checks, "num_tasks", lambda _: workers)
    layer = tf.keras.layers.GRU(2, stateful=True, name="recurrent")
    model = tf.keras.Sequential([tf.keras.layers.Bidirectional(layer)])
    model.compile("sgd")
    if workers == 1:
        checks.refuse_what_cannot_be(model)
    else:
        message = (
            r"stateful=True goes on .* Received: layer \w*recurrent with 2 workers"
        )
        with pytest.raises(ValueError, match=message):
            checks.refuse_what_cannot_be(model)


def test_replicas_that_are_not_the_workers_are_warned_of(caplog):
    checks.warn_of_replicas(4, 4)
    assert not caplog.messages
    checks.warn_of_replicas(5, 4)
    assert "total_num_replicas=5, and the cluster has 4 workers" in caplog.text


@pytest.mark.parametrize("frequency", [0, -1, None, 0.5, "2"])
def test_frequency_that_never_validates_is_refused_before_training(frequency):
    model = keras_variants.small_model()
    model.compile("sgd", loss="mse")
    with pytest.raises(ValueError, match="`validation_freq` must be a whole number"):
        tfs.keras.fit(model, validation_data=((), ()), validation_freq=frequency)


@pytest.mark.parametrize(
    ("name", "wrong", "rule"),
    [
        *((n, x, "of at least 1") for n in COUNTS for x in (0, -1, 2.5, np.nan, "3")),
        *((n, x, "of at least 0") for n in EPOCHS for x in (-1, 1.5, "3", None)),
        *(("verbose", x, '"auto", or a whole number') for x in ("2", -1, 1.5, None)),
        *(("validation_split", x, "in the range") for x in (-0.5, 1.5, np.nan)),
        ("validation_split", "0.2", "must be a number"),
    ],
)
def test_number_that_is_wrong_is_refused_by_its_name(name, wrong, rule):
    with pytest.raises(ValueError, match=f"`{name}` .*{rule}.* Received: {name}="):
        checks.refuse_wrong_numbers(**{"verbose": 1, name: wrong})


@pytest.mark.parametrize("kind", ["python", "numpy"])
def test_numbers_that_are_right_are_taken(kind):
    whole, number, text, truth = (int, float, str, bool)
    if kind == "numpy":
        whole, number, text, truth = np.int64, np.float32, np.str_, np.bool_
    none, ones = dict.fromkeys(COUNTS), dict.fromkeys(COUNTS, whole(1))
    checks.refuse_wrong_numbers(text("auto"), whole(0), whole(3), None, **none)
    for verbose in (whole(2), truth(1)):
        checks.refuse_wrong_numbers(verbose, whole(1), whole(0), number(0.25), **ones)


@pytest.mark.parametrize(
    ("change", "differs"),
    [
        (lambda data: data.batch(2).repeat(), False),
        (lambda data: data.shuffle(3).batch(2), True),
        (lambda data: data.shard(2, 0).map(lambda x: x), True),
        (lambda data: data.flat_map(lambda _: data.shuffle(2)), True),
    ],
)
def test_datasets_that_shuffle_or_are_sharded_are_known(change, differs):
    data = change(tf.data.Dataset.range(6))
    assert differs_between_workers(data) == differs


@keras_3_only
@pytest.mark.parametrize("workers", [1, 2])
def test_keras_3_with_several_mirrored_workers_is_refused(monkeypatch, workers):
    class Strategy:
        cluster_resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(
            tf.train.ClusterSpec({"worker": ["localhost:1"] * workers})
        )

    class Model:
        distribute_strategy = Strategy()

    monkeypatch.setattr(tf.distribute, "MultiWorkerMirroredStrategy", Strategy)
    if workers == 1:
        checks.refuse_multi_worker(Model())
    else:
        with pytest.raises(ValueError, match=r"Keras 3 does not .* 2 workers"):
            checks.refuse_multi_worker(Model())
