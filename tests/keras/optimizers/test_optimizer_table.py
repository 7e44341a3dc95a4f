"""Each optimizer with each feature of an update, compared with a float64 twin.

A new optimizer gets all of these tests by a line in OPTIMIZERS, and a new option by a
line in OPTIONS. In a wrapper each one is its own twin, as are all that Keras has, found
in `tf.keras.optimizers`.
"""

import itertools
import zipfile

import h5py
import keras_variants
import numpy as np
import optimizer_twins as twins
import pytest
import tensorflow as tf
from all_optimizers import KERAS_OPTIMIZERS, LionOfMine, rules_in
from combinations import thinned
from keras_variants import LEARNING_RATE
from same import assert_same

import tf_syncrep as tfs
from tf_syncrep.python.keras import compat

ROWS, DIM = 7, 3
K = 2  # batches of a round


def synchronous(make):
    def make_around(*args, **options):
        return tfs.keras.SyncReplicas(make(*args, **options), K)

    return make_around


def with_options(make, **more):
    def make_with_more(*args, **options):
        return make(*args, **more, **options)

    return make_with_more


def around_adagrad(learning_rate, global_clipnorm=None, **options):
    """AdamAsync of all but the table; what concerns all gradients is told outside."""
    return tfs.keras.TableOptimizers(
        tfs.keras.AdamAsync(learning_rate, **options), global_clipnorm=global_clipnorm
    )


def adagrad_of_table(learning_rate, global_clipnorm=None, **options):
    del global_clipnorm
    return tfs.keras.Adagrad(learning_rate, **options)


OURS = {
    f"tfs_{name}": kind
    for name, kind in rules_in(tfs.keras).items()
    if kind is not tfs.keras.LazyOptimizer
}
# Those that are compared with themselves: in a wrapper, and without.
INNER = {
    **KERAS_OPTIMIZERS,
    **OURS,
    "tfs_momentum": with_options(tfs.keras.SGD, momentum=0.5),
    "tfs_nesterov": with_options(tfs.keras.SGD, momentum=0.5, nesterov=True),
    "tfs_FTRL": with_options(tfs.keras.FTRL, **twins.FTRL_OPTIONS),
}
# The optimizers of the tables, where tables have one of their own.
OF_TABLES = {"tables": adagrad_of_table, "sync_tables": adagrad_of_table}
# Their rules by variable: the table, and what the model's optimizer trains.
ADAGRAD_AND_ADAM = (twins.LazyAdagrad, twins.AdamAsync, twins.AdamAsync)
# A function that makes the optimizer, its rule, and the number of batches per update.
OPTIMIZERS = {
    "adam_async": (tfs.keras.AdamAsync, twins.AdamAsync, 1),
    "adagrad": (tfs.keras.Adagrad, twins.LazyAdagrad, 1),
    "rowwise_adagrad": (tfs.keras.RowwiseAdagrad, twins.RowwiseAdagrad, 1),
    "ftrl": (with_options(tfs.keras.FTRL, **twins.FTRL_OPTIONS), twins.LazyFTRL, 1),
    "sgd": (tfs.keras.SGD, twins.LazySGD, 1),
    "momentum": (with_options(tfs.keras.SGD, momentum=0.5), twins.LazyMomentum, 1),
    "nesterov": (
        with_options(tfs.keras.SGD, momentum=0.5, nesterov=True),
        twins.LazyNesterov,
        1,
    ),
    "lion": (LionOfMine, twins.Lion, 1),
    "tables": (around_adagrad, ADAGRAD_AND_ADAM, 1),
    "sync_tables": (synchronous(around_adagrad), ADAGRAD_AND_ADAM, K),
    "sync_adam_async": (synchronous(tfs.keras.AdamAsync), twins.AdamAsync, K),
}
OPTIONS = {
    "plain": {},
    "clipnorm": {"clipnorm": 0.5},
    "clipvalue": {"clipvalue": 0.25},
    "global_clipnorm": {"global_clipnorm": 0.5},
    "weight_decay": {"weight_decay": 0.5},
    "ema": {"use_ema": True, "ema_momentum": 0.5},
    "ema_overwrites": {
        "use_ema": True,
        "ema_momentum": 0.5,
        "ema_overwrite_frequency": 2,
    },
    "all": {
        "global_clipnorm": 0.5,
        "weight_decay": 0.5,
        "use_ema": True,
        "ema_momentum": 0.5,
        "ema_overwrite_frequency": 3,
    },
}
# Those whose slots are smaller than the table.
WITHOUT_SLOTS_LIKE_TABLES = {"sgd", "rowwise_adagrad"}
each_optimizer = pytest.mark.parametrize("name", OPTIMIZERS)


def make_model(optimizer, of_table=None, **compile_options):
    """A table, which may have an optimizer of its own, a kernel and a bias."""
    layers = tf.keras.layers
    tf.keras.utils.set_random_seed(1)
    if of_table is None:
        embedding = [tfs.keras.Embedding(ROWS, DIM), layers.GlobalAveragePooling1D()]
    else:
        table = tfs.keras.TableConfig(
            "table", ROWS, DIM, combiner="mean", optimizer=of_table
        )
        feature = tfs.keras.FeatureConfig("words", table)
        embedding = [tfs.keras.DistributedEmbedding(feature)]
    model = tf.keras.Sequential(
        [layers.Input((4,), dtype="int32"), *embedding, layers.Dense(1)]
    )
    model.compile(optimizer, **{"loss": "mse", **compile_options})
    return model


def batch(step):
    """Gradients of the model's variables, in which row 5 occurs three times.

    They grow, since Adam would undo a constant scale.
    """
    random = np.random.default_rng(step)
    table, kernel, bias = (
        (step + 1) * random.choice([-1.0, 1.0], size=shape) * random.uniform(0.25, 1.0)
        for shape in ((4, DIM), (DIM, 1), (1,))
    )
    return {0: (table, np.array([5, step % 4, 5, 5])), 1: kernel, 2: bias}


def as_tensors(gradient):
    if isinstance(gradient, tuple):
        values, rows = gradient
        shape = tf.constant([ROWS, DIM])
        return tf.IndexedSlices(
            tf.constant(values, tf.float32), tf.constant(rows), shape
        )
    return tf.constant(gradient, tf.float32)


def as_float64(tensor):
    return tensor.numpy().astype(np.float64)


class Training:
    """An optimizer and its twin, which make the same updates."""

    def __init__(self, name, learning_rate=LEARNING_RATE, excluded=(), **options):
        make, rule, self.batches = OPTIMIZERS[name]
        self.make = lambda: make(learning_rate, **options)
        of_table = OF_TABLES.get(name)
        self.of_table = of_table and of_table(learning_rate, **options)
        self.model = self.make_model()
        self.step = 0
        rate = learning_rate if callable(learning_rate) else lambda _: learning_rate
        self.twin = twins.Twin(
            rule,
            self.model.get_weights(),
            lambda step: float(rate(step)),
            excluded=excluded,
            **options,
        )

    def make_model(self):
        return make_model(self.make(), self.of_table)

    @property
    def optimizer(self):
        return self.model.optimizer

    def run(self, updates, places=(0, 1, 2), **options):
        """Updates the variables at these places, in a function if it has options."""
        optimizer = self.optimizer
        variables = [self.model.trainable_variables[i] for i in places]

        def step(gradients):
            optimizer.apply_gradients(zip(gradients, variables, strict=True))

        if options:
            step = tf.function(step, **options)
        for _ in range(updates):
            batches = [batch(self.step + i) for i in range(self.batches)]
            for gradients in batches:
                step([as_tensors(gradients[i]) for i in places])
            self.twin.apply({i: twins.mean([b[i] for b in batches]) for i in places})
            self.step += self.batches

    def check(self):
        assert_values(self.model.get_weights(), self.twin.values)
        steps = int(keras_variants.native(self.optimizer.iterations).numpy())
        assert steps == self.twin.steps


def assert_values(actual, expected):
    assert_same(actual, expected, 2e-5)


def test_each_optimizer_of_ours_is_here():
    made = {type(make(LEARNING_RATE)) for make, _, _ in OPTIMIZERS.values()}
    assert tfs.keras.AdamAsync in OURS.values()
    assert made.issuperset(OURS.values())


@thinned("name, option", OPTIMIZERS, OPTIONS)
def test_updates_are_the_twins(name, option):
    training = Training(name, **OPTIONS[option])
    training.optimizer.build(training.model.trainable_variables)
    training.run(4, jit_compile=False)
    training.check()
    training.optimizer.finalize_variable_values(training.model.trainable_variables)
    is_averaged = OPTIONS[option].get("use_ema")
    final = training.twin.averages if is_averaged else training.twin.values
    assert_values(training.model.get_weights(), final)


@pytest.mark.parametrize(
    "make",
    [
        tf.keras.optimizers.SGD,
        tfs.keras.SGD,
        lambda **options: tfs.keras.SyncReplicas(tf.keras.optimizers.SGD(**options), 1),
        lambda **options: tfs.keras.TableOptimizers(tf.keras.optimizers.SGD(**options)),
    ],
    ids=["stock", "ours", "SyncReplicas", "TableOptimizers"],
)
def test_averages_go_to_their_own_variables_also_where_others_are_frozen(make):
    frozen, trained = tf.Variable([1.0, 1.0]), tf.Variable([0.0, 0.0])
    optimizer = make(use_ema=True)
    optimizer.build([frozen, trained])
    optimizer.apply_gradients([(tf.zeros([2]), frozen), (tf.zeros([2]), trained)])
    frozen.assign([3.0, 3.0])  # such as weights that were loaded
    compat.finalize_variable_values(optimizer, [trained])
    assert_values([frozen.numpy(), trained.numpy()], [[3.0, 3.0], [0.0, 0.0]])


class BesideItself:
    """An optimizer in a wrapper, and the same one by itself."""

    def __init__(self, name, wrapper, learning_rate=LEARNING_RATE, **options):
        if name == "Nadam" and not keras_variants.IS_KERAS_3:
            pytest.skip("Keras 2's Nadam by itself is another one in a tf.function")
        self.make = lambda: INNER[name](learning_rate, **options)
        self.wrapper, self.step = wrapper, 0
        self.model, self.alone = self.make_model(), make_model(self.make())
        for trained in (self.model, self.alone):
            # In Keras 2 some of it would be made within the traced update.
            trained.optimizer.build(trained.trainable_variables)

    def make_model(self):
        return make_model(self.wrapper(self.make(), K))

    def run(self, updates, **options):
        """Makes updates of K batches each, alone with their means; see `Training`."""
        model, alone = self.model, self.alone

        def step(gradients):
            model.optimizer.apply_gradients(
                zip(gradients, model.trainable_variables, strict=True)
            )

        if options:
            step = tf.function(step, **options)
        for _ in range(updates):
            batches = [batch(self.step + i) for i in range(K)]
            for gradients in batches:
                step([as_tensors(gradients[i]) for i in range(3)])
            means = [
                as_tensors(twins.sum_equal_rows(twins.mean([b[i] for b in batches])))
                for i in range(3)
            ]
            alone.optimizer.apply_gradients(
                zip(means, alone.trainable_variables, strict=True)
            )
            self.step += K

    def check(self):
        for trained in (self.model, self.alone):
            trained.optimizer.finalize_variable_values(trained.trainable_variables)
        assert_values(self.model.get_weights(), self.alone.get_weights())
        steps = int(keras_variants.native(self.model.optimizer.iterations).numpy())
        assert steps == self.step // K


@pytest.mark.parametrize(
    ("wrapper", "option"),
    [(tfs.keras.SyncReplicas, "all"), (tfs.keras.GradientAccumulation, "plain")],
    ids=["SyncReplicas", "GradientAccumulation"],
)
@pytest.mark.parametrize("name", INNER)
def test_updates_are_those_of_the_inner_optimizer_by_itself(name, wrapper, option):
    training = BesideItself(name, wrapper, **OPTIONS[option])
    training.run(3, jit_compile=False)
    training.check()


@thinned(
    "name, option",
    [name for name, x in OPTIMIZERS.items() if x[2] == 1],
    ["clipnorm", "plain", "clipvalue", "global_clipnorm"],
)
def test_functions_that_xla_compiles_make_the_updates_of_the_twin(name, option):
    training = Training(name, **OPTIONS[option])
    training.optimizer.build(training.model.trainable_variables)
    training.run(3, jit_compile=True)
    training.check()


@each_optimizer
def test_learning_rate_schedule_counts_updates(name):
    decay = tf.keras.optimizers.schedules.ExponentialDecay(LEARNING_RATE, 1, 0.5)
    training = Training(name, decay)
    training.run(4)
    training.check()


@thinned("name, how", OPTIMIZERS, ["var_list", "var_names"])
def test_variables_can_be_left_out_of_weight_decay(name, how):
    training = Training(name, weight_decay=0.5, excluded=(2,))
    bias = training.model.trainable_variables[2]
    excluded = {"var_list": [bias], "var_names": ["bias"]}
    training.optimizer.exclude_from_weight_decay(**{how: excluded[how]})
    training.run(3)
    training.check()


@pytest.mark.parametrize("name", [x for x in OPTIMIZERS if x not in OF_TABLES])
def test_what_the_constructor_was_told_is_read_and_set(name):
    training = Training(name, clipnorm=0.5)
    assert training.optimizer.clipnorm == 0.5
    training.optimizer.clipnorm = None
    training.optimizer.weight_decay = 0.25
    training.twin._options.update(clipnorm=None, weight_decay=0.25)
    training.run(2)
    training.check()


SAVED_AS = ["keras_file", "weights_file", "checkpoint", "deferred_checkpoint", "arrays"]
if not keras_variants.IS_KERAS_3:
    # Formats that only Keras 2 writes whole.
    SAVED_AS += ["tensorflow_weights", "h5_file"]


def saved_and_restored(training, saved_as, folder):
    """A new model with its optimizer, loaded from the files."""
    model, path = training.model, str(folder / saved_as)
    if saved_as in ("keras_file", "h5_file"):
        path += {"keras_file": ".keras", "h5_file": ".h5"}[saved_as]
        model.save(path)
        return tf.keras.models.load_model(path)
    other = training.make_model()
    # Variables that are made after the restore are filled, too.
    if saved_as not in ("deferred_checkpoint", "tensorflow_weights"):
        other.optimizer.build(other.trainable_variables)
    if saved_as == "arrays":
        other.set_weights(model.get_weights())
        other.optimizer.set_weights([x.numpy() for x in model.optimizer.variables])
    elif "weights" in saved_as:
        path += ".weights.h5" if saved_as == "weights_file" else ""
        model.save_weights(path)
        other.load_weights(path)
    else:
        checkpoint = tf.train.Checkpoint(model=model, optimizer=model.optimizer)
        path = checkpoint.save(path)
        checkpoint = tf.train.Checkpoint(model=other, optimizer=other.optimizer)
        status = checkpoint.restore(path)
        if saved_as == "checkpoint":
            status.assert_consumed()
    return other


# Formats differ in what they hold of an optimizer, not of its rule.
IN_EACH_FORMAT = ("adam_async", "rowwise_adagrad", "sync_tables")


@pytest.mark.parametrize(
    ("name", "saved_as"),
    [
        *itertools.product(IN_EACH_FORMAT, SAVED_AS),
        *zip(
            [name for name in OPTIMIZERS if name not in IN_EACH_FORMAT],
            itertools.cycle(SAVED_AS),
            strict=False,
        ),
    ],
)
def test_restored_training_goes_on_as_if_never_stopped(name, saved_as, tmp_path):
    decay = tf.keras.optimizers.schedules.ExponentialDecay(LEARNING_RATE, 4, 0.5)
    training = Training(name, decay, **OPTIONS["all"])
    training.run(2)
    # The restored state is saved again.
    for _ in range(2):
        restored = saved_and_restored(training, saved_as, tmp_path)
        assert restored.optimizer is not training.optimizer
        assert type(restored.optimizer) is type(training.optimizer)
        training.model = restored
        training.run(2)
        training.check()


@pytest.mark.parametrize(
    ("name", "saved_as"),
    [*zip(KERAS_OPTIMIZERS, itertools.cycle(SAVED_AS), strict=False)],
)
def test_restored_inner_optimizer_goes_on_with_its_schedule_as_by_itself(
    name, saved_as, tmp_path
):
    decay = tf.keras.optimizers.schedules.ExponentialDecay(LEARNING_RATE, 1, 0.5)
    training = BesideItself(name, tfs.keras.SyncReplicas, decay, **OPTIONS["all"])
    training.run(2)
    restored = saved_and_restored(training, saved_as, tmp_path)
    assert type(restored.optimizer.inner_optimizer) is KERAS_OPTIMIZERS[name]
    training.model = restored
    training.run(2)
    training.check()


@each_optimizer
def test_state_is_saved_once(name, tmp_path):
    training = Training(name)
    training.run(1)
    training.model.save(tmp_path / "model.keras")
    with zipfile.ZipFile(tmp_path / "model.keras") as archive:
        archive.extract("model.weights.h5", tmp_path)
    tables = []
    with h5py.File(tmp_path / "model.weights.h5") as file:
        file["optimizer"].visititems(
            lambda path, item: (
                tables.append(path)
                if getattr(item, "shape", None) == (ROWS, DIM)
                else None
            )
        )
    slots = [x for x in training.optimizer.variables if x.shape == (ROWS, DIM)]
    assert len(tables) == len(slots)
    assert slots or name in WITHOUT_SLOTS_LIKE_TABLES


@each_optimizer
def test_mixed_precision_leaves_variables_and_slots_in_float32(name):
    policies = tf.keras.mixed_precision
    before = policies.global_policy()
    policies.set_global_policy("mixed_bfloat16")
    try:
        training = Training(name)
    finally:
        policies.set_global_policy(before)
    model, optimizer = training.model, training.optimizer
    variables = model.trainable_variables
    random = np.random.default_rng(0)
    for _ in range(3):
        batches = []
        for _ in range(training.batches):
            words = tf.constant(random.integers(0, ROWS, (8, 4)), tf.int32)
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(tf.cast(model(words), tf.float32) ** 2)
            gradients = tape.gradient(loss, variables)
            optimizer.apply_gradients(zip(gradients, variables, strict=True))
            table, *others = gradients
            assert table.values.shape == (32, DIM)
            batches.append(
                {
                    0: (as_float64(table.values), table.indices.numpy()),
                    **{i: as_float64(g) for i, g in enumerate(others, start=1)},
                }
            )
        training.twin.apply({i: twins.mean([b[i] for b in batches]) for i in range(3)})
    training.check()
    assert {x.dtype for x in variables} == {variables[0].dtype}
    for x in (*variables, *optimizer.variables):
        dtype = tf.as_dtype(keras_variants.native(x).dtype)
        assert dtype == tf.float32 or not dtype.is_floating


@pytest.mark.parametrize("name", ["adam_async", "sync_adam_async"])
def test_second_fit_is_not_traced_again(name):
    traces = []

    def loss(targets, outputs):
        traces.append(1)
        return tf.reduce_mean((outputs - targets) ** 2, axis=-1)

    model = make_model(OPTIMIZERS[name][0](LEARNING_RATE), loss=loss)
    random = np.random.default_rng(0)
    words, targets = random.integers(0, ROWS, (32, 4)), random.normal(size=(32, 1))
    counts = []
    for _ in range(3):
        model.fit(words, targets, batch_size=8, epochs=2, verbose=0)
        counts.append(len(traces))
    assert counts == counts[:1] * 3
    steps = int(keras_variants.native(model.optimizer.iterations).numpy())
    assert steps == 3 * 2 * 4 // OPTIMIZERS[name][2]


def test_two_sets_of_variables_are_trained_in_turn():
    training = Training("adam_async", global_clipnorm=0.5, weight_decay=0.5)
    training.optimizer.build(training.model.trainable_variables)
    for _ in range(3):
        training.run(1, places=(0,))
        training.run(1, places=(1, 2))
    training.check()


def test_wrapper_refuses_gradients_that_are_not_those_of_its_variables():
    if not keras_variants.IS_KERAS_3:
        pytest.skip("optimizers of Keras 2 take pairs")
    training = Training("sync_adam_async")
    gradients = [as_tensors(batch(0)[i]) for i in (0, 1)]
    with pytest.raises(ValueError, match="needs an optimizer that is built"):
        training.optimizer.apply(gradients)
    training.optimizer.build(training.model.trainable_variables)
    with pytest.raises(ValueError, match="Received: 2 gradients for 3 variables"):
        training.optimizer.apply(gradients)
