"""The ops that update a variable by a rule: each rule against its float64 twin."""

import itertools
import re
import threading

import numpy as np
import pytest
import rule_reference
import tensorflow as tf
from combinations import thinned
from rule_numbers import NUMBERS

import tf_syncrep as tfs
from tf_syncrep.python.ops import rule_ops

DTYPES = (tf.float16, tf.bfloat16, tf.float32, tf.float64)
TOLERANCE = {tf.float16: 2e-3, tf.bfloat16: 1.6e-2, tf.float32: 5e-6, tf.float64: 1e-12}
ROWS = 1000
INDICES = np.array([3, 999, 3, 0, 17, 500])

each_rule = pytest.mark.parametrize("rule", NUMBERS)
MODES = ["eager", "function", "session", "reference"]
each_mode = pytest.mark.parametrize("mode", MODES)
each_kind = pytest.mark.parametrize("kind", ["dense", "sparse"])


def random_array(seed, shape, dtype):
    """Numbers around zero, none of them so small that tolerances fail."""
    random = np.random.default_rng(seed)
    signs = random.choice([-1.0, 1.0], size=shape)
    numbers = np.asarray(signs * random.uniform(0.25, 2.0, size=shape))
    return numbers.astype(dtype.as_numpy_dtype)


def ones(kind):
    """A gradient of a variable of shape [6, 4], and its indices if it is sparse."""
    if kind == "sparse":
        return tf.ones([2, 4]), np.array([0, 1])
    return tf.ones([6, 4]), None


class State:
    """Values of a variable and its slots, and the steps that begin with them."""

    def __init__(self, rule, shape, dtype=tf.float32, seed=1):
        self.rule, self.numbers = rule, NUMBERS[rule]
        self.slot_dtype = tf.float64 if dtype == tf.float64 else tf.float32
        self.var = random_array(seed, shape, dtype)
        slot_shape = rule_reference.slot_shape(rule, shape)
        self.slots = {
            name: np.abs(random_array(seed + 1 + i, slot_shape, self.slot_dtype))
            for i, name in enumerate(rule_ops.RULES[rule].slots)
        }

    def make(self, use_resource=True):
        """Variables with these values: the variable, and its slots by name."""

        def variable(value):
            return tf.compat.v1.Variable(tf.constant(value), use_resource=use_resource)

        return variable(self.var), {k: variable(v) for k, v in self.slots.items()}

    def apply(self, var, slots, grad, indices=None, **options):
        ops = tfs.ops
        if hasattr(var, "handle"):
            dense, sparse = ops.resource_apply_rule, ops.resource_sparse_apply_rule
        else:
            dense, sparse = ops.apply_rule, ops.sparse_apply_rule
        operands = (self.rule, var, slots, self.numbers, grad)
        if indices is None:
            return dense(*operands)
        return sparse(*operands, indices, **options)

    def step(self, grad, indices=None, mode="eager"):
        """The values of the variable and its slots after a step."""
        if mode in ("session", "reference"):
            with tf.Graph().as_default(), tf.compat.v1.Session() as session:
                var, slots = self.make(use_resource=mode == "session")
                op = self.apply(var, slots, tf.constant(grad), indices)
                session.run(tf.compat.v1.global_variables_initializer())
                session.run(op)
                return session.run((var, slots))
        var, slots = self.make()
        if mode == "function":

            @tf.function
            def run():
                self.apply(var, slots, tf.constant(grad), indices)

            run()
        else:
            self.apply(var, slots, tf.constant(grad), indices)
        return var.numpy(), {k: v.numpy() for k, v in slots.items()}

    def check(self, after, grad, indices=None, tolerance=None):
        """Compares the result of a step with the twin."""
        var, slots = rule_reference.apply(
            self.rule, self.var, self.slots, self.numbers, grad, indices
        )
        pairs = [(after[0], var), *((after[1][k], slots[k]) for k in slots)]
        for got, want in pairs:
            error = tolerance or TOLERANCE[tf.as_dtype(got.dtype)]
            np.testing.assert_allclose(
                got.astype(np.float64), want, rtol=error, atol=error
            )
        assert pairs[0][0].dtype == self.var.dtype

    def expect_error(self, message, grad, indices=None, error=None, change=None):
        """A step fails with this message, and writes nothing."""
        var, slots = self.make()
        if change is not None:
            change(slots)
        before = [x.numpy() for x in (var, *slots.values())]
        kind = error or tf.errors.InvalidArgumentError
        with pytest.raises(kind, match=re.escape(message)):
            self.apply(var, slots, grad, indices)
        for x, value in zip((var, *slots.values()), before, strict=True):
            np.testing.assert_array_equal(x.numpy(), value)


def test_every_rule_is_tested():
    assert set(NUMBERS) == set(rule_ops.RULES)
    for rule, numbers in NUMBERS.items():
        assert tuple(numbers) == rule_ops.RULES[rule].numbers


@thinned("rule, how", NUMBERS, itertools.product(MODES, DTYPES))
def test_dense_step_agrees_with_the_twin(rule, how):
    mode, dtype = how
    state = State(rule, (6, 5), dtype)
    grad = random_array(10, (6, 5), dtype)
    state.check(state.step(grad, mode=mode), grad)


@each_rule
@pytest.mark.parametrize("shape", [(), (7,), (1, 4), (3, 2, 5), (0, 3), (4, 0)])
def test_dense_variables_of_any_shape_are_updated(shape, rule):
    state = State(rule, shape)
    grad = random_array(11, shape, tf.float32)
    state.check(state.step(grad), grad)


@thinned("rule, how", NUMBERS, itertools.product(MODES, DTYPES, (np.int32, np.int64)))
def test_sparse_step_agrees_with_the_twin(rule, how):
    mode, dtype, index_dtype = how
    state = State(rule, (6, 5), dtype)
    indices = np.array([4, 1, 4, 0, 4, 1], index_dtype)
    grad = np.abs(random_array(12, (6, 5), dtype))
    after = state.step(grad, indices, mode)
    state.check(after, grad, indices)
    for now, before in [
        (after[0], state.var),
        *((after[1][k], state.slots[k]) for k in state.slots),
    ]:
        np.testing.assert_array_equal(now[[2, 3, 5]], before[[2, 3, 5]])


@each_rule
@pytest.mark.parametrize("row_shape", [(), (1,), (17,), (65,), (1100,), (3, 5)])
def test_rows_of_any_shape_are_updated_as_wholes(row_shape, rule):
    state = State(rule, (9, *row_shape))
    indices = np.array([8, 0, 3, 3, 8])
    grad = np.abs(random_array(13, (5, *row_shape), tf.float32))
    state.check(state.step(grad, indices), grad, indices, tolerance=2e-5)


@each_rule
def test_any_power_of_the_learning_rate_agrees_with_the_twin(rule):
    if rule != "ftrl":
        pytest.skip("a number of ftrl")
    for power in (-0.25, 0.0):
        state = State(rule, (6, 5))
        state.numbers = {**state.numbers, "lr_power": power}
        grad = random_array(14, (6, 5), tf.float32)
        state.check(state.step(grad), grad, tolerance=2e-5)


@each_rule
def test_many_rows_get_the_same_bits_on_any_number_of_threads(rule):
    """A session with several threads, and one with a single thread."""
    state = State(rule, (3000, 9))
    indices = (np.random.default_rng(15).zipf(1.3, size=5000) - 1) % 3000
    grad = np.abs(random_array(16, (5000, 9), tf.float32)) / 16
    results = []
    for threads in (1, 4):
        config = tf.compat.v1.ConfigProto(intra_op_parallelism_threads=threads)
        graph = tf.Graph()
        with graph.as_default(), tf.compat.v1.Session(config=config) as session:
            var, slots = state.make()
            op = state.apply(var, slots, tf.constant(grad), indices)
            session.run(tf.compat.v1.global_variables_initializer())
            session.run(op)
            results.append(session.run([var, *slots.values()]))
    for one, four in zip(*results, strict=True):
        assert one.tobytes() == four.tobytes()
    after = results[0][0], dict(zip(state.slots, results[0][1:], strict=True))
    state.check(after, grad, indices, tolerance=1e-3)


@each_rule
@each_mode
def test_no_indices_change_nothing(mode, rule):
    state = State(rule, (5, 3))
    var, slots = state.step(np.zeros([0, 3], np.float32), np.zeros([0], np.int64), mode)
    np.testing.assert_array_equal(var, state.var)
    for name, slot in slots.items():
        np.testing.assert_array_equal(slot, state.slots[name])


@each_rule
@each_kind
def test_what_was_read_before_does_not_change_under_its_reader(kind, rule):
    state = State(rule, (ROWS, 4))
    var, slots = state.make()
    indices = INDICES if kind == "sparse" else None
    grad = tf.ones([len(INDICES) if kind == "sparse" else ROWS, 4])
    state.apply(var, slots, grad, indices)
    held = [x.read_value() for x in (var, *slots.values())]
    copies = [x.numpy().copy() for x in held]
    state.apply(var, slots, grad, indices)
    for tensor, copy in zip(held, copies, strict=True):
        np.testing.assert_array_equal(tensor.numpy(), copy)
    assert (var.numpy() != copies[0]).any()


@each_rule
def test_no_update_of_concurrent_callers_is_lost(rule):
    """All gradients are equal, so that the order of the updates does not matter."""
    state = State(rule, (3, 40))
    indices, grad = np.array([2, 0, 2, 1]), np.full([4, 40], 0.25, np.float32)
    expected = state.make()
    for _ in range(60):
        state.apply(*expected, grad, indices)
    var, slots = state.make()

    def work():
        for _ in range(20):
            state.apply(var, slots, grad, indices)

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    np.testing.assert_array_equal(var.numpy(), expected[0].numpy())
    for name, slot in slots.items():
        np.testing.assert_array_equal(slot.numpy(), expected[1][name].numpy())


@each_kind
@pytest.mark.parametrize("power", [-0.5, -0.25])
def test_ftrl_makes_zero_of_what_had_no_gradient_that_can_be_squared(power, kind):
    state = State("ftrl", (3, 20))
    zeros = dict.fromkeys(("l1", "l2", "beta"), 0.0)
    state.numbers = {**NUMBERS["ftrl"], "lr_power": power, **zeros}
    for slot in state.slots.values():
        slot[:] = 0
    # The square of the first number is zero in float32, and in the twin it is not.
    grad = np.array([[1e-30], [0.0], [-2.0]], np.float32) * np.ones([3, 20], np.float32)
    var, slots = state.step(grad, np.arange(3) if kind == "sparse" else None)
    np.testing.assert_array_equal(var[:2], 0)
    np.testing.assert_array_equal(slots["accumulator"][:2], 0)
    assert (np.isfinite(var[2]) & (var[2] != 0)).all()
    twin, _ = rule_reference.apply(
        "ftrl", state.var, state.slots, state.numbers, np.zeros([3, 20])
    )
    np.testing.assert_array_equal(twin, 0)


@each_kind
@pytest.mark.parametrize("rule", ["adagrad", "rowwise_adagrad"])
def test_adagrad_leaves_what_had_no_gradient_that_can_be_squared(rule, kind):
    state = State(rule, (3, 20))
    state.numbers = {**NUMBERS[rule], "epsilon": 0.0}
    for slot in state.slots.values():
        slot[:] = 0
    grad = np.array([[1e-30], [0.0], [-2.0]], np.float32) * np.ones([3, 20], np.float32)
    indices = np.arange(3) if kind == "sparse" else None
    var, slots = state.step(grad, indices)
    np.testing.assert_array_equal(var[:2], state.var[:2])
    np.testing.assert_array_equal(slots["accumulator"][:2], 0)
    grad[0] = 0  # Its square is not zero in the twin.
    state.check((var, slots), grad, indices)


@each_rule
@pytest.mark.parametrize("use_resource", [True, False], ids=["resource", "ref"])
def test_a_step_with_use_locking_has_the_same_bits(use_resource, rule):
    state = State(rule, (ROWS, 4))
    grad, results = random_array(17, (len(INDICES), 4), tf.float32), []
    for use_locking in (False, True):
        with tf.Graph().as_default(), tf.compat.v1.Session() as session:
            var, slots = state.make(use_resource)
            op = state.apply(
                var, slots, tf.constant(grad), INDICES, use_locking=use_locking
            )
            session.run(tf.compat.v1.global_variables_initializer())
            before = session.run(var)
            session.run(op)
            results.append(session.run([var, *slots.values()]))
            # What was read before has not changed with the variable.
            np.testing.assert_array_equal(before, state.var)
    for one, other in zip(*results, strict=True):
        assert one.tobytes() == other.tobytes()


@each_rule
@pytest.mark.parametrize("bad", [ROWS, -1, 2**40])
def test_an_index_out_of_range_leaves_everything_as_it_was(bad, rule):
    indices = INDICES.copy()
    indices[3] = bad
    State(rule, (ROWS, 4)).expect_error(
        f"indices[3] = {bad} is out of range: it must be in [0, 1000), the rows of var",
        tf.ones([len(indices), 4]),
        indices,
    )


@each_rule
@each_kind
def test_a_slot_must_have_the_shape_that_the_variable_calls_for(kind, rule):
    state = State(rule, (6, 4))
    if not state.slots:
        pytest.skip("has no slots")
    name = next(iter(state.slots))

    def shorten(slots):
        slots[name] = tf.Variable(slots[name][:5])

    message = f"{name} must have the shape of var, [6,4], but has shape [5,4]"
    if rule_ops.RULES[rule].is_rowwise:
        wanted = "must have shape [6,1] for a var of shape [6,4]"
        message = f"{name} {wanted}, but has shape [5,1]"
    state.expect_error(message, *ones(kind), change=shorten)


@each_rule
@each_kind
def test_every_number_must_be_a_scalar(kind, rule):
    for name in NUMBERS[rule]:
        state = State(rule, (6, 4))
        state.numbers = {**state.numbers, name: [0.5, 0.5]}
        message = f"{name} must be a scalar, but has shape [2]"
        state.expect_error(message, *ones(kind))


@each_kind
def test_ftrl_with_a_learning_rate_of_zero_changes_nothing(kind):
    state = State("ftrl", (6, 4))
    state.numbers = {**state.numbers, "lr": 0.0}
    var, slots = state.step(*ones(kind))
    np.testing.assert_array_equal(var, state.var)
    for name, slot in slots.items():
        np.testing.assert_array_equal(slot, state.slots[name])


@pytest.mark.parametrize("rate", [-1.0, np.nan], ids=str)
@each_kind
def test_ftrl_divides_by_its_learning_rate(kind, rate):
    state = State("ftrl", (6, 4))
    state.numbers = {**state.numbers, "lr": rate}
    message = "lr of rule ftrl must be at least 0, but is"
    state.expect_error(message, *ones(kind))


@each_rule
def test_gradients_must_fit_the_variable(rule):
    state = State(rule, (6, 4))
    state.expect_error(
        "grad must have the shape of var, [6,4], but has shape [6,3]", tf.ones([6, 3])
    )
    state.expect_error(
        "grad must have shape [2,4] for 2 indices and a var of shape [6,4], "
        "but has shape [2,3]",
        tf.ones([2, 3]),
        np.array([0, 1]),
    )
    state.expect_error(
        "indices must be a vector, but has shape [1,2]",
        tf.ones([2, 4]),
        np.array([[0, 1]]),
    )
    State(rule, ()).expect_error(
        "var must have at least rank 1 for a sparse gradient, but has shape []",
        tf.ones([1]),
        np.array([0]),
    )


def test_shapes_of_no_elements_may_be_too_large_with_rows():
    without_rows = tf.Variable(tf.zeros([0, 1 << 62]))
    indices, lr = np.array([0, 1]), {"lr": 0.1}
    with pytest.raises(tf.errors.InvalidArgumentError, match="overflow"):
        tfs.ops.resource_sparse_apply_rule(
            "sgd", without_rows, {}, lr, tf.zeros([2, 1]), indices
        )
    without_columns = tf.Variable(tf.zeros([1 << 32, 0, 1 << 32]))
    with pytest.raises(tf.errors.InvalidArgumentError, match="accum"):
        tfs.ops.resource_apply_rule(
            *("rowwise_adagrad", without_columns, {"accumulator": tf.Variable([0.0])}),
            *({**lr, "epsilon": 1.0}, tf.zeros([1])),
        )


def test_a_sparse_update_is_of_fewer_rows_than_32_bits_can_count():
    without_columns = tf.Variable(tf.zeros([1 << 32, 0]))
    with pytest.raises(
        tf.errors.InvalidArgumentError,
        match=r"var must have at most 4294967295 rows .*, but has 4294967296",
    ):
        tfs.ops.resource_sparse_apply_rule(
            *("sgd", without_columns, {}, {"lr": 0.1}, tf.zeros([1, 0]), [0])
        )


def test_one_variable_cannot_be_two_inputs():
    var = tf.Variable(tf.ones([3, 2]))
    with pytest.raises(
        tf.errors.InvalidArgumentError, match="must be different variables"
    ):
        tfs.ops.resource_apply_rule(
            "adagrad", var, {"accumulator": var}, NUMBERS["adagrad"], tf.ones([3, 2])
        )


def test_slots_are_float_beside_half():
    var = tf.Variable(tf.ones([3, 2], tf.float16))
    accumulator = tf.Variable(tf.ones([3, 2], tf.float16))
    with pytest.raises(
        tf.errors.InvalidArgumentError,
        match="accumulator must be a variable of dtype float, but has dtype half",
    ):
        tfs.ops.resource_apply_rule(
            "adagrad",
            var,
            {"accumulator": accumulator},
            NUMBERS["adagrad"],
            tf.ones([3, 2], tf.float16),
        )


@pytest.mark.parametrize(
    ("rule", "slots", "numbers", "message"),
    [
        ("adam", {}, {}, "`rule` must be one of ['adagrad', 'ftrl', "),
        (
            "adagrad",
            {"sum": 1},
            {},
            "`slots` of rule 'adagrad' must be ['accumulator']. Received: ['sum']",
        ),
        (
            "sgd",
            {},
            {"lr": 1, "beta": 2},
            "`numbers` of rule 'sgd' must be ['lr']. Received: ['lr', 'beta']",
        ),
    ],
    ids=["rule", "slots", "numbers"],
)
@each_kind
def test_names_are_checked(kind, rule, slots, numbers, message):
    var = tf.Variable(tf.ones([3, 2]))
    apply = tfs.ops.resource_apply_rule
    gradient = [tf.ones([3, 2])]
    if kind == "sparse":
        apply = tfs.ops.resource_sparse_apply_rule
        gradient = [tf.ones([1, 2]), [0]]
    with pytest.raises(ValueError, match=re.escape(message)):
        apply(rule, var, slots, numbers, *gradient)


@each_rule
@each_kind
def test_known_shapes_are_checked_when_a_graph_is_built(kind, rule):
    with tf.Graph().as_default():
        state = State(rule, (6, 4))
        var, slots = state.make()
        good, bad = tf.ones([6, 4]), tf.ones([6, 3])
        indices = None if kind == "dense" else [0, 1, 2, 3, 4, 5]
        with pytest.raises(ValueError, match=r"grad must have shape \[6,4\]"):
            state.apply(var, slots, bad, indices)
        state.numbers = {**state.numbers, "lr": [1.0, 2.0]}
        with pytest.raises(ValueError, match="lr must be a scalar, but has shape"):
            state.apply(var, slots, good, indices)
        for name in slots:
            other = {**slots, name: tf.Variable(tf.ones([5, 7]))}
            state.numbers = NUMBERS[rule]
            with pytest.raises(ValueError, match=f"{name} must have shape"):
                state.apply(var, other, good, indices)


@each_rule
@each_kind
def test_errors_leave_reference_variables_as_they_were(kind, rule):
    state = State(rule, (6, 4))
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        var, slots = state.make(use_resource=False)
        with pytest.raises(ValueError, match=r"grad must have shape \[.,4\]"):
            state.apply(
                var, slots, tf.ones([2, 3]), None if kind == "dense" else [0, 1]
            )
        # Of this shape, or of this index, the op hears when it runs.
        grad = tf.compat.v1.placeholder_with_default(
            tf.ones([2, 4]), [None, 4] if kind == "sparse" else None
        )
        op = state.apply(var, slots, grad, None if kind == "dense" else [5, 6])
        session.run(tf.compat.v1.global_variables_initializer())
        message = {
            "dense": r"grad must have the shape of var, \[6,4\], but has shape \[2,4\]",
            "sparse": r"indices\[1\] = 6 is out of range: it must be in \[0, 6\)",
        }[kind]
        with pytest.raises(tf.errors.InvalidArgumentError, match=message):
            session.run(op)
        np.testing.assert_array_equal(session.run(var), state.var)
        for name, slot in slots.items():
            np.testing.assert_array_equal(session.run(slot), state.slots[name])
