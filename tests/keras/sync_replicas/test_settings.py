"""What changes in an optimizer make SyncReplicas trace its update anew."""

import types

import keras_variants
import numpy as np
import pytest
import tensorflow as tf
from packaging.version import Version

import tf_syncrep as tfs
from tf_syncrep.python.keras.sync_replicas.cluster.settings import settings_of

keras = tf.keras.optimizers
REFUSES_EXCLUSION = not keras_variants.IS_KERAS_3 or (
    Version(tf.keras.__version__) >= Version("3.16.dev0")
)


@pytest.fixture
def optimizer():
    """In it is another one, to which it has given no variable."""
    made = tfs.keras.TableOptimizers(keras.Adam(0.1, weight_decay=0.1))
    variable = tf.Variable([1.0, 2.0])
    made.build([variable])
    made.apply_gradients([(tf.ones([2]), variable)])
    return made


def test_what_a_training_changes_is_no_setting(optimizer):
    before = settings_of(optimizer)
    optimizer.learning_rate = 0.01
    optimizer.iterations.assign(7)
    variables = [variable.numpy() for variable in optimizer.variables]
    optimizer.set_weights(variables)
    assert settings_of(optimizer) == before


class Unhashable:
    """A function object of a user."""

    __hash__ = None  # pyright: ignore

    def __call__(self):
        return 1.0


@pytest.mark.parametrize(
    ("before", "change"),
    [
        ((0.9, 0.5), lambda x: (0.5, 0.9)),
        ([0.9, 0.9, 0.5], lambda x: x.pop(0)),
        ({"rate": 0.1}, lambda x: x.update(rate=0.2)),
        (np.array([0.1, 0.2]), lambda x: np.copyto(x, 0.3)),
        (np.bool_(True), lambda x: np.bool_(False)),
        ([Unhashable()], lambda x: x.clear()),
        (keras_variants.slow_decay(0.1), lambda x: setattr(x, "decay_rate", 0.5)),
    ],
    ids=["order", "number", "dict", "array", "bool", "unhashable", "schedule"],
)
def test_change_of_what_a_user_has_set_is_one(before, change):
    optimizer = types.SimpleNamespace(setting=before)
    settings = settings_of(optimizer)
    assert settings_of(optimizer) == settings
    changed = change(before)
    if isinstance(changed, (tuple, np.bool_)):
        optimizer.setting = changed
    assert settings_of(optimizer) != settings


def test_what_has_a_variable_in_it_is_no_setting():
    table = {"rate": 0.1, "slot": [tf.Variable(1.0)]}
    assert settings_of(types.SimpleNamespace(table=table, epsilon=0.5)) == {
        "epsilon": 0.5
    }


@pytest.mark.parametrize(
    "change",
    [
        lambda x: setattr(x, "weight_decay", 0.2),
        lambda x: setattr(x, "clipnorm", 1.0),
        lambda x: setattr(x, "beta_1", 0.8),
        lambda x: setattr(x, "learning_rate", keras_variants.slow_decay(0.1)),
        pytest.param(
            lambda x: x.exclude_from_weight_decay(var_names=["bias"]),
            marks=pytest.mark.skipif(
                REFUSES_EXCLUSION, reason="Keras 2 and 3.16 refuse it by now"
            ),
        ),
    ],
    ids=["weight_decay", "clipnorm", "beta_1", "learning_rate", "exclusion"],
)
def test_change_of_an_inner_optimizer_is_one(change, optimizer):
    before = settings_of(optimizer)
    change(optimizer.optimizer)
    assert settings_of(optimizer) != before
