"""The ops that update a variable by a rule or by AdamAsync, against float64 twins."""

import itertools
import re

import numpy as np
import pytest
import tensorflow as tf
from combinations import thinned
from rule_numbers import NUMBERS
from rule_steps import (
    CASES,
    DTYPES,
    MODES,
    State,
    assert_same_bits,
    random_array,
    state_of,
)

import tf_syncrep as tfs
from tf_syncrep.python.ops import rule_ops

pytestmark = pytest.mark.usefixtures("device")

ROWS = 1000
INDICES = np.array([3, 999, 3, 0, 17, 500])

each_case = pytest.mark.parametrize("case", CASES)
each_kind = pytest.mark.parametrize("kind", ["dense", "sparse"])


def each(*axes):
    """Each case, the first of which has all combinations by day; see `thinned`."""
    return thinned("case, how", CASES, itertools.product(*axes))


KINDS, RESOURCE_OR_NOT = ("dense", "sparse"), (True, False)


def ones(kind, dtype=tf.float32):
    """A gradient of a variable of shape [6, 4], and its indices if it is sparse."""
    if kind == "sparse":
        return tf.ones([2, 4], dtype), np.array([0, 1])
    return tf.ones([6, 4], dtype), None


def values(variables):
    return {name: x.numpy() for name, x in variables.items()}


def test_every_rule_is_tested():
    assert set(NUMBERS) == set(rule_ops.RULES)
    for rule, numbers in NUMBERS.items():
        assert tuple(numbers) == rule_ops.RULES[rule].numbers


@each(MODES, DTYPES)
def test_dense_step_agrees_with_the_twin(case, how):
    mode, dtype = how
    state = state_of(case, (6, 5), dtype)
    grad = random_array(10, (6, 5), dtype)
    state.check(state.step(grad, mode=mode), grad)


@thinned(
    "case, shape",
    CASES,
    [(), (7,), (1, 4), (65,), (3, 2, 5), (321, 1013), (0, 3), (4, 0)],
)
def test_dense_variables_of_any_shape_are_updated(shape, case):
    state = state_of(case, shape)
    grad = random_array(11, shape, tf.float32)
    state.check(state.step(grad), grad, tolerance=2e-5)


@each(MODES, DTYPES, (np.int32, np.int64))
def test_sparse_step_agrees_with_the_twin(case, how):
    mode, dtype, index_dtype = how
    state = state_of(case, (6, 5), dtype)
    indices = np.array([4, 1, 4, 0, 4, 1], index_dtype)
    grad = np.abs(random_array(12, (6, 5), dtype))
    after = state.step(grad, indices, mode)
    state.check(after, grad, indices)
    for name, value in after.items():
        if value.shape[:1] == (6,):
            np.testing.assert_array_equal(
                value[[2, 3, 5]], state.values[name][[2, 3, 5]]
            )


@thinned("case, row_shape", CASES, [(), (0,), (1,), (17,), (65,), (1100,), (3, 5)])
def test_rows_of_any_shape_are_updated_as_wholes(row_shape, case):
    state = state_of(case, (9, *row_shape))
    indices = np.array([8, 0, 3, 3, 8])
    grad = np.abs(random_array(13, (5, *row_shape), tf.float32))
    state.check(state.step(grad, indices), grad, indices, tolerance=2e-5)


@pytest.mark.parametrize("power", [-0.25, 0.0])
def test_any_power_of_the_learning_rate_agrees_with_the_twin(power):
    state = State("ftrl", (6, 5))
    state.numbers = {**state.numbers, "lr_power": power}
    grad = random_array(14, (6, 5), tf.float32)
    state.check(state.step(grad), grad, tolerance=2e-5)


@each_case
def test_many_rows_get_the_same_bits_on_any_number_of_threads(case):
    """A session with several threads, and one with a single thread."""
    state = state_of(case, (3000, 9))
    indices = (np.random.default_rng(15).zipf(1.3, size=5000) - 1) % 3000
    grad = np.abs(random_array(16, (5000, 9), tf.float32)) / 16
    results = []
    for threads in (1, 4):
        config = tf.compat.v1.ConfigProto(intra_op_parallelism_threads=threads)
        graph = tf.Graph()
        with graph.as_default(), tf.compat.v1.Session(config=config) as session:
            variables = state.make()
            op = state.apply(variables, tf.constant(grad), indices)
            session.run(tf.compat.v1.global_variables_initializer())
            session.run(op)
            results.append(session.run(variables))
    assert_same_bits(*results)
    state.check(results[0], grad, indices, tolerance=1e-3)


@thinned("case, dtype", CASES, DTYPES)
def test_the_order_of_different_rows_changes_no_bit(case, dtype):
    """The occurrences of each row must stay in their order."""
    state = state_of(case, (500, 7), dtype)
    indices = (np.random.default_rng(20).zipf(1.3, size=2000) - 1) % 500
    grad = random_array(21, (2000, 7), dtype)
    ascending = np.argsort(indices, kind="stable")
    assert_same_bits(
        state.step(grad[ascending], indices[ascending]), state.step(grad, indices)
    )


@each(MODES, (0, 5))
def test_no_indices_change_nothing(case, how):
    mode, rows = how
    state = state_of(case, (rows, 3))
    grad, indices = np.zeros([0, 3], np.float32), np.zeros([0], np.int64)
    state.is_unchanged(state.step(grad, indices, mode))


@each(KINDS, (*KINDS, "locking"))
def test_what_was_read_before_does_not_change_under_its_reader(case, how):
    """This also holds if the update before was of the other kind."""
    first, second = how
    state = state_of(case, (ROWS, 4))
    variables = state.make()

    def update(kind):
        if kind == "dense":
            return state.apply(variables, tf.ones([ROWS, 4]))
        options = {"use_locking": True} if kind == "locking" else {}
        grad = tf.ones([len(INDICES), 4])
        return state.apply(variables, grad, INDICES, **options)

    update(first)
    held = [x.read_value() for x in variables.values()]
    views = [x.numpy() for x in variables.values()]
    copies = [x.copy() for x in views]
    update(second)
    for tensor, view, copy in zip(held, views, copies, strict=True):
        np.testing.assert_array_equal(tensor.numpy(), copy)
        np.testing.assert_array_equal(view, copy)
    assert (variables["var"].numpy() != copies[0]).any()


@each_case
@each_kind
def test_assigning_and_updating_take_turns(kind, case):
    """assign, assign_add and scatter_sub work on a variable that ops have updated."""
    state = state_of(case, (6, 4))
    variables = state.make()
    for _ in range(2):
        state.apply(variables, *ones(kind))
        for name, value in state.values.items():
            variables[name].assign(value)
        variables["var"].assign_add(tf.ones([6, 4]))
        variables["var"].scatter_sub(tf.IndexedSlices(tf.ones([1, 4]), [2]))
    state.values["var"] = state.values["var"] + 1
    state.values["var"][2] -= 1
    state.apply(variables, *ones(kind))
    state.check(values(variables), *ones(kind))


def allocated_bytes(session, op):
    """Runs the op; returns the bytes of all tensors that it allocated."""
    metadata = tf.compat.v1.RunMetadata()
    trace = tf.compat.v1.RunOptions(
        trace_level=tf.compat.v1.RunOptions.FULL_TRACE  # type: ignore
    )
    session.run(op, options=trace, run_metadata=metadata)
    nodes = [
        node
        for device in metadata.step_stats.dev_stats
        for node in device.node_stats
        if node.node_name == op.name
    ]
    assert nodes
    return sum(memory.total_bytes for node in nodes for memory in node.memory)


@each_case
@pytest.mark.parametrize("kind", ["dense", "sparse", "locking"])
def test_a_step_copies_tables_only_from_under_their_readers(kind, case):
    state = state_of(case, (ROWS, 16))
    indices = None if kind == "dense" else np.arange(0, ROWS, 100)
    grad = np.ones([ROWS if indices is None else len(indices), 16], np.float32)
    options = {"use_locking": True} if kind == "locking" else {}
    tables = [x.nbytes for x in state.values.values() if x.ndim]
    graph = tf.Graph()
    with graph.as_default(), tf.device("CPU:0"), tf.compat.v1.Session() as session:
        op = state.apply(state.make(), grad, indices, **options)
        session.run(tf.compat.v1.global_variables_initializer())
        # The variables still share the buffers of the constants with which they began.
        assert allocated_bytes(session, op) >= sum(tables)
        for _ in range(2):
            assert allocated_bytes(session, op) <= tables[0] / 10


@thinned("case, use_resource", CASES, RESOURCE_OR_NOT)
def test_a_step_with_use_locking_has_the_same_bits(case, use_resource):
    state = state_of(case, (ROWS, 4))
    grad, results = random_array(17, (len(INDICES), 4), tf.float32), []
    for use_locking in (False, True):
        with tf.Graph().as_default(), tf.compat.v1.Session() as session:
            variables = state.make(use_resource)
            op = state.apply(
                variables, tf.constant(grad), INDICES, use_locking=use_locking
            )
            session.run(tf.compat.v1.global_variables_initializer())
            before = session.run(variables)
            session.run(op)
            results.append(session.run(variables))
            # What was read before has not changed with the variable.
            state.is_unchanged(before)
    assert_same_bits(*results)


BAD_INDICES = (
    (0, ROWS, np.int32),
    (3, -1, np.int64),
    (5, -(2**31), np.int32),
    (3, 2**32, np.int64),  # which is not truncated
)


@each(BAD_INDICES, (False, True))
def test_an_index_out_of_range_leaves_everything_as_it_was(case, how):
    (place, bad, index_dtype), use_locking = how
    indices = INDICES.astype(index_dtype)
    indices[place] = bad
    state_of(case, (ROWS, 4)).expect_error(
        f"indices[{place}] = {bad} is out of range: it must be in [0, 1000), "
        "the rows of var",
        *(tf.ones([len(indices), 4]), indices),
        use_locking=use_locking,
    )


@each_case
def test_the_first_index_that_is_no_row_is_named(case):
    rows = np.arange(100_000) % ROWS
    rows[[70_001, 99_998]] = [-5, 2**40]
    message = "indices[70001] = -5 is out of range: it must be in [0, 1000)"
    state_of(case, (ROWS, 4)).expect_error(message, tf.ones([100_000, 4]), rows)
    message = "indices[0] = 0 is out of range: it must be in [0, 0), the rows of var"
    state_of(case, (0, 4)).expect_error(message, tf.ones([1, 4]), np.array([0]))


def slots_like_var(state):
    """The slots whose shape follows from that of the variable."""
    return [name for name, x in state.slots.items() if x.ndim]


@each_case
@each_kind
def test_a_slot_must_have_the_shape_that_the_variable_calls_for(kind, case):
    state = state_of(case, (6, 4))
    for name in slots_like_var(state):

        def shorten(variables, name=name):
            variables[name] = tf.Variable(variables[name][:5])

        message = f"{name} must have the shape of var, [6,4], but has shape [5,4]"
        if case == "rowwise_adagrad":
            wanted = "must have shape [6,1] for a var of shape [6,4]"
            message = f"{name} {wanted}, but has shape [5,1]"
        state.expect_error(message, *ones(kind), change=shorten)


@each(KINDS, (((0.5,), "[1]"), (((0.5, 0.5),), "[1,2]")))
def test_every_number_must_be_a_scalar(case, how):
    kind, (value, shape) = how
    state = state_of(case, (6, 4))
    numbers = state.numbers
    for name in numbers:
        state.numbers = {**numbers, name: value}
        message = f"{name} must be a scalar, but has shape {shape}"
        state.expect_error(message, *ones(kind))


@pytest.mark.parametrize("rate", [-1.0, np.nan], ids=str)
@each_kind
def test_ftrl_divides_by_its_learning_rate(kind, rate):
    state = State("ftrl", (6, 4))
    state.numbers = {**state.numbers, "lr": rate}
    message = "lr of rule ftrl must be at least 0, but is"
    state.expect_error(message, *ones(kind))


@each_case
def test_gradients_must_fit_the_variable(case):
    state = state_of(case, (6, 4))
    for shape in ([6, 3], [24], [5, 4], []):
        text = str(shape).replace(" ", "")
        message = f"grad must have the shape of var, [6,4], but has shape {text}"
        state.expect_error(message, tf.ones(shape))
    for shape in ([2, 3], [3, 4], [8], [2, 4, 1]):
        text = str(shape).replace(" ", "")
        message = "grad must have shape [2,4] for 2 indices and a var of shape [6,4]"
        state.expect_error(
            f"{message}, but has shape {text}", tf.ones(shape), np.array([0, 1])
        )
    for indices, text in ((3, "[]"), ([[0, 1]], "[1,2]")):
        message = f"indices must be a vector, but has shape {text}"
        state.expect_error(message, tf.ones([2, 4]), np.array(indices))
    state_of(case, ()).expect_error(
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


@each_case
@each_kind
def test_one_variable_cannot_be_two_inputs(kind, case):
    state = state_of(case, (6, 4))
    for first, second in itertools.pairwise(state.values):
        variables = state.make()
        variables[second] = variables[first]
        with pytest.raises(tf.errors.InvalidArgumentError) as caught:
            state.apply(variables, *ones(kind))
        message = caught.value.message
        assert "must be different variables, but are the same one" in message
        for name in (first, second):
            assert re.search(rf"\b{name}\b.*\bmust", message)


@each_case
@each_kind
def test_a_variable_of_another_dtype_is_named(kind, case):
    """So are slots in half precision beside a variable in it."""
    for dtype, other in ((tf.float32, tf.float64), (tf.float16, tf.float16)):
        state = state_of(case, (6, 4), dtype)
        for name in state.values if dtype == tf.float32 else state.slots:

            def change(variables, name=name, other=other):
                variables[name] = tf.Variable(tf.cast(variables[name], other))

            got = "double" if other == tf.float64 else "half"
            message = f"{name} must be a variable of dtype float, but has dtype {got}"
            state.expect_error(message, *ones(kind, dtype), change=change)


OTHER_WIDTHS = (
    (tf.float64, tf.float32, ("double", "double", "float")),
    (tf.float32, tf.float64, ("float", "float", "double")),
    (tf.float16, tf.float64, ("float", "half", "double")),
    (tf.bfloat16, tf.float64, ("float", "bfloat16", "double")),
)


@each(KINDS, OTHER_WIDTHS)
def test_slots_must_be_as_wide_as_the_variable_asks(case, how):
    kind, (dtype, other, types) = how
    state = state_of(case, (6, 4), dtype)
    for name in state.slots:
        state.values[name] = state.values[name].astype(other.as_numpy_dtype)
    numbers = state.numbers

    def in_other():
        return {name: tf.constant(value, other) for name, value in numbers.items()}

    wanted, var, got = types
    message = f"Tslot must be {wanted} for T = {var}, but is {got}"
    state.numbers = in_other()
    state.expect_error(message, *ones(kind, dtype))
    with tf.Graph().as_default():
        state.numbers = in_other()
        with pytest.raises(ValueError, match=message):
            state.apply(state.make(), *ones(kind, dtype))


@each_case
@each_kind
def test_integers_are_no_gradient(kind, case):
    state = state_of(case, (6, 4))
    with pytest.raises((tf.errors.InvalidArgumentError, tf.errors.NotFoundError)):
        state.apply(state.make(), *ones(kind, tf.int32))


@each_case
@each_kind
def test_ops_of_reference_variables_say_that_they_need_a_graph(kind, case):
    state = state_of(case, (6, 4))
    var, *slots = state.make().values()
    op = state.OPS[False, kind == "sparse"]
    gradient = [x for x in ones(kind) if x is not None]
    with pytest.raises(RuntimeError, match="does not support eager execution"):
        state._call(op, var, slots, gradient)


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


@each(KINDS, RESOURCE_OR_NOT)
def test_known_shapes_are_checked_when_a_graph_is_built(case, how):
    kind, use_resource = how
    indices = None if kind == "dense" else [0, 1]
    rows = 6 if kind == "dense" else 2
    state = state_of(case, (6, 4))
    numbers = state.numbers

    def refused(message, shape=(rows, 4), indices=indices, **changed):
        grad = np.ones(shape, np.float32)
        with pytest.raises(ValueError, match=re.escape(message)):
            state.apply({**variables, **changed}, grad, indices)

    with tf.Graph().as_default():
        variables = state.make(use_resource)
        # A gradient of other rows, of other columns and of another rank.
        for bad in ((rows + 1, 4), (rows, 3), (7,)):
            refused(f"grad must have shape [{rows},4]", bad)
        for name in slots_like_var(state):
            other = tf.compat.v1.Variable(tf.ones([5, 7]), use_resource=use_resource)
            refused(f"{name} must have shape", **{name: other})
        for name in numbers:
            state.numbers = {**numbers, name: [1.0, 2.0]}
            refused(f"{name} must be a scalar, but has shape [2]")
        state.numbers = numbers
        if kind == "sparse":
            refused("indices must be a vector, but has shape [1,2]", indices=[[0, 1]])
            variables = state_of(case, ()).make(use_resource)
            refused(
                "var must have at least rank 1 for a sparse gradient, but has shape"
            )


@each(KINDS, RESOURCE_OR_NOT)
def test_shapes_known_only_in_a_session_are_checked_there(case, how):
    kind, use_resource = how
    state = state_of(case, (6, 4))
    numbers = state.numbers
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        grad, lr = (tf.compat.v1.placeholder(tf.float32) for _ in range(2))
        rows = tf.compat.v1.placeholder(tf.int64)
        variables = state.make(use_resource)
        state.numbers = {**numbers, "lr": lr}
        op = state.apply(variables, grad, None if kind == "dense" else rows)
        session.run(tf.compat.v1.global_variables_initializer())
        good = {grad: np.ones([6, 4]), rows: [], lr: 0.1}
        bad = [
            ({lr: [0.1]}, "lr must be a scalar, but has shape [1]"),
            ({grad: np.ones([2, 4])}, "grad must have the shape of var, [6,4]"),
        ]
        if kind == "sparse":
            good = {**good, grad: np.ones([2, 4]), rows: [5, 4]}
            bad[1:] = [
                ({rows: [5, 6]}, "indices[1] = 6 is out of range"),
                ({rows: [[5, 6]]}, "indices must be a vector"),
                ({grad: np.ones([3, 4])}, "grad must have shape [2,4]"),
            ]
        for changed, message in bad:
            with pytest.raises(
                tf.errors.InvalidArgumentError, match=re.escape(message)
            ):
                session.run(op, {**good, **changed})
            state.is_unchanged(session.run(variables))
        session.run(op, good)


@each(KINDS, RESOURCE_OR_NOT)
def test_an_uninitialized_variable_of_a_session_is_named(case, how):
    kind, use_resource = how
    state = state_of(case, (6, 4))
    with tf.Graph().as_default():
        variables = state.make(use_resource)
        grad, indices = ones(kind)
        op = state.apply(variables, grad, indices)
        for missing in variables:
            others = {name: x for name, x in variables.items() if name != missing}
            # TensorFlow itself refuses an uninitialized ref variable.
            message = (
                f"{missing} is not initialized"
                if use_resource
                else "uninitialized value"
            )
            with tf.compat.v1.Session() as session:
                session.run([x.initializer for x in others.values()])
                with pytest.raises(tf.errors.FailedPreconditionError, match=message):
                    session.run(op)
                for name, x in others.items():
                    np.testing.assert_array_equal(session.run(x), state.values[name])
