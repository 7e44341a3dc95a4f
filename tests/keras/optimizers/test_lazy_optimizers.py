"""Optimizers with rules: their arguments, what they share with Keras', and XLA."""

import inspect
import pathlib
import re

import keras_variants
import numpy as np
import pytest
import tensorflow as tf
from same import assert_same

import tf_syncrep as tfs
from tf_syncrep.python.keras.sync_replicas.cluster import keeping

# Our optimizer, Keras' optimizer for the same purpose, and arguments that are no
# defaults.
OPTIMIZERS = {
    "Adagrad": (
        tfs.keras.Adagrad,
        tf.keras.optimizers.Adagrad,
        {"initial_accumulator_value": 0.5, "epsilon": 0.25},
    ),
    "RowwiseAdagrad": (
        tfs.keras.RowwiseAdagrad,
        None,
        {"initial_accumulator_value": 0.5, "epsilon": 0.25},
    ),
    "FTRL": (
        tfs.keras.FTRL,
        tf.keras.optimizers.Ftrl,
        {
            "learning_rate_power": -0.25,
            "initial_accumulator_value": 0.5,
            "l1_regularization_strength": 0.125,
            "l2_regularization_strength": 0.25,
            "l2_shrinkage_regularization_strength": 0.0625,
            "beta": 0.75,
        },
    ),
    "SGD": (tfs.keras.SGD, tf.keras.optimizers.SGD, {}),
    "momentum": (tfs.keras.SGD, tf.keras.optimizers.SGD, {"momentum": 0.5}),
    "nesterov": (
        tfs.keras.SGD,
        tf.keras.optimizers.SGD,
        {"momentum": 0.5, "nesterov": True},
    ),
}
each_optimizer = pytest.mark.parametrize("name", OPTIMIZERS)
CONFIGURED = {
    **{name: (ours, options) for name, (ours, _, options) in OPTIMIZERS.items()},
    "AdamAsync": (
        tfs.keras.AdamAsync,
        {
            "beta_1": 0.5,
            "beta_2": 0.75,
            "epsilon": 1e-3,
            "apply_sparse_rmsprop": True,
            "use_nesterov": True,
            "rmsprop_momentum": 0.25,
        },
    ),
}
each_configured = pytest.mark.parametrize("name", CONFIGURED)
BASE_OPTIONS = {
    "learning_rate": 0.25,
    "weight_decay": 0.125,
    "clipnorm": 2.0,
    "clipvalue": None,
    "global_clipnorm": None,
    "use_ema": True,
    "ema_momentum": 0.5,
    "ema_overwrite_frequency": 3,
    "stochastic_rounding": True,
    "name": "mine",
    **(
        {"loss_scale_factor": 8.0, "gradient_accumulation_steps": 2}
        if keras_variants.IS_KERAS_3
        else {"jit_compile": False}
    ),
}


def random(seed, *shape):
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


@each_configured
def test_config_holds_every_argument_and_makes_an_equal_optimizer(name):
    ours, options = CONFIGURED[name]
    given = {**BASE_OPTIONS, **options}
    optimizer = ours(**given)
    config = optimizer.get_config()
    assert {key: config[key] for key in given} == given
    assert ours.from_config(dict(config)).get_config() == config
    serialized = tf.keras.optimizers.serialize(optimizer)
    assert serialized["registered_name"] == f"tf_syncrep>{ours.__name__}"
    again = tf.keras.optimizers.deserialize(serialized)
    assert type(again) is ours
    assert again.get_config() == config


@each_configured
def test_whole_numbers_are_taken_for_floats(name):
    ours, options = CONFIGURED[name]
    numbers = {k: 0 for k, x in options.items() if type(x) is float}
    optimizer = ours(1, **numbers)
    assert float(optimizer.learning_rate) == 1.0
    config = optimizer.get_config()
    assert {key: config[key] for key in numbers} == dict.fromkeys(numbers, 0.0)


@each_configured
def test_unknown_arguments_are_refused(name):
    expected = ValueError if keras_variants.IS_KERAS_3 else TypeError
    with pytest.raises(expected, match="amsgrad"):
        CONFIGURED[name][0](amsgrad=True)


@each_configured
def test_unknown_variable_is_refused(name):
    optimizer = CONFIGURED[name][0]()
    optimizer.build([tf.Variable([1.0])])
    expected = ValueError if keras_variants.IS_KERAS_3 else KeyError
    with pytest.raises(expected, match=r"Unknown variable|cannot recognize variable"):
        optimizer.apply_gradients([(tf.ones([1]), tf.Variable([1.0]))])


def test_arguments_and_defaults_of_adam_async_are_the_documented_ones():
    signature = inspect.signature(tfs.keras.AdamAsync).parameters
    assert [(x.name, x.default) for x in signature.values()][:6] == [
        ("learning_rate", 0.001),
        ("beta_1", 0.9),
        ("beta_2", 0.999),
        ("epsilon", 1e-7),
        ("apply_sparse_rmsprop", False),
        ("use_nesterov", False),
    ]
    assert signature["rmsprop_momentum"].default is None
    assert tfs.keras.AdamAsync().name == "AdamAsync"


@each_optimizer
def test_arguments_and_defaults_are_those_of_keras(name):
    ours, theirs, _ = OPTIMIZERS[name]
    if theirs is None:
        config = ours().get_config()
        assert config["learning_rate"] == np.float32(0.01)
        assert (config["epsilon"], config["initial_accumulator_value"]) == (1e-8, 0.0)
        return
    parameters = {
        key: parameter.default
        for key, parameter in inspect.signature(theirs).parameters.items()
        if key
        not in (
            *("name", "kwargs", "jit_compile"),
            *("loss_scale_factor", "gradient_accumulation_steps"),
        )
    }
    signature = inspect.signature(ours).parameters
    assert list(signature)[: len(parameters)] == list(parameters)
    for key, default in parameters.items():
        assert signature[key].default == default, key


@each_optimizer
def test_dense_gradients_train_as_with_keras(name):
    ours, theirs, options = OPTIMIZERS[name]
    if theirs is None:
        pytest.skip("Keras has none")
    start = random(0, 6, 4)
    results = []
    for make in (ours, theirs):
        variable = tf.Variable(start)
        optimizer = make(0.125, **options)
        for step in range(4):
            gradient = tf.constant(random(step + 1, 6, 4))
            optimizer.apply_gradients([(gradient, variable)])
        results.append(variable.numpy())
    np.testing.assert_allclose(*results, rtol=2e-5, atol=2e-6)


@each_optimizer
@pytest.mark.parametrize("dtype", [tf.float16, tf.bfloat16, tf.float64])
def test_slots_of_small_types_are_float(name, dtype):
    ours, _, options = OPTIMIZERS[name]
    variable = tf.Variable(tf.ones([4, 2], dtype))
    optimizer = ours(0.25, **options)
    gradient = tf.IndexedSlices(tf.ones([2, 2], dtype), tf.constant([3, 1]))
    optimizer.apply_gradients([(gradient, variable)])
    wanted = tf.float64 if dtype == tf.float64 else tf.float32
    for slot in optimizer.slots(variable).values():
        assert keras_variants.native(slot).dtype == wanted
    values = variable.numpy().astype(np.float64)
    assert (values[[1, 3]] != 1).all()
    np.testing.assert_array_equal(values[[0, 2]], 1)


def step_of_rows(optimizer, variable, jit_compile):
    """Returns an update of rows 5, 2 and 5 by the values that it is called with."""

    @tf.function(jit_compile=jit_compile)
    def step(values):
        gradient = tf.IndexedSlices(values, tf.constant([5, 2, 5]))
        optimizer.apply_gradients([(gradient, variable)])

    return step


@pytest.mark.parametrize("jit_compile", [False, True], ids=["kernels", "xla"])
def test_ftrl_makes_zero_of_rows_with_gradients_of_zero_alone(jit_compile):
    variable = tf.Variable(random(0, 6, 4))
    optimizer = tfs.keras.FTRL(0.125, initial_accumulator_value=0)
    optimizer.build([variable])

    step = step_of_rows(optimizer, variable, jit_compile)
    step(tf.zeros([3, 4]))
    np.testing.assert_array_equal(variable.numpy()[[2, 5]], 0)
    step(tf.ones([3, 4]))
    assert (variable.numpy()[[2, 5]] < 0).all()


@pytest.mark.parametrize("jit_compile", [False, True], ids=["kernels", "xla"])
@pytest.mark.parametrize("kind", [tfs.keras.Adagrad, tfs.keras.RowwiseAdagrad])
def test_adagrad_leaves_rows_with_gradients_of_zero_alone(kind, jit_compile):
    variable = tf.Variable(random(0, 6, 4))
    before = variable.numpy()
    optimizer = kind(0.125, initial_accumulator_value=0, epsilon=0)
    optimizer.build([variable])

    step = step_of_rows(optimizer, variable, jit_compile)
    step(tf.zeros([3, 4]))
    np.testing.assert_array_equal(variable, before)
    step(tf.ones([3, 4]))
    assert (variable.numpy()[[2, 5]] < before[[2, 5]]).all()


def test_rowwise_adagrad_keeps_a_number_for_each_row():
    shapes = {(6, 4): (6, 1), (3, 2, 5): (3, 1, 1), (7,): (7,), (): ()}
    variables = [tf.Variable(tf.ones(shape)) for shape in shapes]
    optimizer = tfs.keras.RowwiseAdagrad()
    optimizer.build(variables)
    for variable, shape in zip(variables, shapes.values(), strict=True):
        slots = optimizer.slots(variable)
        assert {name: tuple(x.shape) for name, x in slots.items()} == {
            "accumulator": shape
        }


def test_gradient_descent_without_momentum_keeps_nothing():
    variable = tf.Variable(tf.ones([6, 4]))
    optimizer = tfs.keras.SGD(nesterov=True)
    optimizer.build([variable])
    assert optimizer.slots(variable) == {}
    assert all(x.shape == () for x in optimizer.variables)


@each_optimizer
def test_rows_are_kept_one_by_one_for_a_checkpoint(name):
    ours, _, options = OPTIMIZERS[name]
    writes_rows_only = keeping._writes_rows_of_gradients_only
    assert writes_rows_only(ours(**options))
    assert not writes_rows_only(ours(**options, weight_decay=0.5))
    assert not writes_rows_only(ours(**options, use_ema=True))


NOT_NEGATIVE, BELOW_ONE = "in the range [0, inf)", "in the range [0, 1)"
AT_MOST_ZERO, A_NUMBER = "a finite number of at most 0", "a number"


@pytest.mark.parametrize(
    ("kind", "options", "rule"),
    [
        ("Adagrad", {"learning_rate": -1.0}, NOT_NEGATIVE),
        ("Adagrad", {"epsilon": -1}, NOT_NEGATIVE),
        ("RowwiseAdagrad", {"initial_accumulator_value": "much"}, A_NUMBER),
        ("FTRL", {"learning_rate": -0.5}, NOT_NEGATIVE),
        ("FTRL", {"learning_rate_power": 0.5}, AT_MOST_ZERO),
        ("FTRL", {"learning_rate_power": "x"}, AT_MOST_ZERO),
        ("FTRL", {"l2_shrinkage_regularization_strength": -0.5}, NOT_NEGATIVE),
        ("SGD", {"momentum": 1.5}, "in the range [0, 1]"),
        ("AdamAsync", {"learning_rate": -0.5}, NOT_NEGATIVE),
        ("AdamAsync", {"learning_rate": float("nan")}, NOT_NEGATIVE),
        ("AdamAsync", {"beta_1": 1.5}, BELOW_ONE),
        ("AdamAsync", {"beta_1": -0.1}, BELOW_ONE),
        ("AdamAsync", {"beta_2": 1}, BELOW_ONE),
        ("AdamAsync", {"beta_2": "0.9"}, A_NUMBER),
        ("AdamAsync", {"epsilon": -1e-7}, NOT_NEGATIVE),
        ("AdamAsync", {"epsilon": True}, A_NUMBER),
        ("AdamAsync", {"rmsprop_momentum": 1.0}, BELOW_ONE),
        ("AdamAsync", {"ema_momentum": 2, "use_ema": True}, "in the range [0, 1]"),
    ],
    ids=str,
)
def test_number_out_of_range_is_refused_in_a_sentence(kind, options, rule):
    name, value = next(iter(options.items()))
    message = f"`{name}` must be {rule}. Received: {name}={value!r}"
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        getattr(tfs.keras, kind)(**options)


@pytest.mark.parametrize("jit_compile", [False, True], ids=["kernels", "xla"])
@pytest.mark.parametrize("kind", ["dense", "sparse"])
def test_steps_of_ftrl_at_a_rate_of_zero_change_nothing(kind, jit_compile):
    schedule = tf.keras.optimizers.schedules.PiecewiseConstantDecay(
        [0, 1], [0.5, 0.0, 0.5]
    )
    variable = tf.Variable(random(0, 3, 4))
    optimizer = tfs.keras.FTRL(schedule, l1_regularization_strength=0.1)
    optimizer.build([variable])
    gradient = tf.constant(random(1, 3, 4))
    if kind == "sparse":
        gradient = tf.IndexedSlices(gradient, tf.constant([2, 0, 2]))

    @tf.function(jit_compile=jit_compile)
    def step():
        optimizer.apply_gradients([(gradient, variable)])

    def values():
        return [x.numpy() for x in (variable, *optimizer.slots(variable).values())]

    step()
    before = values()
    step()
    assert_same(values(), before)
    step()
    for new, old in zip(values(), before, strict=True):
        assert np.isfinite(new).all()
        assert (new[[0, 2]] != old[[0, 2]]).any()


@pytest.mark.parametrize("width", [16, 64])
def test_page_says_the_bytes_that_each_optimizer_keeps_for_a_row(width):
    made = {
        "`SGD` without momentum": tfs.keras.SGD(),
        "`RowwiseAdagrad`": tfs.keras.RowwiseAdagrad(),
        "`Adagrad`": tfs.keras.Adagrad(),
        "`SGD` with momentum": tfs.keras.SGD(momentum=0.5),
        "`FTRL`": tfs.keras.FTRL(),
        "`AdamAsync`": tfs.keras.AdamAsync(),
    }
    table = tf.Variable(tf.zeros([100, width]))
    kept = {}
    for name, optimizer in made.items():
        optimizer.build([table])
        slots = map(keras_variants.native, optimizer.slots(table).values())
        of_rows = [x for x in slots if x.shape[0] == 100]
        sizes = [x.shape.num_elements() * x.dtype.size for x in of_rows]
        kept[name] = str(sum(sizes) // 100)
    page = (pathlib.Path(__file__).parents[3] / "docs" / "optimizers.md").read_text()
    heading, _, *lines = re.findall(r"^\|.*\|$", page.split("## Memory")[1], re.M)
    heading, *rows = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in (heading, *lines[: len(made)])
    ]
    said = {row[0]: row[heading.index(f"`d` = {width}")] for row in rows}
    assert said == kept


def test_rule_that_overrides_nothing_says_so():
    with pytest.raises(NotImplementedError):
        tfs.keras.LazyOptimizer(0.1).build([tf.Variable(tf.ones([3]))])
