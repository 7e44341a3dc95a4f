"""Tables that grow on clusters of real processes, beside tables of fixed size."""

import pathlib

import clusters
import dynamic_models as models
import numpy as np
import programs
import pytest
import tensorflow as tf

import tf_syncrep as tfs

pytestmark = pytest.mark.ci

PROGRAM = pathlib.Path(__file__).with_name("dynamic_embedding_program.py")
OPTIMIZERS = {
    "adam": lambda: tf.keras.optimizers.Adam(0.05),
    "rowwise_adagrad": lambda: tfs.keras.RowwiseAdagrad(0.05),
    "adam_async": lambda: tfs.keras.AdamAsync(0.05),
}


@pytest.fixture(
    scope="module",
    params=[*(pytest.param(number, marks=pytest.mark.slow) for number in (1, 2)), 3],
)
def training(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp(f"servers_{request.param}")
    with clusters.Cluster(num_workers=2, num_ps=request.param) as cluster:
        return programs.run(
            PROGRAM, str(folder), request.param, env=cluster.environment()
        )


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """What comes of the synchronous trainings in one process."""
    folder = tmp_path_factory.mktemp("alone")
    return programs.run(PROGRAM, str(folder), 0, env=programs.environment())


def assert_same(table, other):
    assert table["keys"] == other["keys"]
    np.testing.assert_array_equal(table["vectors"], other["vectors"])


def test_rows_begin_on_any_number_of_servers_as_in_one_process(training):
    for name, table in models.initial_tables().items():
        own = training["initial"][name]
        assert own["keys"] == table.keys.tolist()
        np.testing.assert_array_equal(np.float32(own["vectors"]), table.vectors)


def assert_as_fixed(growing, fixed, initial, optimizer):
    for name, table in growing.items():
        rows = np.searchsorted(models.KEYS[name], table["keys"])
        np.testing.assert_array_equal(models.KEYS[name][rows], table["keys"])
        tolerance = models.tolerance(optimizer)
        np.testing.assert_allclose(
            table["vectors"], np.asarray(fixed[name])[rows], tolerance, tolerance
        )
        initial_vectors = np.asarray(initial[name]["vectors"])[rows]
        assert not np.allclose(table["vectors"], initial_vectors, atol=0.02)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_synchronous_training_has_the_bits_of_fixed_tables(training, optimizer):
    growing, fixed = training["synchronous"][optimizer]
    assert_as_fixed(growing, fixed, training["initial"], optimizer)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_synchronous_training_has_the_bits_of_one_process(training, alone, optimizer):
    """So it has the same ones by key on any number of servers."""
    for name, table in training["synchronous"][optimizer][0].items():
        assert_same(table, alone["synchronous"][optimizer][0][name])


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_workers_with_batches_of_their_own_make_the_bits_of_fixed_tables(
    training, optimizer
):
    growing, fixed = training["own_batches"][optimizer]
    assert_as_fixed(growing, fixed, training["initial"], optimizer)


def test_workers_meet_new_keys_and_evaluation_makes_none(training):
    result = training["asynchronous"]
    for name in models.SIZES:
        stats = result["stats"][name]
        assert stats["rows"] == stats["admitted"] == models.SIZES[name]
        assert stats == result["stats_after"][name]
        keys = result["tables"][name]["keys"]
        assert keys == models.KEYS[name].tolist()
    assert result["rows"][-1] == models.SIZES["items"]
    assert result["losses"][-1] < 0.7 * result["losses"][0]
    # Ids without a row have zeros, so only the bias remains.
    np.testing.assert_allclose(result["of_unknown"], result["bias"], rtol=1e-6)


def test_each_server_has_vectors_keys_and_uses_of_its_part(training):
    devices = training["asynchronous"]["devices"]
    servers = training["servers"]
    assert len(devices) == 3 * servers
    assert len(set(devices)) == servers
    assert all(devices.count(device) == 3 for device in set(devices))


@pytest.mark.parametrize("kind", ["asynchronous", "synchronous"])
def test_a_step_sends_no_more_messages_than_with_fixed_tables(training, kind):
    growing, fixed = training["messages"][kind]
    # Before it is pruned, the graph has one more for each server: TensorFlow makes
    # zeros for the gradient of row numbers, which nobody uses.
    growing -= training["servers"]
    if kind == "synchronous":
        # Each server but the gate's says when the rows of a gradient were found.
        growing -= training["servers"] - 1
    assert growing <= fixed


@pytest.mark.parametrize("kind", ["evicting_async", "evicting_sync"])
def test_rows_that_are_not_used_go_and_begin_anew(training, kind):
    result = training[kind]
    for name, stats in result["stats"].items():
        used = {seed: result["used"][seed][name] for seed in ("0", "1")}
        # These are the ids of the last batch, and no others.
        assert result["tables"]["1"][name]["keys"] == used["1"]
        assert result["tables"]["0"][name]["keys"] == used["0"]
        once = set(used["0"]) - set(used["1"])
        back = set(used["1"]) - set(used["0"])
        assert stats["evicted"] == len(once) + len(back)
        assert stats["admitted"] == len(set(used["0"]) | set(used["1"])) + len(once)
        assert stats["refused"] == 0


def test_rows_that_begin_anew_learn_what_they_learn_in_one_process(training, alone):
    for seed, tables in training["evicting_sync"]["tables"].items():
        for name, table in tables.items():
            assert_same(table, alone["evicting_sync"]["tables"][seed][name])


def assert_all_same(tables, others):
    assert tables.keys() == others.keys()
    for name, table in tables.items():
        assert_same(table, others[name])


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_checkpoints_are_restored_onto_servers_and_in_one_process(training, optimizer):
    result, restored = (
        training["checkpoints"][optimizer],
        training["restored"][optimizer],
    )
    assert restored["path"].endswith("ckpt-3")  # it needs the two before
    assert_all_same(restored["tables"], result["tables"])
    assert_all_same(restored["next"], result["next"])
    model = models.growing(OPTIMIZERS[optimizer]())
    folder = str(pathlib.Path(restored["path"]).parent)
    tfs.keras.Checkpoint(folder, model=model).restore()
    assert_as_told(model, result["tables"])
    ids, targets = models.batch(12, 0)
    # In another order, the sum over a row's gradients may have other bits.
    model.fit(models.as_keys(ids), targets, batch_size=12, shuffle=False, verbose=0)
    assert_as_told(model, result["next"])


def assert_as_told(model, tables):
    for name, (keys, vectors) in model.tables().items():
        assert keys.tolist() == tables[name]["keys"]
        np.testing.assert_array_equal(vectors, np.float32(tables[name]["vectors"]))


@pytest.mark.slow
@pytest.mark.parametrize("num_servers", [2, 1])
def test_checkpoints_are_restored_onto_another_number_of_servers(training, num_servers):
    with clusters.Cluster(num_workers=1, num_ps=num_servers) as cluster:
        found = programs.run(
            PROGRAM,
            training["folder"],
            num_servers,
            "only restores",
            env=cluster.environment(),
        )
    for optimizer, restored in found.items():
        result = training["checkpoints"][optimizer]
        assert_all_same(restored["tables"], result["tables"])
        assert_all_same(restored["next"], result["next"])
