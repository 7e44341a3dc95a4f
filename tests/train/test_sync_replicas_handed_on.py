"""What SyncReplicasOptimizer hands on, as TensorFlow's class does.

To the optimizer inside, to the averages, and to the names of its operations. Each claim
runs on both classes.
"""

import numpy as np
import pytest
import tensorflow as tf

import tf_syncrep as tfs

tf1 = tf.compat.v1

either = pytest.mark.parametrize(
    "cls",
    [tf1.train.SyncReplicasOptimizer, tfs.train.SyncReplicasOptimizer],
    ids=["stock", "ours"],
)

# Each is not the default.
OPTIONS = {
    "gate_gradients": tf1.train.Optimizer.GATE_GRAPH,
    "aggregation_method": tf.AggregationMethod.EXPERIMENTAL_ACCUMULATE_N,
    "colocate_gradients_with_ops": True,
}


class Inner(tf1.train.MomentumOptimizer):
    """Notes what it is asked, beginning with the method's name."""

    def __init__(self):
        super().__init__(0.5, 0.0)
        self.asked = []

    def compute_gradients(self, *args, **kwargs):
        self.asked.append(("compute_gradients", args, kwargs))
        return super().compute_gradients(*args, **kwargs)

    def get_slot(self, *args, **kwargs):
        self.asked.append(("get_slot", args, kwargs))
        return super().get_slot(*args, **kwargs)

    def get_slot_names(self, *args, **kwargs):
        self.asked.append(("get_slot_names", args, kwargs))
        return super().get_slot_names()


@pytest.fixture(autouse=True)
def graph():
    with tf.Graph().as_default() as graph:
        yield graph


def _variable(name="w"):
    return tf1.get_variable(name, initializer=[1.0, 2.0])


@either
def test_options_of_minimize_reach_the_optimizer_inside(cls):
    inner, variable = Inner(), _variable()
    loss, grad_loss = variable**2, tf.constant([3.0, 4.0])
    cls(inner, 1).minimize(
        loss,
        tf1.train.get_or_create_global_step(),
        var_list=[variable],
        grad_loss=grad_loss,
        **OPTIONS,
    )
    # Slots are asked for afterwards, in the update.
    method, args, kwargs = inner.asked[0]
    assert (method, args) == ("compute_gradients", (loss,))
    assert kwargs.pop("grad_loss") is grad_loss
    assert kwargs.pop("var_list") == [variable]
    assert kwargs == OPTIONS


@either
@pytest.mark.parametrize("by_name", [False, True], ids=["by_place", "by_name"])
def test_options_of_compute_gradients_reach_the_optimizer_inside(cls, by_name, graph):
    inner, variable = Inner(), _variable()
    loss, grad_loss = variable**2, tf.constant([3.0, 4.0])
    names = ("var_list", *OPTIONS, "grad_loss")
    values = ([variable], *OPTIONS.values(), grad_loss)
    given = ((), dict(zip(names, values, strict=True))) if by_name else (values, {})
    ((gradient, of),) = cls(inner, 1).compute_gradients(loss, *given[0], **given[1])
    assert inner.asked == [("compute_gradients", (loss, *given[0]), given[1])]
    assert of is variable
    with tf1.Session(graph=graph) as session:
        session.run(variable.initializer)
        np.testing.assert_array_equal(session.run(gradient), [6.0, 16.0])


@either
def test_questions_for_slots_reach_the_optimizer_inside(cls):
    inner, variable = Inner(), _variable()
    optimizer = cls(inner, 1)
    optimizer.minimize(variable**2, tf1.train.get_or_create_global_step())
    inner.asked.clear()
    slot = optimizer.get_slot(variable, name="momentum")
    assert [slot] == optimizer.variables()
    assert optimizer.get_slot_names("some", other="argument") == ["momentum"]
    assert inner.asked == [
        ("get_slot", (variable,), {"name": "momentum"}),
        ("get_slot_names", ("some",), {"other": "argument"}),
    ]


@either
def test_name_is_the_scope_of_its_operations(cls, graph):
    optimizer = cls(Inner(), 1, name="mine", use_locking=True)
    optimizer.minimize(_variable(), tf1.train.get_or_create_global_step())
    assert optimizer.get_name() == "mine"
    # All that the base class does with it is to keep it.
    assert optimizer._use_locking is True
    names = [op.name for op in graph.get_operations()]
    assert any(name.startswith("mine/") for name in names)
    assert not any(name.startswith("sync_replicas") for name in names)


@either
@pytest.mark.parametrize("how_many", [1, None], ids=["named", "all"])
def test_averages_are_kept_of_the_variables_that_are_named_or_else_of_all(
    cls, how_many
):
    averages = tf1.train.ExponentialMovingAverage(0.5)
    variables = [_variable("first"), _variable("second")]
    optimizer = cls(
        Inner(),
        1,
        variable_averages=averages,
        variables_to_average=how_many and variables[:how_many],
    )
    loss = tf.reduce_sum(tf.add_n(variables))
    optimizer.minimize(loss, tf1.train.get_or_create_global_step())
    kept = [averages.average(variable) is not None for variable in variables]
    assert kept == [True, how_many is None]
