"""Slots of AdamAsyncOptimizer: names, shapes, dtypes, initial values, places."""

import numpy as np
import pytest
import tensorflow as tf
import v1_models

import tf_syncrep as tfs

tf1 = tf.compat.v1

kinds = pytest.mark.parametrize("kind", v1_models.KINDS)


@kinds
def test_slots_have_the_names_of_deeprec(kind):
    with tf.Graph().as_default():
        model = v1_models.Model(kind)
        optimizer = tfs.train.AdamAsyncOptimizer()
        optimizer.minimize(model.loss)
        assert optimizer.get_slot_names() == ["beta1_power", "beta2_power", "m", "v"]
        for variable in model.variables:
            for slot_name, suffix in [
                ("m", "AdamAsync"),
                ("v", "AdamAsync_1"),
                ("beta1_power", "AdamAsync_2"),
                ("beta2_power", "AdamAsync_3"),
            ]:
                slot = optimizer.get_slot(variable, slot_name)
                assert slot.op.name == f"{variable.op.name}/{suffix}"


def test_the_optimizers_name_is_the_slots_name():
    with tf.Graph().as_default():
        model = v1_models.Model("resource")
        optimizer = tfs.train.AdamAsyncOptimizer(name="Fast")
        optimizer.minimize(model.loss)
        names = {variable.op.name for variable in optimizer.variables()}
    suffixes = ("Fast", "Fast_1", "Fast_2", "Fast_3")
    assert names == {f"{v}/{s}" for v in ("table", "vector") for s in suffixes}


@kinds
@pytest.mark.parametrize(
    ("dtype", "slot_dtype"),
    [
        (tf.float16, tf.float32),
        (tf.bfloat16, tf.float32),
        (tf.float32, tf.float32),
        (tf.float64, tf.float64),
    ],
    ids=lambda dtype: dtype.name,
)
def test_slots_begin_at_zero_and_powers_at_the_betas(kind, dtype, slot_dtype):
    with tf.Graph().as_default(), tf1.Session() as session:
        model = v1_models.Model(kind, dtype)
        optimizer = tfs.train.AdamAsyncOptimizer(beta1=0.7, beta2=0.95)
        optimizer.minimize(model.loss)
        session.run(tf1.global_variables_initializer())
        for variable in model.variables:
            for name in ("m", "v"):
                slot = optimizer.get_slot(variable, name)
                assert slot.dtype.base_dtype == slot_dtype
                assert slot.shape == variable.shape
                np.testing.assert_array_equal(session.run(slot), np.zeros(slot.shape))
            for name, beta in (("beta1_power", 0.7), ("beta2_power", 0.95)):
                slot = optimizer.get_slot(variable, name)
                assert slot.dtype.base_dtype == slot_dtype
                # A slot of shape (1,) would inherit the slices of a partitioned
                # variable, and Saver fails on that.
                assert slot.shape == []
                assert session.run(slot) == slot_dtype.as_numpy_dtype(beta)


@kinds
def test_slots_are_not_trained(kind):
    with tf.Graph().as_default():
        model = v1_models.Model(kind)
        optimizer = tfs.train.AdamAsyncOptimizer()
        optimizer.minimize(model.loss)
        assert tf1.trainable_variables() == model.variables
        assert len(optimizer.variables()) == 4 * len(model.variables)
        assert all(x in tf1.global_variables() for x in optimizer.variables())


@kinds
def test_slots_and_updates_are_placed_beside_their_variable(kind):
    cluster = {"ps": ["ps0:1", "ps1:1"], "worker": ["worker0:1"]}
    with tf.Graph().as_default() as graph:
        with tf1.device(tf1.train.replica_device_setter(cluster=cluster)):
            model = v1_models.Model(kind)
            optimizer = tfs.train.AdamAsyncOptimizer(learning_rate=tf.constant(0.1))
            optimizer.minimize(model.loss)

        places = {variable.device for variable in model.variables}
        assert places == {"/job:ps/task:0", "/job:ps/task:1"}
        updates = {
            op.name.split("/update_")[1].rsplit("/", 1)[0]: op
            for op in graph.get_operations()
            if "ApplyAdamAsync" in op.type
        }
        for variable in model.variables:
            for name in optimizer.get_slot_names():
                slot = optimizer.get_slot(variable, name)
                assert slot.device == variable.device
                assert slot.initializer.device == variable.device
            assert updates[variable.op.name].device == variable.device


def test_variables_of_one_place_share_their_hyper_parameters():
    with tf.Graph().as_default() as graph:
        pairs = [
            (tf.ones([2]), tf1.get_variable(f"x{i}", [2], dtype))
            for i, dtype in enumerate([tf.float32] * 20)
        ]
        tfs.train.AdamAsyncOptimizer(0.1).apply_gradients(pairs)
        updates = [x for x in graph.get_operations() if "ApplyAdamAsync" in x.type]
        scalars = {id(x.op) for op in updates for x in op.inputs[5:9]}
    assert len(updates) == 20
    assert len(scalars) == 4


def test_two_optimizers_have_slots_of_their_own():
    with tf.Graph().as_default(), tf1.Session() as session:
        x = tf1.get_variable("x", initializer=[1.0])
        first = tfs.train.AdamAsyncOptimizer(0.25, beta1=0.5)
        second = tfs.train.AdamAsyncOptimizer(0.5, beta1=0.9)
        first_op = first.apply_gradients([(tf.ones([1]), x)])
        second_op = second.apply_gradients([(tf.ones([1]), x)])
        assert set(first.variables()).isdisjoint(set(second.variables()))
        session.run(tf1.global_variables_initializer())
        session.run(first_op)
        session.run(first_op)
        session.run(second_op)
        powers = session.run([o.get_slot(x, "beta1_power") for o in (first, second)])
        np.testing.assert_allclose(powers, [0.125, 0.81], rtol=1e-6)


def test_one_optimizer_serves_several_graphs():
    optimizer = tfs.train.AdamAsyncOptimizer(0.1)
    for _ in range(2):
        with tf.Graph().as_default(), tf1.Session() as session:
            model = v1_models.Model("resource")
            train_op = optimizer.minimize(model.loss)
            session.run(tf1.global_variables_initializer())
            session.run(train_op, model.feed(0))
            power = optimizer.get_slot(model.vector, "beta1_power")
            np.testing.assert_allclose(session.run(power), 0.81, rtol=1e-6)
