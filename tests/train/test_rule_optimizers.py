"""The v1 optimizers that are a rule: float64 twins, TensorFlow's classes, sessions."""

import itertools
import re

import numpy as np
import pytest
import rule_reference
import sync_replicas_twin
import tensorflow as tf
import v1_models
from combinations import thinned

import tf_syncrep as tfs

tf1 = tf.compat.v1

RATE = 0.0625  # TensorFlow's classes hold numbers in float32
STEPS = 5


class Case:
    """An optimizer, TensorFlow's of that name, and its rule.

    Attributes:
        ours: the class.
        theirs: TensorFlow's.
        options: arguments of both but the learning rate.
        rule: the rule's name.
        numbers: the rule's numbers but the learning rate.
        slots: for each slot the rule's name, TensorFlow's, what it begins with, and
            what follows the name of its variable in checkpoints.
    """

    def __init__(self, name, rule, numbers, slots, **options):
        self.ours = getattr(tfs.train, name)
        self.theirs = getattr(tf1.train, name)
        self.rule, self.numbers = rule, numbers
        self.slots, self.options = slots, options

    def make(self, rate=RATE, **options):
        return self.ours(rate, **self.options, **options)

    def make_theirs(self, rate=RATE, **options):
        return self.theirs(rate, **self.options, **options)

    def start(self, value):
        """The twin's variable and slots."""
        slots = {name: np.full(value.shape, x) for name, _, x, _ in self.slots}
        return np.array(value, np.float64), slots

    def apply(self, state, grad, indices=None, rate=RATE):
        numbers = {"lr": rate, **self.numbers}
        return rule_reference.apply(self.rule, *state, numbers, grad, indices)


_MOMENTUM = [("momentum", "momentum", 0.0, "Momentum")]
_FTRL_SLOTS = [
    ("accumulator", "accum", 0.25, "Ftrl"),
    ("linear", "linear", 0.0, "Ftrl_1"),
]
CASES = {
    "gradient_descent": Case("GradientDescentOptimizer", "sgd", {}, []),
    "momentum": Case(
        *("MomentumOptimizer", "gradient_momentum", {"momentum": 0.75}, _MOMENTUM),
        momentum=0.75,
    ),
    "nesterov": Case(
        *("MomentumOptimizer", "gradient_nesterov", {"momentum": 0.75}, _MOMENTUM),
        momentum=0.75,
        use_nesterov=True,
    ),
    "adagrad": Case(
        *("AdagradOptimizer", "adagrad", {"epsilon": 0.0}),
        [("accumulator", "accumulator", 0.25, "Adagrad")],
        initial_accumulator_value=0.25,
    ),
    "ftrl": Case(
        *("FtrlOptimizer", "ftrl"),
        {
            "lr_power": -0.5,
            "l1": 0.125,
            "l2": 0.25,
            "l2_shrinkage": 0.0625,
            "beta": 0.5,
        },
        _FTRL_SLOTS,
        initial_accumulator_value=0.25,
        l1_regularization_strength=0.125,
        l2_regularization_strength=0.25,
        l2_shrinkage_regularization_strength=0.0625,
        beta=0.5,
    ),
    "ftrl_power": Case(
        *("FtrlOptimizer", "ftrl"),
        {"lr_power": -0.25, "l1": 0.0, "l2": 0.0, "l2_shrinkage": 0.0, "beta": 0.0},
        _FTRL_SLOTS,
        learning_rate_power=-0.25,
        initial_accumulator_value=0.25,
    ),
}
TOLERANCES = {
    tf.float16: 4e-3,
    tf.bfloat16: 4e-2,
    tf.float32: 2e-5,
    tf.float64: 1e-12,
}

each_case = pytest.mark.parametrize("name", CASES)
each_kind = pytest.mark.parametrize("use_resource", [False, True], ids=["ref", "res"])


def close(got, want, tolerance):
    got = np.asarray(got, np.float64)
    np.testing.assert_allclose(got, want, rtol=tolerance, atol=tolerance)


def rate_of(step):
    """A learning rate that falls, so that it matters where a rule has it."""
    return RATE / (1 + step)


class Trainer:
    """A model of v1_models and its training, in the current graph."""

    def __init__(self, session, kind, dtype, make):
        self.session = session
        self.model = v1_models.Model(kind, dtype)
        self.rate = tf1.placeholder(tf.float64, [])
        self.optimizer = make(self.rate)
        self.train_op = self.optimizer.minimize(self.model.loss)
        self.variables = tf1.global_variables()

    def train(self, steps):
        for step in steps:
            feed = {**self.model.feed(step), self.rate: rate_of(step)}
            self.session.run(self.train_op, feed)

    def values(self):
        return {x.op.name: self.session.run(x) for x in self.variables}


def in_session(kind, dtype, make, steps=STEPS):
    """The values of all variables after training."""
    with tf.Graph().as_default(), tf1.Session() as session:
        trainer = Trainer(session, kind, dtype, make)
        session.run(tf1.global_variables_initializer())
        trainer.train(range(steps))
        return trainer.values()


def by_twin(case, kind, dtype):
    """The same by the twin, under the names that a checkpoint has."""
    parts = v1_models.part_slices(kind)
    table = v1_models.TABLE.astype(dtype.as_numpy_dtype)
    states = [case.start(table[part]) for part in parts]
    vector = case.start(v1_models.VECTOR.astype(dtype.as_numpy_dtype))
    for step in range(STEPS):
        rows, row_grads, vector_grad = v1_models.gradients(step)
        rate = rate_of(step)
        for i, part in enumerate(parts):
            inside = (rows >= part.start) & (rows < part.stop)
            states[i] = case.apply(
                states[i], row_grads[inside], rows[inside] - part.start, rate
            )
        vector_grad = vector_grad.astype(dtype.as_numpy_dtype)
        vector = case.apply(vector, vector_grad, rate=rate)
    names = [f"table/part_{i}" for i in range(3)] if "part" in kind else ["table"]
    values = {}
    for name, (value, slots) in zip([*names, "vector"], [*states, vector], strict=True):
        values[name] = value
        for slot, _, _, suffix in case.slots:
            values[f"{name}/{suffix}"] = slots[slot]
    return values


@thinned(
    "name, how",
    CASES,
    itertools.product(v1_models.KINDS, (tf.float32, tf.float16, tf.float64)),
)
def test_training_agrees_with_the_twin(name, how):
    case, (kind, dtype) = CASES[name], how
    actual = in_session(kind, dtype, case.make)
    expected = by_twin(case, kind, dtype)
    assert actual.keys() == expected.keys()
    for variable, value in actual.items():
        close(value, expected[variable], TOLERANCES[dtype])
        is_slot = variable.split("/")[-1] in {suffix for *_, suffix in case.slots}
        slot_dtype = tf.float64 if dtype == tf.float64 else tf.float32
        wanted = slot_dtype if is_slot else dtype
        assert value.dtype == wanted.as_numpy_dtype, variable


@each_case
def test_bfloat16_agrees_with_the_twin(name):
    case, dtype = CASES[name], tf.bfloat16
    actual = in_session("resource", dtype, case.make)
    for variable, value in by_twin(case, "resource", dtype).items():
        close(actual[variable], value, TOLERANCES[dtype])


@each_case
@each_kind
def test_training_is_that_of_the_class_of_tensorflow(use_resource, name):
    """Dense and sparse gradients, in float32, with a rate that falls."""
    kind = "resource" if use_resource else "ref"
    ours = in_session(kind, tf.float32, CASES[name].make, steps=20)
    theirs = in_session(kind, tf.float32, CASES[name].make_theirs, steps=20)
    assert ours.keys() == theirs.keys()
    for variable, value in theirs.items():
        np.testing.assert_allclose(ours[variable], value, rtol=2e-5, atol=2e-6)


@each_case
def test_dense_training_is_bit_near_that_of_the_class_of_tensorflow(name):
    start = np.linspace(-1, 1, 30).reshape(5, 6)
    with tf.Graph().as_default(), tf1.Session() as session:
        grad, rate = tf1.placeholder(tf.float64, [5, 6]), tf1.placeholder(tf.float64)
        rate.set_shape([])
        pair = [
            tf1.get_variable(x, initializer=tf.constant(start)) for x in ("ours", "tf")
        ]
        optimizers = CASES[name].make(rate), CASES[name].make_theirs(rate)
        train_op = [
            optimizer.apply_gradients([(grad, x)])
            for optimizer, x in zip(optimizers, pair, strict=True)
        ]
        session.run(tf1.global_variables_initializer())
        for step in range(100):
            value = np.random.default_rng(step).standard_normal([5, 6])
            session.run(train_op, {grad: value, rate: 1 / (1 + step)})
        ours, theirs = session.run(pair)
    np.testing.assert_allclose(ours, theirs, rtol=1e-12, atol=1e-13)
    assert np.max(np.abs(theirs - start)) > 0.1


@each_case
@pytest.mark.parametrize("kind", ["partitioned_ref", "resource"])
def test_a_checkpoint_of_the_class_of_tensorflow_is_continued(kind, name, tmp_path):
    case = CASES[name]
    with tf.Graph().as_default(), tf1.Session() as session:
        first = Trainer(session, kind, tf.float64, case.make_theirs)
        session.run(tf1.global_variables_initializer())
        first.train(range(3))
        path = tf1.train.Saver().save(session, str(tmp_path / "model"))
        first.train(range(3, 6))
        expected = first.values()
    with tf.Graph().as_default(), tf1.Session() as session:
        second = Trainer(session, kind, tf.float64, case.make)
        tf1.train.Saver().restore(session, path)
        second.train(range(3, 6))
        for variable, value in second.values().items():
            close(value, expected[variable], 1e-12)


@thinned("name, kind", CASES, v1_models.KINDS)
def test_saver_continues_as_if_never_stopped(name, kind, tmp_path):
    make = CASES[name].make
    with tf.Graph().as_default(), tf1.Session() as session:
        first = Trainer(session, kind, tf.float16, make)
        session.run(tf1.global_variables_initializer())
        first.train(range(3))
        path = tf1.train.Saver().save(session, str(tmp_path / "model"))
        first.train(range(3, 6))
        expected = first.values()
    other = {"ref": "resource", "resource": "ref"}.get(kind, kind)
    with tf.Graph().as_default(), tf1.Session() as session:
        second = Trainer(session, other, tf.float16, make)
        tf1.train.Saver().restore(session, path)
        second.train(range(3, 6))
        for variable, value in second.values().items():
            np.testing.assert_array_equal(value, expected[variable])


@pytest.mark.eager
@each_case
@pytest.mark.parametrize("dtype", [tf.float32, tf.float16], ids=lambda x: x.name)
def test_an_object_based_checkpoint_is_continued(dtype, name, tmp_path):
    """Ours, and in float32 TensorFlow's, too: slots have the same names."""
    case = CASES[name]
    values, gradients = tf.ones([4, 3], dtype), tf.fill([2, 3], tf.cast(0.5, dtype))

    def update(optimizer, table):
        slices = tf.IndexedSlices(gradients, tf.constant([2, 0]))
        optimizer.apply_gradients([(slices, table)])

    makes = [case.make, case.make_theirs] if dtype == tf.float32 else [case.make]
    for make in makes:
        table, optimizer = tf.Variable(values), make()
        update(optimizer, table)
        checkpoint = tf.train.Checkpoint(table=table, optimizer=optimizer)
        path = checkpoint.save(str(tmp_path / "model"))
        update(optimizer, table)
        for is_deferred in (False, True):
            other, restored = tf.Variable(values), case.make()
            if not is_deferred:
                update(restored, other)
            checkpoint = tf.train.Checkpoint(table=other, optimizer=restored)
            status = checkpoint.restore(path)
            update(restored, other)
            status.assert_consumed()
            close(other.numpy(), table.numpy(), 1e-6 if dtype == tf.float32 else 0)


@pytest.mark.eager
@each_case
@pytest.mark.parametrize("in_function", [False, True], ids=["eager", "function"])
def test_minimize_of_a_loss_function_agrees_with_the_twin(in_function, name):
    case = CASES[name]
    table = tf.Variable(v1_models.TABLE)
    rate = tf.Variable(0.0, dtype=tf.float64)
    optimizer = case.make(lambda: rate)

    def train(rows, row_grads):
        optimizer.minimize(
            lambda: tf.reduce_sum(tf.gather(table, rows) * row_grads), var_list=[table]
        )

    step_of = tf.function(train) if in_function else train
    state = case.start(v1_models.TABLE)
    for step in range(3):
        rows, row_grads, _ = v1_models.gradients(step)
        rate.assign(rate_of(step))
        step_of(tf.constant(rows), tf.constant(row_grads))
        state = case.apply(state, row_grads, rows, rate_of(step))
    close(table.numpy(), state[0], 1e-12)


@each_case
@pytest.mark.parametrize("kind", ["partitioned_ref", "resource"])
def test_sparse_gradients_reach_the_op_as_they_are(kind, name):
    """There is no Unique and no segment sum over the whole gradient."""
    with tf.Graph().as_default() as graph:
        model = v1_models.Model(kind)
        optimizer = CASES[name].make(use_locking=True)
        gradients = optimizer.compute_gradients(model.loss)
        before = set(graph.get_operations())
        optimizer.apply_gradients(gradients)
        added = [op for op in graph.get_operations() if op not in before]
    types = [op.type for op in added]
    assert "Unique" not in types
    assert "UnsortedSegmentSum" not in types
    sparse = "SparseApplyRule" if kind.endswith("ref") else "ResourceSparseApplyRule"
    updates = [op for op in added if op.type == f"Syncrep>{sparse}"]
    assert len(updates) == len(v1_models.part_slices(kind))
    assert all(op.get_attr("use_locking") for op in updates)


@each_case
@each_kind
def test_variables_whose_shape_is_known_when_they_run_train(use_resource, name):
    case = CASES[name]
    with tf.Graph().as_default(), tf1.Session() as session:
        start = tf1.placeholder_with_default(tf.ones([2, 3], tf.float64), None)
        variable = tf1.Variable(start, validate_shape=False, use_resource=use_resource)
        grad = tf1.placeholder_with_default(tf.ones([2, 3], tf.float64), None)
        train_op = case.make().apply_gradients([(grad, variable)])
        session.run(tf1.global_variables_initializer())
        session.run(train_op)
        expected, _ = case.apply(case.start(np.ones([2, 3])), np.ones([2, 3]))
        close(session.run(variable), expected, 1e-12)


@each_case
def test_rows_of_a_partitioned_lookup_are_trained(name):
    case = CASES[name]
    with tf.Graph().as_default(), tf1.Session() as session:
        table = tf1.get_variable(
            "table",
            v1_models.TABLE.shape,
            tf.float64,
            initializer=v1_models.initializer_of(v1_models.TABLE),
            partitioner=tf1.fixed_size_partitioner(3),
            use_resource=True,
        )
        vectors = tfs.train.embedding_lookup(table, [[1, 2], [2, 8]], combiner="sum")
        train_op = case.make().minimize(tf.reduce_sum(vectors))
        session.run(tf1.global_variables_initializer())
        session.run(train_op)
        actual = np.concatenate(session.run(list(table)))
    state = case.start(v1_models.TABLE)
    expected, _ = case.apply(state, np.ones([4, 4]), [1, 2, 2, 8])
    close(actual, expected, 1e-12)


@thinned("name, partitions", CASES, [3, None])
def test_synchronous_updates_are_those_with_the_class_of_tensorflow(name, partitions):
    twin, results = sync_replicas_twin, []
    for make in (CASES[name].make, CASES[name].make_theirs):
        replica = twin.Replica(
            quorum=2,
            total=1,
            inner=make,
            use_resource=partitions is not None,
            partitions=partitions,
        )
        types = [op.type for op in replica.graph.get_operations()]
        assert types.count("Syncrep>AccumulatorTakeRoundDense") == 1
        with replica.monitored_session() as session:
            replica.train(session, twin.batches(6))
            results.append(session.run(replica.weights))
    for ours, theirs in zip(*results, strict=True):
        close(ours, theirs, 1e-12)
    assert not np.array_equal(results[0][0], twin.DENSE)


def test_slots_have_the_names_that_were_asked_for():
    with tf.Graph().as_default():
        x = tf1.get_variable("x", [2])
        for optimizer in (
            tfs.train.FtrlOptimizer(0.1, accum_name="n", linear_name="z"),
            tfs.train.FtrlOptimizer(0.1, name="Wide"),
            tfs.train.AdagradOptimizer(0.1, name="Deep"),
        ):
            optimizer.apply_gradients([(tf.ones([2]), x)])
        names = [x.op.name for x in tf1.global_variables()]
    assert names == ["x", "x/n", "x/z", "x/Wide", "x/Wide_1", "x/Deep"]


def test_ftrl_with_a_rate_that_falls_below_zero_says_so():
    with tf.Graph().as_default(), tf1.Session() as session:
        x = tf1.get_variable("x", initializer=[1.0])
        rate = tf1.placeholder_with_default(-0.5, [])
        optimizer = tfs.train.FtrlOptimizer(rate)
        train_op = optimizer.apply_gradients([(tf.ones([1]), x)])
        session.run(tf1.global_variables_initializer())
        message = "lr of rule ftrl must be at least 0, but is -0.5"
        with pytest.raises(tf.errors.InvalidArgumentError, match=message):
            session.run(train_op)
        session.run(train_op, {rate: 0.0})
        assert session.run(x) == [1.0]


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        (
            "GradientDescentOptimizer",
            {"learning_rate": -0.5},
            "`learning_rate` must be in the range [0, inf). Received: "
            "learning_rate=-0.5",
        ),
        (
            "MomentumOptimizer",
            {"learning_rate": 0.1, "momentum": float("nan")},
            "`momentum` must be in the range [0, inf). Received: momentum=nan",
        ),
        (
            "AdagradOptimizer",
            {"learning_rate": 0.1, "initial_accumulator_value": 0},
            "`initial_accumulator_value` must be a finite number above 0. Received: "
            "initial_accumulator_value=0",
        ),
        (
            "FtrlOptimizer",
            {"learning_rate": -0.5},
            "`learning_rate` must be in the range [0, inf). Received: "
            "learning_rate=-0.5",
        ),
        (
            "FtrlOptimizer",
            {"learning_rate": 0.1, "learning_rate_power": 0.5},
            "`learning_rate_power` must be a finite number of at most 0. Received: "
            "learning_rate_power=0.5",
        ),
        (
            "FtrlOptimizer",
            {"learning_rate": 0.1, "learning_rate_power": "fast"},
            "`learning_rate_power` must be a finite number of at most 0. Received: "
            "learning_rate_power='fast'",
        ),
        *(
            (
                "FtrlOptimizer",
                {"learning_rate": 0.1, argument: -1},
                f"`{argument}` must be in the range [0, inf). Received: {argument}=-1",
            )
            for argument in (
                "initial_accumulator_value",
                "l1_regularization_strength",
                "l2_regularization_strength",
                "l2_shrinkage_regularization_strength",
                "beta",
            )
        ),
        (
            "MomentumOptimizer",
            {"learning_rate": 0.1, "momentum": 0.5, "name": ""},
            "Must specify the optimizer name",
        ),
    ],
)
def test_bad_arguments_are_refused_by_a_sentence(name, options, message):
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        getattr(tfs.train, name)(**options)


@each_case
def test_a_learning_rate_of_another_kind_is_refused(name):
    with pytest.raises(TypeError, match="learning_rate must be a number, a scalar"):
        CASES[name].make("fast")
    with pytest.raises(
        ValueError, match=r"learning_rate must be a scalar\. Received: "
    ):
        CASES[name].make(tf.ones([2]))
