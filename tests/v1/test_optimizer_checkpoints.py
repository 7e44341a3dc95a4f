"""The v1 optimizers saved, restored into new objects, and continued.

Each test continues with the restored objects, and requires the numbers of training that
never stopped: to the bit, unless another class wrote the checkpoint.
"""

import numpy as np
import pytest
import tensorflow as tf
import v1_models
from combinations import thinned
from v1_optimizers import CASES, RULES, Trainer, close

tf1 = tf.compat.v1

each_case = pytest.mark.parametrize("name", CASES)


def assert_identical(actual, expected):
    assert sorted(actual) == sorted(expected)
    for name, value in expected.items():
        np.testing.assert_array_equal(actual[name], value, err_msg=name)
        assert actual[name].dtype == value.dtype, name


def saved_and_continued(kind, dtype, make, folder):
    """The path of a Saver's checkpoint after three steps; all values after six."""
    with tf.Graph().as_default(), tf1.Session() as session:
        trainer = Trainer(session, kind, dtype, make)
        session.run(tf1.global_variables_initializer())
        trainer.train(range(3))
        path = tf1.train.Saver().save(session, str(folder / "model"))
        trainer.train(range(3, 6))
        return path, trainer.values()


def restored_and_continued(path, kind, dtype, make):
    """All values after three steps from a Saver's checkpoint after three."""
    with tf.Graph().as_default(), tf1.Session() as session:
        trainer = Trainer(session, kind, dtype, make)
        tf1.train.Saver().restore(session, path)
        trainer.train(range(3, 6))
        return trainer.values()


@pytest.mark.parametrize("name", RULES)
@pytest.mark.parametrize("kind", ["partitioned_ref", "resource"])
def test_a_checkpoint_of_the_class_of_tensorflow_is_continued(kind, case, tmp_path):
    dtype = tf.float64
    path, expected = saved_and_continued(kind, dtype, case.make_theirs, tmp_path)
    for variable, value in restored_and_continued(path, kind, dtype, case.make).items():
        close(value, expected[variable], 1e-12)


@thinned("name, kind", CASES, v1_models.KINDS)
def test_saver_continues_as_if_never_stopped(case, kind, tmp_path):
    path, expected = saved_and_continued(kind, tf.float16, case.make, tmp_path)
    pair = ("resource", "ref") if kind.endswith("resource") else ("ref", "resource")
    other = kind.replace(*pair)
    actual = restored_and_continued(path, other, tf.float16, case.make)
    assert_identical(actual, expected)


# Kinds and numbers of parts; a variable may be divided into one.
PARTS = [
    ("resource", 1),
    ("partitioned_ref", 3),
    ("partitioned_resource", 1),
    ("partitioned_resource", 2),
    ("ref", 1),
]


@thinned("name, saved, restored", CASES, PARTS, [*PARTS[1:], PARTS[0]])
def test_saver_restores_into_any_number_of_parts(case, saved, restored, tmp_path):
    def trainer(session, kind, parts):
        return Trainer(session, kind, tf.float32, case.make, parts)

    with tf.Graph().as_default(), tf1.Session() as session:
        first = trainer(session, *saved)
        session.run(tf1.global_variables_initializer())
        first.train(range(3))
        path = tf1.train.Saver().save(session, str(tmp_path / "model"))
        expected = v1_models.whole(first.values())
    with tf.Graph().as_default(), tf1.Session() as session:
        second = trainer(session, *restored)
        tf1.train.Saver().restore(session, path)
        assert_identical(v1_models.whole(second.values()), expected)
        second.train([3])


def powers_restored(saved, parts, folder, **options):
    """The powers of parts, saved with these values, in another number of parts."""
    make = CASES["adam_async"].make

    def powers(trainer):
        tables = trainer.model.table_parts
        return [trainer.optimizer.get_slot(part, "beta1_power") for part in tables]

    with tf.Graph().as_default(), tf1.Session() as session:
        first = Trainer(session, "partitioned_ref", tf.float32, make, len(saved))
        session.run(tf1.global_variables_initializer())
        session.run([tf1.assign(*x) for x in zip(powers(first), saved, strict=True)])
        path = tf1.train.Saver(**options).save(session, str(folder / "model"))
    with tf.Graph().as_default(), tf1.Session() as session:
        second = Trainer(session, "partitioned_resource", tf.float32, make, parts)
        saver = tf1.train.Saver(**options)
        tf1.get_default_graph().finalize()
        saver.restore(session, path)
        return session.run(powers(second))


@pytest.mark.parametrize("sharded", [False, True])
@pytest.mark.parametrize(
    ("saved", "expected"),
    [
        ([0.5, 0.25, 0.75], [0.5, 0.25, 0.75]),
        ([0.5, 0.25, 0.75], [0.25, 0.25]),
        ([0.5, 0.25], [0.25, 0.25, 0.25]),
    ],
)
def test_other_parts_get_the_powers_of_most_steps(saved, expected, sharded, tmp_path):
    """And the same number of parts has each its own."""
    found = powers_restored(saved, len(expected), tmp_path, sharded=sharded)
    assert found == expected


@each_case
def test_checkpoint_of_a_graph_is_continued_in_another_graph(case, tmp_path):
    def build(session):
        trainer = Trainer(session, "resource", tf.float32, case.make)
        checkpoint = tf1.train.Checkpoint(
            table=trainer.model.table_parts[0],
            vector=trainer.model.vector,
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


@pytest.mark.eager
@each_case
@pytest.mark.parametrize(
    "dtype", [tf.float64, tf.float32, tf.float16], ids=lambda x: x.name
)
def test_an_object_based_checkpoint_is_continued(dtype, name, case, tmp_path):
    """Ours, and those of TensorFlow's class whose slots have the same names."""
    values, gradients = tf.ones([4, 3], dtype), tf.fill([2, 3], tf.cast(0.5, dtype))

    def update(optimizer, table):
        slices = tf.IndexedSlices(gradients, tf.constant([2, 0]))
        optimizer.apply_gradients([(slices, table)])

    makes = [case.make]
    if dtype == tf.float32 and name in RULES:
        makes.append(case.make_theirs)
    for make in makes:
        table, optimizer = tf.Variable(values), make()
        update(optimizer, table)
        checkpoint = tf.train.Checkpoint(table=table, optimizer=optimizer)
        path = checkpoint.save(str(tmp_path / "model"))
        update(optimizer, table)
        for when in ("before_variables", "before_slots", "after_slots"):
            restored = case.make()
            checkpoint = tf.train.Checkpoint(optimizer=restored)
            if when == "before_variables":
                status = checkpoint.restore(path)
            checkpoint.table = other = tf.Variable(values)
            if when == "after_slots":
                update(restored, other)
            if when != "before_variables":
                status = checkpoint.restore(path)
            update(restored, other)
            status.assert_consumed()
            close(other.numpy(), table.numpy(), 0 if make == case.make else 1e-6)


def deeprec_variables(kind, dtype, state):
    """Variables with the names and shapes that DeepRec gives them; no optimizer."""
    table, slots = state
    for name, value in [
        ("table", table),
        ("table/AdamAsync", slots["m"]),
        ("table/AdamAsync_1", slots["v"]),
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
        for suffix, power in [("2", "beta1_power"), ("3", "beta2_power")]:
            tf1.get_variable(
                f"table/{part}AdamAsync_{suffix}",
                initializer=tf.constant(slots[power], dtype),
            )


@pytest.mark.usefixtures("device")
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
    case, rows = CASES["adam_async"], np.arange(9)
    grads = [np.random.default_rng(seed).uniform(0.5, 1.5, [9, 4]) for seed in range(4)]
    state = case.start(v1_models.TABLE)
    for grad in grads[:3]:
        state = case.apply(state, grad, rows)
    with tf.Graph().as_default(), tf1.Session() as session:
        deeprec_variables(kind, dtype, state)
        session.run(tf1.global_variables_initializer())
        path = tf1.train.Saver().save(session, str(tmp_path / "deeprec"))

    with tf.Graph().as_default(), tf1.Session() as session:
        model = v1_models.Model(kind, dtype)
        optimizer = case.make()
        train_op = optimizer.minimize(model.loss, var_list=model.table_parts)
        saved = [x for x in tf1.global_variables() if x is not model.vector]
        tf1.train.Saver(saved).restore(session, path)
        session.run(model.vector.initializer)
        feed = {model.rows: rows, model.row_grads: grads[3]}
        session.run(train_op, {**feed, model.vector_grad: np.zeros([3])})
        tables = session.run(model.table_parts)
        slots = {
            name: session.run([optimizer.get_slot(x, name) for x in model.table_parts])
            for name, _, _ in case.slots
        }

    table, expected = case.apply(state, grads[3], rows)
    tolerance = 1e-6 if dtype == tf.float32 else 1e-14
    np.testing.assert_allclose(np.concatenate(tables), table, rtol=tolerance)
    for name, parts in slots.items():
        found = np.concatenate(parts) if expected[name].shape else parts
        np.testing.assert_allclose(found, expected[name], rtol=tolerance)
