"""AdamAsyncOptimizer saved, restored into new objects, and continued.

Each test goes on with what was restored, and wants the numbers, to the bit, of
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

kinds = pytest.mark.parametrize("kind", v1_models.KINDS)
SLOTS = ("m", "v", "beta1_power", "beta2_power")
OPTIONS = {"beta1": 0.8, "beta2": 0.95, "epsilon": 1e-6}


class Trainer:
    """A graph with a model, its training, and a session; each is a new world."""

    def __init__(self, kind, dtype=tf.float32, **options):
        self.graph = tf.Graph()
        with self.graph.as_default():
            self.model = v1_models.Model(kind, dtype)
            self.optimizer = tfs.train.AdamAsyncOptimizer(0.05, **OPTIONS, **options)
            global_step = tf1.train.get_or_create_global_step()
            self.train_op = self.optimizer.minimize(self.model.loss, global_step)
            self.saver = tf1.train.Saver()
            self.variables = tf1.global_variables()
            self.initializer = tf1.global_variables_initializer()
        self.session = tf1.Session(graph=self.graph)

    def __enter__(self):
        return self

    def __exit__(self, *exc_info):
        self.session.close()

    def initialize(self):
        self.session.run(self.initializer)

    def train(self, steps):
        for step in steps:
            self.session.run(self.train_op, self.model.feed(step))

    def save(self, path):
        with self.graph.as_default():
            return self.saver.save(self.session, str(path))

    def restore(self, path):
        with self.graph.as_default():
            self.saver.restore(self.session, path)

    def values(self):
        return {x.op.name: self.session.run(x) for x in self.variables}


def assert_identical(actual, expected):
    assert sorted(actual) == sorted(expected)
    for name, value in expected.items():
        np.testing.assert_array_equal(actual[name], value, err_msg=name)


@kinds
@pytest.mark.parametrize("dtype", [tf.float32, tf.float16], ids=lambda x: x.name)
@pytest.mark.parametrize("rmsprop", [False, True], ids=["adam", "rmsprop"])
def test_saver_continues_as_if_never_stopped(kind, dtype, rmsprop, tmp_path):
    options = {"apply_sparse_rmsprop": rmsprop}
    with Trainer(kind, dtype, **options) as first:
        first.initialize()
        first.train(range(3))
        path = first.save(tmp_path / "model")
        first.train(range(3, 6))
        expected = first.values()

    with Trainer(kind, dtype, **options) as second:
        second.restore(path)
        second.train(range(3, 6))
        assert_identical(second.values(), expected)


@kinds
def test_monitored_session_continues_as_if_never_stopped(kind, tmp_path):
    def train(steps, folder):
        with tf.Graph().as_default():
            model = v1_models.Model(kind)
            global_step = tf1.train.get_or_create_global_step()
            optimizer = tfs.train.AdamAsyncOptimizer(0.05, **OPTIONS)
            train_op = optimizer.minimize(model.loss, global_step)
            with tf1.train.MonitoredTrainingSession(
                checkpoint_dir=folder, log_step_count_steps=None
            ) as session:
                for step in steps:
                    session.run(train_op, model.feed(step))
                return session.run([*model.variables, global_step])

    train(range(3), str(tmp_path / "stopped"))
    continued = train(range(3, 6), str(tmp_path / "stopped"))
    never_stopped = train(range(6), str(tmp_path / "never_stopped"))
    for got, want in zip(continued, never_stopped, strict=True):
        np.testing.assert_array_equal(got, want)


def test_ref_and_resource_variables_read_each_others_checkpoints(tmp_path):
    for first_kind, second_kind in (("ref", "resource"), ("resource", "ref")):
        with Trainer(first_kind) as first, Trainer(second_kind) as second:
            first.initialize()
            first.train(range(3))
            path = first.save(tmp_path / first_kind)
            first.train(range(3, 6))
            second.restore(path)
            second.train(range(3, 6))
            assert_identical(second.values(), first.values())


def deeprec_variables(kind, dtype, state):
    """Variables with the names and shapes that DeepRec gives them; no optimizer."""
    if "part" not in kind:
        partitioner, power_scopes = None, ["table/"]
    else:
        partitioner = tf1.fixed_size_partitioner(3)
        power_scopes = [f"table/part_{i}/" for i in range(3)]
    for name, value in [
        ("table", state.var),
        ("table/AdamAsync", state.m),
        ("table/AdamAsync_1", state.v),
    ]:
        tf1.get_variable(
            name,
            value.shape,
            dtype,
            initializer=lambda shape, dtype, partition_info, value=value: tf.constant(
                value[partition_info.var_offset[0] :][: shape[0]]
                if partitioner
                else value,
                dtype,
            ),
            partitioner=partitioner,
        )
    for scope in power_scopes:
        for suffix, power in [("2", state.beta1_power), ("3", state.beta2_power)]:
            tf1.get_variable(
                f"{scope}AdamAsync_{suffix}", initializer=tf.constant(power, dtype)
            )


@kinds
@pytest.mark.parametrize("dtype", [tf.float32, tf.float64], ids=lambda x: x.name)
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
        parts = session.run(model.table_parts)
        m = session.run([optimizer.get_slot(x, "m") for x in model.table_parts])
        powers = session.run(
            [optimizer.get_slot(x, "beta2_power") for x in model.table_parts]
        )

    state = reference.adam_async_sparse(*state, **options, grad=grads[3], indices=rows)
    tolerance = 1e-6 if dtype == tf.float32 else 1e-14
    np.testing.assert_allclose(np.concatenate(parts), state.var, rtol=tolerance)
    np.testing.assert_allclose(np.concatenate(m), state.m, rtol=tolerance)
    np.testing.assert_allclose(powers, [state.beta2_power] * len(powers), rtol=1e-6)


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


def test_slots_restored_ahead_of_time_have_their_own_shapes_and_dtypes(tmp_path):
    first = EagerTrainer(seed=1)
    first.train(range(1))
    path = first.save(str(tmp_path / "model"))
    second = EagerTrainer(seed=2)
    second.restore(path).assert_consumed()
    for variable, dtype in [
        (second.table, tf.float32),
        (second.half, tf.float32),
        (second.double, tf.float64),
    ]:
        for name in SLOTS:
            slot = second.optimizer.get_slot(variable, name)
            assert slot.dtype == dtype
            assert slot.shape == ([] if "power" in name else variable.shape)


def test_checkpoint_of_a_graph_is_continued_in_another_graph(tmp_path):
    def build():
        model = v1_models.Model("resource")
        optimizer = tfs.train.AdamAsyncOptimizer(0.05, **OPTIONS)
        train_op = optimizer.minimize(model.loss)
        checkpoint = tf1.train.Checkpoint(
            table=model.table_parts[0], vector=model.vector, optimizer=optimizer
        )
        return model, optimizer, train_op, checkpoint

    def values(session, model, optimizer):
        return session.run([*model.variables, *optimizer.variables()])

    with tf.Graph().as_default(), tf1.Session() as session:
        model, optimizer, train_op, checkpoint = build()
        session.run(tf1.global_variables_initializer())
        session.run(train_op, model.feed(0))
        path = checkpoint.save(str(tmp_path / "model"), session=session)
        session.run(train_op, model.feed(1))
        expected = values(session, model, optimizer)

    with tf.Graph().as_default(), tf1.Session() as session:
        model, optimizer, train_op, checkpoint = build()
        status = checkpoint.restore(path)
        status.assert_consumed().run_restore_ops(session)
        session.run(train_op, model.feed(1))
        for got, want in zip(values(session, model, optimizer), expected, strict=True):
            np.testing.assert_array_equal(got, want)
