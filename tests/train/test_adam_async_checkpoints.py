"""AdamAsyncOptimizer saved, restored into new objects, and continued.

Each test continues with the restored objects, and requires the numbers, to the bit, of
training that never stopped.
"""

import adam_async_reference as reference
import numpy as np
import pytest
import tensorflow as tf
import v1_models

import tf_syncrep as tfs

tf1 = tf.compat.v1

pytestmark = pytest.mark.usefixtures("device")

SLOTS = ("m", "v", "beta1_power", "beta2_power")
OPTIONS = {"beta1": 0.8, "beta2": 0.95, "epsilon": 1e-6}


class Trainer:
    """A model and its training in the current graph, to be run in a session."""

    def __init__(self, session, kind, dtype=tf.float32, **options):
        self.session = session
        self.model = v1_models.Model(kind, dtype)
        self.optimizer = tfs.train.AdamAsyncOptimizer(0.05, **OPTIONS, **options)
        global_step = tf1.train.get_or_create_global_step()
        self.train_op = self.optimizer.minimize(self.model.loss, global_step)
        self.variables = tf1.global_variables()

    def train(self, steps):
        for step in steps:
            self.session.run(self.train_op, self.model.feed(step))

    def values(self):
        return {x.op.name: self.session.run(x) for x in self.variables}


def assert_identical(actual, expected):
    assert sorted(actual) == sorted(expected)
    for name, value in expected.items():
        np.testing.assert_array_equal(actual[name], value, err_msg=name)
        assert actual[name].dtype == value.dtype, name


@pytest.mark.parametrize(
    ("kind", "restored", "dtype", "rmsprop"),
    [
        ("ref", "ref", tf.float16, False),
        ("ref", "resource", tf.float32, True),
        ("resource", "ref", tf.float32, False),
        ("partitioned_ref", "partitioned_resource", tf.float32, True),
        ("partitioned_resource", "partitioned_resource", tf.float16, False),
    ],
)
def test_saver_continues_as_if_never_stopped(kind, restored, dtype, rmsprop, tmp_path):
    options = {"apply_sparse_rmsprop": rmsprop}
    with tf.Graph().as_default(), tf1.Session() as session:
        first = Trainer(session, kind, dtype, **options)
        session.run(tf1.global_variables_initializer())
        first.train(range(3))
        path = tf1.train.Saver().save(session, str(tmp_path / "model"))
        first.train(range(3, 6))
        expected = first.values()

    with tf.Graph().as_default(), tf1.Session() as session:
        second = Trainer(session, restored, dtype, **options)
        tf1.train.Saver().restore(session, path)
        second.train(range(3, 6))
        assert_identical(second.values(), expected)


def test_checkpoint_of_a_graph_is_continued_in_another_graph(tmp_path):
    def build(session):
        trainer = Trainer(session, "resource")
        model, step = trainer.model, tf1.train.get_global_step()
        checkpoint = tf1.train.Checkpoint(
            table=model.table_parts[0],
            vector=model.vector,
            step=step,
            optimizer=trainer.optimizer,
        )
        return trainer, checkpoint

    with tf.Graph().as_default(), tf1.Session() as session:
        first, checkpoint = build(session)
        session.run(tf1.global_variables_initializer())
        first.train([0])
        path = checkpoint.save(str(tmp_path / "model"), session=session)
        first.train([1])
        expected = first.values()

    with tf.Graph().as_default(), tf1.Session() as session:
        second, checkpoint = build(session)
        checkpoint.restore(path).assert_consumed().run_restore_ops(session)
        second.train([1])
        assert_identical(second.values(), expected)


def deeprec_variables(kind, dtype, state):
    """Variables with the names and shapes that DeepRec gives them; no optimizer."""
    for name, value in [
        ("table", state.var),
        ("table/AdamAsync", state.m),
        ("table/AdamAsync_1", state.v),
    ]:
        tf1.get_variable(
            name,
            value.shape,
            dtype,
            initializer=v1_models.initializer_of(value),
            **v1_models.KINDS[kind],
        )
    parts = [f"part_{i}/" for i in range(3)] if "part" in kind else [""]
    for part in parts:
        for suffix, power in [("2", state.beta1_power), ("3", state.beta2_power)]:
            tf1.get_variable(
                f"table/{part}AdamAsync_{suffix}",
                initializer=tf.constant(power, dtype),
            )


@pytest.mark.parametrize(
    ("kind", "dtype"),
    [
        ("ref", tf.float32),
        ("resource", tf.float64),
        ("partitioned_ref", tf.float64),
        ("partitioned_resource", tf.float32),
    ],
)
def test_a_checkpoint_of_deeprec_is_continued(kind, dtype, tmp_path):
    """Written variable by variable under DeepRec's names, as its Saver lays it out."""
    rows = np.arange(9)
    grads = [np.random.default_rng(seed).uniform(0.5, 1.5, [9, 4]) for seed in range(4)]
    options = {"lr": 0.05, **OPTIONS}
    state = reference.initial_state(v1_models.TABLE, 0.8, 0.95)
    for grad in grads[:3]:
        state = reference.adam_async_sparse(*state, **options, grad=grad, indices=rows)
    with tf.Graph().as_default(), tf1.Session() as session:
        deeprec_variables(kind, dtype, state)
        session.run(tf1.global_variables_initializer())
        path = tf1.train.Saver().save(session, str(tmp_path / "deeprec"))

    with tf.Graph().as_default(), tf1.Session() as session:
        model = v1_models.Model(kind, dtype)
        optimizer = tfs.train.AdamAsyncOptimizer(0.05, **OPTIONS)
        train_op = optimizer.minimize(model.loss, var_list=model.table_parts)
        saved = [x for x in tf1.global_variables() if x is not model.vector]
        tf1.train.Saver(saved).restore(session, path)
        session.run(model.vector.initializer)
        feed = {model.rows: rows, model.row_grads: grads[3]}
        session.run(train_op, {**feed, model.vector_grad: np.zeros([3])})
        states = [
            session.run([x, *(optimizer.get_slot(x, slot) for slot in SLOTS)])
            for x in model.table_parts
        ]

    state = reference.adam_async_sparse(*state, **options, grad=grads[3], indices=rows)
    tolerance = 1e-6 if dtype == tf.float32 else 1e-14
    var, m, v, *powers = zip(*states, strict=True)
    for parts, want in ((var, state.var), (m, state.m), (v, state.v)):
        np.testing.assert_allclose(np.concatenate(parts), want, rtol=tolerance)
    for parts, want in zip(powers, state[3:], strict=True):
        np.testing.assert_allclose(parts, [want] * len(states), rtol=1e-6)


class EagerTrainer(tf.train.Checkpoint):
    """Variables of several dtypes and their optimizer, as one checkpoint."""

    def __init__(self, seed=None):
        super().__init__()
        self.optimizer = tfs.train.AdamAsyncOptimizer(0.05, **OPTIONS)
        if seed is not None:
            self.make_variables(seed)

    def make_variables(self, seed):
        random = np.random.default_rng(seed)
        self.table = tf.Variable(random.uniform(size=[9, 4]), dtype=tf.float32)
        self.half = tf.Variable(random.uniform(size=[3]), dtype=tf.float16)
        self.double = tf.Variable(random.uniform(size=[2, 3]), dtype=tf.float64)

    def train(self, steps):
        for step in steps:
            rows, row_grads, vector_grad = v1_models.gradients(step)
            self.optimizer.apply_gradients(
                [
                    (
                        tf.IndexedSlices(tf.constant(row_grads, tf.float32), rows),
                        self.table,
                    ),
                    (tf.constant(vector_grad, tf.float16), self.half),
                    (tf.constant([vector_grad] * 2, tf.float64), self.double),
                ]
            )

    def values(self):
        variables = {"table": self.table, "half": self.half, "double": self.double}
        values = {name: x.numpy() for name, x in variables.items()}
        for name, variable in variables.items():
            for slot in SLOTS:
                slot_variable = self.optimizer.get_slot(variable, slot)
                values[f"{name}/{slot}"] = slot_variable.numpy()
        return values


@pytest.mark.eager
@pytest.mark.parametrize("when", ["before_variables", "before_slots", "after_slots"])
def test_checkpoint_continues_as_if_never_stopped(when, tmp_path):
    first = EagerTrainer(seed=1)
    first.train(range(3))
    path = first.save(str(tmp_path / "model"))
    first.train(range(3, 6))

    second = EagerTrainer(seed=None if when == "before_variables" else 2)
    if when == "after_slots":
        second.train(range(2))
    status = second.restore(path)
    if when == "before_variables":
        second.make_variables(2)
    second.train(range(3, 6))
    status.assert_consumed()
    assert_identical(second.values(), first.values())
