"""Tables with optimizers of their own on a cluster of real processes."""

import pathlib

import clusters
import embedding_models as models
import numpy as np
import programs
import pytest
import table_optimizer_models as program

import tf_syncrep as tfs

pytestmark = pytest.mark.ci

PROGRAM = pathlib.Path(__file__).with_name("table_optimizers_program.py")
SERVERS = 2


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("saved")


@pytest.fixture(scope="module")
def training(folder):
    with clusters.Cluster(num_workers=1, num_ps=SERVERS) as cluster:
        return programs.run(PROGRAM, str(folder), env=cluster.environment())


def assert_equal(actual, expected):
    for name, value in expected.items():
        np.testing.assert_array_equal(
            np.float32(actual[name]), np.float32(value), err_msg=name
        )


@pytest.mark.parametrize("kind", ["asynchronous", "synchronous"])
def test_slabs_in_parts_train_to_the_bits_of_one_process(training, kind):
    result = training[kind]
    assert result["parts"] == 3 * SERVERS
    assert_equal(result["cluster"], result["single"])
    for name, table in models.initial_tables().items():
        assert not np.allclose(result["single"][name], table, atol=0.01)
    assert result["counts"] == 3 * [program.STEPS]


def test_the_norm_of_all_parts_is_that_of_the_whole(training):
    result = training["clipped"]
    for name, value in result["single"].items():
        np.testing.assert_allclose(result["cluster"][name], value, atol=1e-6)
        unclipped = training["synchronous"]["single"][name]
        assert not np.allclose(value, unclipped, atol=1e-3)


def test_tensorflows_checkpoint_restores_all_optimizers(training):
    assert_equal(training["saved"]["again"], training["saved"]["after"])


@pytest.mark.parametrize("kind", ["full", "changes", "file"])
def test_what_servers_saved_goes_on_in_one_process(training, folder, kind):
    model = program.make()
    model.optimizer.build(model.trainable_variables)
    if kind == "file":
        model.load_weights(str(folder / "model.weights.h5"))
    else:
        tfs.keras.Checkpoint(str(folder / kind), model=model).restore()
    states = [
        training["asynchronous"]["cluster"],
        training["saved"]["after"],
        training["saved"]["later"],
    ]
    done = 2 if kind == "changes" else 1
    assert_equal(program.state(model), states[done - 1])
    model.fit(program.dataset(), steps_per_epoch=program.STEPS, verbose=0)
    assert_equal(program.state(model), states[done])
    assert program.counts(model.optimizer) == 3 * [(done + 1) * program.STEPS]


def test_rows_that_went_begin_anew_with_their_own_optimizer(training):
    counts = training["growing"]
    assert counts["evicted"] > 0
    # Rows of the last steps: those that went have the slots that new ones have.
    assert 0 < counts["moved"] < 50 == counts["admitted"]


def test_other_optimizers_are_refused_before_anything_is_changed(training):
    message, tables = training["refused"]
    assert "has an optimizer of its own" in message
    assert "tfs.keras.TableOptimizers(optimizer)" in message
    assert_equal(tables, models.initial_tables())
