"""Slots of AdamAsyncOptimizer: places, and whose they are.

Their names, dtypes and values are compared where training is with the twin.
"""

import numpy as np
import pytest
import tensorflow as tf
import v1_models

import tf_syncrep as tfs

tf1 = tf.compat.v1


@pytest.mark.parametrize("kind", v1_models.KINDS)
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
        pairs = [(tf.ones([2]), tf1.get_variable(f"x{i}", [2])) for i in range(20)]
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
