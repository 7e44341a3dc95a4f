"""Updates of AdamAsync that take a round themselves, and those that must not."""

import numpy as np
import pytest
import sync_replicas_twin as twin
import tensorflow as tf

import tf_syncrep as tfs
from tf_syncrep.python.ops import op_library

tf1 = tf.compat.v1

FUSED = "Syncrep>AccumulatorTakeRoundApplyAdamAsyncDense"
TAKE = "Syncrep>AccumulatorTakeRoundDense"


class LookingOptimizer(tfs.train.AdamAsyncOptimizer):
    """A subclass, which might do anything with a gradient."""


def adam_async(cls=tfs.train.AdamAsyncOptimizer, **options):
    return lambda: cls(0.01, **options)


def train(inner, **options):
    """Trains; every variable by name, and how many ops of each type there are."""
    replica = twin.Replica(quorum=2, total=1, inner=inner, **options)
    with replica.graph.as_default():
        variables = {
            x.name.replace("LookingOptimizer", "AdamAsync"): x
            for x in tf1.global_variables()
        }
        types = [op.type for op in replica.graph.get_operations()]
    with replica.monitored_session() as session:
        replica.train(session, twin.batches(6))
        return session.run(variables), types.count


@pytest.mark.parametrize("use_nesterov", [False, True])
def test_dense_updates_take_rounds_by_themselves_and_come_to_the_same_bits(
    use_nesterov,
):
    options = {"use_nesterov": use_nesterov}
    fused, count = train(adam_async(**options), use_resource=True)
    assert (count(FUSED), count(TAKE)) == (1, 0)
    two, count = train(adam_async(LookingOptimizer, **options), use_resource=True)
    assert (count(FUSED), count(TAKE)) == (0, 1)
    assert fused.keys() == two.keys()
    assert any(name.startswith("dense/") for name in fused)
    for name, value in fused.items():
        if "sync_rep" not in name:
            assert np.array_equal(value, two[name]), name
    assert not np.array_equal(fused["dense:0"], twin.DENSE)


def test_other_optimizers_and_reference_variables_get_the_gradient():
    for inner, use_resource in [
        (adam_async(), False),
        (lambda: tf1.train.AdamOptimizer(0.01), True),
    ]:
        _, count = train(inner, use_resource=use_resource)
        assert (count(FUSED), count(TAKE)) == (0, 1)


def test_variables_that_checkpoints_keep_by_rows_get_the_gradient(monkeypatch):
    monkeypatch.setattr(
        "tf_syncrep.python.train.sync_replicas.update.is_written_by_rows",
        lambda x: True,
    )
    _, count = train(adam_async(), use_resource=True)
    assert (count(FUSED), count(TAKE)) == (0, 1)


@pytest.mark.parametrize("num_gpus", [0, 1])
def test_variables_that_may_be_on_a_gpu_get_the_gradient(num_gpus, monkeypatch):
    monkeypatch.setattr(op_library, "has_kernels_for", lambda device_type: True)
    monkeypatch.setattr(
        tf.config, "list_physical_devices", lambda device_type: ["GPU:0"] * num_gpus
    )
    _, count = train(adam_async(), use_resource=True)
    assert (count(FUSED), count(TAKE)) == (1 - num_gpus, num_gpus)


@pytest.mark.parametrize(
    ("device", "is_fused"), [("/job:localhost", 0), ("/job:localhost/device:CPU:0", 1)]
)
def test_where_other_tasks_may_have_gpus_a_device_says_what_may_be_on_one(
    device, is_fused, monkeypatch
):
    monkeypatch.setattr(op_library, "has_kernels_for", lambda device_type: True)
    monkeypatch.setattr(twin.devices, "scope", lambda: tf.device(device))
    _, count = train(adam_async(), use_resource=True)
    assert (count(FUSED), count(TAKE)) == (is_fused, 1 - is_fused)
