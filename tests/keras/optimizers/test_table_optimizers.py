"""Tables with optimizers of their own, beside as many optimizers by hand."""

import functools

import embedding_models as models
import keras_variants
import numpy as np
import pytest
import saved_models
import tensorflow as tf
from combinations import thinned
from keras_variants import IS_KERAS_3
from same import assert_same

import tf_syncrep as tfs
from tf_syncrep.python.keras.optimizers.own_optimizers import OwnOptimizer

STEPS, EXAMPLES = 4, 12
Keras = tf.keras.optimizers


def schedule(rate):
    return Keras.schedules.PiecewiseConstantDecay([1, 2], [rate, rate / 2, rate / 4])


# What trains movies and users; days and the dense layer have the model's.
PAIRS = {
    "lazy": (lambda: tfs.keras.Adagrad(0.5), lambda: tfs.keras.RowwiseAdagrad(0.5)),
    "moments": (lambda: tfs.keras.AdamAsync(0.1), lambda: tfs.keras.SGD(0.1, 0.5)),
    "ftrl": (lambda: tfs.keras.FTRL(0.5), lambda: Keras.Ftrl(0.5)),
    "stock": (lambda: Keras.Adam(0.1), lambda: Keras.SGD(0.1, momentum=0.5)),
    "schedules": (
        lambda: tfs.keras.Adagrad(schedule(0.5)),
        lambda: Keras.Adagrad(schedule(0.5)),
    ),
    "clipped": (
        lambda: tfs.keras.Adagrad(0.5, clipnorm=0.25),
        lambda: tfs.keras.SGD(0.5, clipvalue=0.125),
    ),
    "decayed": (
        lambda: tfs.keras.Adagrad(0.5, weight_decay=0.25),
        lambda: Keras.Adam(0.1, weight_decay=0.25),
    ),
    "averages": (
        lambda: tfs.keras.SGD(
            0.5, use_ema=True, ema_momentum=0.5, ema_overwrite_frequency=2
        ),
        lambda: Keras.Adam(0.1, use_ema=True, ema_momentum=0.5),
    ),
}


def own(pair):
    return {"movies": PAIRS[pair][0](), "users": PAIRS[pair][1]()}


def model_of_all():
    return tfs.keras.AdamAsync(0.05, clipnorm=1.0)


def make(optimizers, optimizer, **options):
    return models.make(
        models.Distributed,
        optimizer,
        models.initial_tables(),
        optimizers=optimizers,
        **options,
    )


def state(model):
    """All weights, tables by name."""
    return {**model.tables(), "kernel": model.dense.get_weights()[0]}


def assert_moved(model):
    for name, table in models.initial_tables().items():
        assert not np.allclose(model.tables()[name], table, atol=1e-3), name


def groups_of(model):
    """The slabs of movies and of users, and all else."""
    movies, days, users = model.embedding.trainable_variables
    return [[movies], [users], [*model.dense.trainable_variables, days]]


def train_by_hand(model, optimizers):
    """Each optimizer gets what it trains: one part of a slab, or all else."""
    groups = groups_of(model)
    variables = [v for group in groups for v in group]
    for step in range(STEPS):
        ids, targets = models.batch(EXAMPLES, step)
        with tf.GradientTape() as tape:
            outputs = model(ids, training=True)
            loss = tf.reduce_mean((outputs - targets) ** 2)
        natives = [keras_variants.native(v) for v in variables]
        gradients = iter(tape.gradient(loss, natives))
        for optimizer, group in zip(optimizers, groups, strict=True):
            optimizer.apply_gradients([(next(gradients), v) for v in group])


@pytest.mark.parametrize("pair", PAIRS)
def test_trains_as_optimizers_by_hand_do(pair):
    expected = make(None, model_of_all(), table_stacking=None)
    by_hand = [*own(pair).values(), model_of_all()]
    train_by_hand(expected, by_hand)
    model = make(own(pair), tfs.keras.TableOptimizers(model_of_all()))
    for step in range(STEPS):
        keras_variants.train_on_batch(model, *models.batch(EXAMPLES, step))
    assert_same(state(model), state(expected))
    assert_moved(model)
    assert [int(x.iterations) for x in model.optimizer.all_optimizers()] == 3 * [STEPS]
    # The averages are taken over at the end of `fit`, by each for its own.
    model.optimizer.finalize_variable_values(model.trainable_variables)
    for optimizer, group in zip(by_hand, groups_of(expected), strict=True):
        optimizer.finalize_variable_values(group)
    assert_same(state(model), state(expected))


def test_trains_in_fit_as_by_hand():
    expected = make(None, model_of_all(), table_stacking=None)
    train_by_hand(expected, [*own("lazy").values(), model_of_all()])
    model = make(own("lazy"), tfs.keras.TableOptimizers(model_of_all()))
    batches = [models.batch(EXAMPLES, step) for step in range(STEPS)]
    ids = {k: np.concatenate([x[k] for x, _ in batches]) for k in batches[0][0]}
    targets = np.concatenate([y for _, y in batches])
    model.fit(ids, targets, batch_size=EXAMPLES, shuffle=False, verbose=0)
    assert_same(state(model), state(expected), 1e-5)
    assert int(model.optimizer.iterations) == STEPS


def test_global_norm_is_that_of_all_gradients():
    expected = make(None, tfs.keras.AdamAsync(0.05, global_clipnorm=0.125))
    same = {"movies": tfs.keras.AdamAsync(0.05), "days": "adam"}
    same["days"] = tfs.keras.AdamAsync(0.05, name="other")
    model = make(
        same,
        tfs.keras.TableOptimizers(tfs.keras.AdamAsync(0.05), global_clipnorm=0.125),
        table_stacking=None,
    )
    apart = make(None, tfs.keras.AdamAsync(0.05), table_stacking=None)
    for step in range(STEPS):
        for x in (expected, model, apart):
            keras_variants.train_on_batch(x, *models.batch(EXAMPLES, step))
    for name, value in state(expected).items():
        np.testing.assert_allclose(state(model)[name], value, rtol=1e-4, atol=1e-5)
        assert not np.allclose(state(apart)[name], value, rtol=1e-4, atol=1e-5)


def test_global_norm_counts_a_row_once():
    table = tf.Variable(tf.zeros([2, 1]))
    gradient = tf.IndexedSlices(tf.constant([[3.0], [1.0]]), tf.constant([1, 1]))
    optimizer = tfs.keras.TableOptimizers(tfs.keras.SGD(1.0), global_clipnorm=2.0)
    optimizer.apply_gradients([(gradient, table)])
    np.testing.assert_allclose(table, [[0.0], [-2.0]])


@pytest.mark.skipif(not IS_KERAS_3, reason="of Keras 3")
def test_loss_scale_is_that_of_all_gradients():
    results = []
    for scale in (None, 1024.0):
        optimizer = tfs.keras.TableOptimizers(
            tfs.keras.SGD(0.5), loss_scale_factor=scale
        )
        model = make(own("moments"), optimizer)
        for step in range(STEPS):
            model.train_on_batch(*models.batch(EXAMPLES, step))
        results.append(state(model))
    assert_same(*results)


def around(kind, optimizer):
    if kind == "loss_scale":
        scaled = tf.keras.mixed_precision.LossScaleOptimizer
        return scaled(optimizer, initial_scale=8.0, dynamic_growth_steps=100)
    if kind == "sync":
        return tfs.keras.SyncReplicas(optimizer, 2)
    return tfs.keras.GradientAccumulation(optimizer, 2)


@pytest.mark.parametrize("kind", ["loss_scale", "sync", "accumulation"])
def test_other_optimizers_go_around_it(kind):
    updates = STEPS if kind == "loss_scale" else STEPS // 2
    optimizer = around(kind, tfs.keras.TableOptimizers(model_of_all()))
    model = make(own("lazy"), optimizer)
    expected = make(own("lazy"), tfs.keras.TableOptimizers(model_of_all()))
    for x in (model, expected):
        x.compile(x.optimizer, loss="mse", jit_compile=False)
    for step in range(updates):
        batch = models.batch(EXAMPLES, step)
        expected.train_on_batch(*batch)
        for _ in range(STEPS // updates):
            model.train_on_batch(*batch)
    assert_same(state(model), state(expected), 1e-5)
    assert int(optimizer.iterations) == updates
    assert_moved(model)


def test_tables_of_equal_optimizers_are_stacked_and_share_one():
    model = make(
        {
            "movies": tfs.keras.Adagrad(0.5, name="one"),
            "users": tfs.keras.Adagrad(0.5, name="two"),
        },
        tfs.keras.TableOptimizers(model_of_all()),
    )
    model.optimizer.build(model.trainable_variables)
    assert len(model.embedding.trainable_variables) == 2
    made = model.optimizer.table_optimizers
    assert made["movies"] is made["users"]
    assert sorted(made) == ["movies", "users"]
    other = tfs.keras.DistributedEmbedding(models.feature_configs(optimizers=OWN_NAMES))
    other.build()
    assert len(other.trainable_variables) == 3


OWN_NAMES = {"movies": "adagrad", "users": "sgd"}


def test_names_mean_the_optimizers_of_this_package_where_there_is_one():
    kinds = {
        "adagrad": tfs.keras.Adagrad,
        "Adam": tfs.keras.AdamAsync,
        "adam_async": tfs.keras.AdamAsync,
        "ftrl": tfs.keras.FTRL,
        "rowwise_adagrad": tfs.keras.RowwiseAdagrad,
        "sgd": tfs.keras.SGD,
        "rmsprop": Keras.RMSprop,
        "Nadam": Keras.Nadam,
    }
    for name, kind in kinds.items():
        model = make({"movies": name}, tfs.keras.TableOptimizers("sgd"))
        model.optimizer.build(model.trainable_variables)
        (made,) = model.optimizer.table_optimizers.values()
        assert type(made) is kind
    for none in (None, "auto"):
        assert tfs.keras.TableConfig("t", 3, 2, optimizer=none).optimizer is None


def test_rates_of_tables_are_set_by_table():
    model = make({"movies": "sgd"}, tfs.keras.TableOptimizers(tfs.keras.SGD(0.5)))
    optimizer = model.optimizer
    optimizer.build(model.trainable_variables)
    optimizer.table_optimizers["movies"].learning_rate = 0.0
    optimizer.learning_rate = 0.25
    assert float(optimizer.optimizer.learning_rate) == 0.25
    keras_variants.train_on_batch(model, *models.batch(EXAMPLES))
    initial = models.initial_tables()
    np.testing.assert_array_equal(model.tables()["movies"], initial["movies"])
    assert not np.array_equal(model.tables()["users"], initial["users"])


def test_rates_of_functions_with_one_name_are_of_their_tables_alone():
    def of(rate):
        def computed():
            return rate

        return computed

    rates = [of(x) for x in (0.1, 0.001)]
    makers = [OwnOptimizer(tfs.keras.Adagrad(rate)) for rate in (*rates, rates[0])]
    assert makers[0] == makers[2] != makers[1]
    made = [maker.make(i) for i, maker in enumerate(makers[:2])]
    assert [float(x.learning_rate) for x in made] == pytest.approx([0.1, 0.001])


def test_a_step_without_a_gradient_of_a_table_counts():
    model = make(own("lazy"), tfs.keras.TableOptimizers(model_of_all()))
    optimizer, variables = model.optimizer, model.trainable_variables
    optimizer.build(variables)
    gradients = [None, *(tf.ones(v.shape) for v in variables[1:])]
    optimizer.apply_gradients(list(zip(gradients, variables, strict=True)))
    only_table = [tf.ones(variables[0].shape), *[None] * (len(variables) - 1)]
    optimizer.apply_gradients(list(zip(only_table, variables, strict=True)))
    assert [int(x.iterations) for x in optimizer.all_optimizers()] == [2, 2, 2]
    nothing = [(None, variable) for variable in variables]
    with pytest.raises(ValueError, match="No gradients provided"):
        optimizer.apply_gradients(nothing)


OTHERS = {
    "ours": lambda: tfs.keras.AdamAsync(),
    "stock": lambda: Keras.SGD(0.1),
    "sync": lambda: tfs.keras.SyncReplicas(tfs.keras.SGD(), 2),
    "accumulation": lambda: tfs.keras.GradientAccumulation("adam", 2),
    "loss_scale": lambda: around("loss_scale", Keras.Adam()),
    "told": lambda: tfs.keras.Adagrad(0.5),
}
if not IS_KERAS_3:
    OTHERS["legacy"] = lambda: Keras.legacy.SGD(0.1)


@thinned("other, loop", OTHERS, ["fit", "own"])
def test_an_optimizer_that_knows_nothing_of_it_is_refused_before_a_step(other, loop):
    model = make({"movies": tfs.keras.Adagrad(0.5)}, OTHERS[other]())
    model.compile(model.optimizer, loss="mse", jit_compile=False)
    step = model.fit
    if loop == "own":
        step = functools.partial(keras_variants.train_on_batch, model)
    with pytest.raises(
        ValueError,
        match=r"Table 'movies' has an optimizer of its own, Adagrad. The model must be "
        r"trained by tfs.keras.TableOptimizers\(optimizer\)",
    ):
        step(*models.batch(EXAMPLES))
    assert_same(model.tables(), models.initial_tables())


def test_a_table_that_does_not_train_needs_no_optimizer():
    model = make({"movies": "adagrad"}, tfs.keras.SGD(0.5))
    model.embedding.trainable = False
    model.compile(tfs.keras.SGD(0.5), loss="mse")
    model.fit(*models.batch(EXAMPLES), verbose=0)
    assert_same(model.tables(), models.initial_tables())


@pytest.mark.parametrize(
    ("optimizer", "message"),
    [
        (3, "Table 't': optimizer must be a Keras optimizer, or the name of one. "),
        ("adagrat", "or the name of one. Received: optimizer='adagrat'"),
        ("LossScaleOptimizer", "Received: optimizer='LossScaleOptimizer'"),
        (
            lambda: tfs.keras.SGD(global_clipnorm=0.5),
            "must be made without global_clipnorm, which concerns the gradients of all "
            "variables: give it to tfs.keras.TableOptimizers. Received: SGD with glob",
        ),
        (
            lambda: tfs.keras.GradientAccumulation("sgd", 2),
            "goes around tfs.keras.TableOptimizers. Received: GradientAccumulation",
        ),
        (
            lambda: tfs.keras.TableOptimizers("sgd"),
            "must be one optimizer. Received: TableOptimizers",
        ),
    ],
)
def test_bad_optimizer_of_a_table_is_refused_in_a_sentence(optimizer, message):
    given = optimizer() if callable(optimizer) else optimizer
    with pytest.raises(ValueError, match=message):
        tfs.keras.TableConfig("t", 3, 2, optimizer=given)
    if not isinstance(optimizer, str):
        with pytest.raises(ValueError, match=message.replace("Table 't': ", "`")[:9]):
            tfs.keras.TableOptimizers(given)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"global_clipnorm": 0}, "`global_clipnorm` must be a finite number above 0"),
        (
            {"loss_scale_factor": -1},
            "`loss_scale_factor` must be a finite number above",
        ),
    ],
)
def test_bad_numbers_are_refused_in_a_sentence(options, message):
    with pytest.raises(ValueError, match=message):
        tfs.keras.TableOptimizers("sgd", **options)


@pytest.mark.parametrize("excluded", ["var_list", "var_names"])
@pytest.mark.parametrize("make_optimizer", [tfs.keras.AdamAsync, Keras.Adam])
def test_exclusions_that_an_optimizer_of_a_table_would_lose_are_refused(
    make_optimizer, excluded
):
    optimizer = make_optimizer(0.1, weight_decay=0.5)
    table = tfs.keras.TableConfig("users", 5, 2, optimizer=optimizer)
    given = {"var_list": [tf.Variable(1.0, name="w")], "var_names": ["users"]}
    optimizer.exclude_from_weight_decay(**{excluded: given[excluded]})
    with pytest.raises(ValueError, match="make one without weight_decay"):
        tfs.keras.DistributedEmbedding(tfs.keras.FeatureConfig("user", table))


def test_averages_of_a_table_that_grows_are_refused():
    with pytest.raises(ValueError, match="must be made without use_ema"):
        tfs.keras.TableConfig(
            "t", tfs.keras.Dynamic(9), 2, optimizer=tfs.keras.SGD(use_ema=True)
        )


def test_a_layer_remembers_the_optimizers_of_its_tables():
    model = make(own("schedules"), tfs.keras.TableOptimizers("sgd"))
    config = model.embedding.get_config()
    layer = tfs.keras.DistributedEmbedding.from_config(config)
    layer.build()
    optimizer = tfs.keras.TableOptimizers("sgd")
    optimizer.build(layer.trainable_variables)
    made = optimizer.table_optimizers
    assert type(made["movies"]) is tfs.keras.Adagrad
    assert type(made["users"]) is Keras.Adagrad
    assert layer.get_config() == config
    again = tfs.keras.TableOptimizers.from_config(optimizer.get_config())
    assert again.get_config() == optimizer.get_config()


@thinned(
    "kind, pair",
    ["checkpoint", "TensorFlow, with optimizer", "weights"],
    ["lazy", "moments", "stock"],
)
def test_training_goes_on_from_what_was_saved_as_if_never_stopped(kind, pair, tmp_path):
    def new():
        model = make(own(pair), tfs.keras.TableOptimizers(model_of_all()))
        model.optimizer.build(model.trainable_variables)
        return model

    model, other = new(), new()
    for step in range(STEPS):
        keras_variants.train_on_batch(model, *models.batch(EXAMPLES, step))
    save, load = saved_models.save_and_load(kind, tmp_path)
    save(model)
    load(other)
    assert_same(state(other), state(model))
    for step in range(STEPS, 2 * STEPS):
        for x in (model, other):
            keras_variants.train_on_batch(x, *models.batch(EXAMPLES, step))
    assert_same(state(other), state(model))
    assert int(other.optimizer.iterations) == 2 * STEPS


# The older format of Keras 3 builds optimizers without variables.
@pytest.mark.parametrize("kind", ["keras"] if IS_KERAS_3 else ["keras", "h5"])
def test_a_model_in_a_file_goes_on_with_its_optimizers(kind, tmp_path):
    def functional():
        features = models.feature_configs(optimizers=own("moments"))
        inputs = {
            name: tf.keras.Input(shape, dtype="int64", name=name)
            for name, shape in models.SHAPES.items()
        }
        vectors = tfs.keras.DistributedEmbedding(features)(inputs)
        joined = tf.keras.layers.Concatenate()(
            [vectors[name] for name in models.FEATURES]
        )
        outputs = tf.keras.layers.Dense(1, kernel_initializer="ones")(joined)
        return tf.keras.Model(inputs, outputs)

    model = functional()
    optimizer = tfs.keras.TableOptimizers(tfs.keras.AdamAsync(0.05))
    loss = tf.keras.losses.MeanSquaredError()
    model.compile(optimizer, loss=loss, jit_compile=False)
    model.train_on_batch(*models.batch(EXAMPLES))
    path = str(tmp_path / f"model.{kind}")
    model.save(path)
    other = tf.keras.models.load_model(path)
    assert [type(x) for x in other.optimizer.all_optimizers()] == [
        type(x) for x in optimizer.all_optimizers()
    ]
    for step in range(1, STEPS):
        for x in (model, other):
            x.train_on_batch(*models.batch(EXAMPLES, step))
    assert_same(other.get_weights(), model.get_weights())
    assert int(other.optimizer.iterations) == STEPS
