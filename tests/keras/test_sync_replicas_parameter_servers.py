"""SyncReplicas under ParameterServerStrategy, on a cluster of real processes.

Each update is replayed in this process: it must be the mean of gradients that were
computed on the weights before it, of the batches that it says it was made of.
"""

import importlib.util
import pathlib

import clusters
import keras_sync_replicas as helpers
import keras_variants
import programs
import pytest

PROGRAM = pathlib.Path(__file__).with_name("sync_replicas_program.py")
NUM_WORKERS = 3

# With as many gradients in a round as may be under way, none is dropped.
TRAININGS = {
    "fit": {"loop": "fit", "quorum": 3, "total": 3, "steps": 9, "epochs": 2},
    "fit_with_a_rest": {
        "loop": "fit",
        "quorum": 3,
        "total": 3,
        "steps": 5,
        "epochs": 2,
    },
    "fit_that_drops_the_rest": {
        "loop": "fit",
        "quorum": 3,
        "total": 3,
        "steps": 5,
        "epochs": 2,
        "flush_last": False,
    },
    "fit_with_fewer_gradients_than_workers": {
        "loop": "fit",
        "quorum": 2,
        "total": 3,
        "steps": 12,
        "epochs": 1,
    },
    "fit_with_more_gradients_than_workers": {
        "loop": "fit",
        "quorum": 5,
        "total": 3,
        "steps": 10,
        "epochs": 1,
    },
    "fit_of_several_steps_at_once": {
        "loop": "fit",
        "quorum": 2,
        "total": 2,
        "steps": 8,
        "epochs": 1,
        "steps_per_execution": 4,
    },
    "custom_loop": {"loop": "custom", "quorum": 3, "total": 3, "steps": 7, "epochs": 2},
    "strategy_run": {
        "loop": "strategy_run",
        "quorum": 3,
        "total": None,
        "steps": 7,
        "epochs": 2,
    },
}
# By the rest of the gradients at the end.
EXPECTED_COUNTS = {
    "fit": [3] * 6,
    "fit_with_a_rest": [3] * 3 + [1],
    "fit_that_drops_the_rest": [3] * 3,
    "fit_with_more_gradients_than_workers": [5] * 2,
    "fit_of_several_steps_at_once": [2] * 4,
    "custom_loop": [3] * 4 + [2],
    "strategy_run": [3] * 4 + [2],
}


@pytest.fixture(scope="module")
def cluster():
    with clusters.Cluster(num_workers=NUM_WORKERS, num_ps=2) as cluster:
        yield cluster


def run(cluster, num_parts, trainings):
    results = programs.run(
        PROGRAM, num_parts, list(trainings.values()), env=cluster.environment()
    )
    return dict(zip(trainings, results, strict=True))


@pytest.fixture(scope="module")
def results(cluster):
    trainings = {name: {**x, "inner": "sgd"} for name, x in TRAININGS.items()}
    return run(cluster, 1, trainings)


@pytest.mark.parametrize("name", TRAININGS)
def test_each_update_is_the_mean_of_its_round_on_the_weights_before(name, results):
    helpers.assert_exact(results[name], EXPECTED_COUNTS.get(name))


def test_late_gradients_of_backups_are_dropped_and_counted(results):
    stats = results["fit_with_fewer_gradients_than_workers"]["stats"]
    steps = stats["applied"] + stats["late"] + stats["stale"] + stats["pending"]
    assert steps == 12
    assert stats["updates"] >= 4


def test_number_of_replicas_is_the_clusters_number_of_workers(results):
    assert results["strategy_run"]["total"] == NUM_WORKERS


def test_rest_is_dropped_on_request_and_that_is_said(results):
    dropped = results["fit_that_drops_the_rest"]
    assert "dropped the 1 gradients of a last incomplete round" in dropped["said"]
    assert dropped["stats"]["pending"] == 1


def test_logs_have_the_counters_and_the_validation(results):
    history = results["fit"]["history"]
    assert history["sync/updates"] == 6
    assert history["sync/late"] == history["sync/voided"] == 0
    assert {"loss", "val_loss", "sync/waited_secs"} <= set(history)


def test_checkpoint_of_an_epoch_has_all_of_its_updates(results):
    assert results["fit"]["saved"] == results["fit"]["weights"][3]


@pytest.mark.skipif(
    not importlib.util.find_spec("tensorboard"), reason="needs tensorboard"
)
def test_tensorboards_callback_gets_its_scalars(results):
    tags = results["fit"]["board"]
    assert tags.count("epoch_loss") == 4  # two epochs of training and validation


def test_line_of_each_epoch_names_updates_and_the_slowest_worker(results):
    lines = results["fit"]["output"].splitlines()
    assert len(lines) == 2
    assert all("3 updates (" in line and "of 9 gradients" in line for line in lines)
    assert all("slowest worker:" in line for line in lines)


@pytest.mark.skipif(
    keras_variants.IS_KERAS_3, reason="Keras 3 cannot train variables in parts"
)
def test_partitioned_variables_train_exactly(cluster):
    training = {**TRAININGS["fit"], "inner": "sgd"}
    results = run(cluster, 2, {"fit": training})
    helpers.assert_exact(results["fit"], EXPECTED_COUNTS["fit"])
