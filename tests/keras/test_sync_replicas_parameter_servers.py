"""SyncReplicas under ParameterServerStrategy, on a cluster of real processes.

Each training is replayed in this process: every update must be the mean of gradients of
its batches that were computed with the weights before it.
"""

import importlib.util
import pathlib

import clusters
import keras_variants
import programs
import pytest
import sync_accounting
from keras_sync_cluster import assert_exact

PROGRAM = pathlib.Path(__file__).with_name("sync_replicas_program.py")
NUM_WORKERS = 2


# Trainings that are the same with Keras 2 but for `fit`, which others have.
WITH_KERAS_2_BY_NIGHT = (
    "strategy_run",
    "slow_rounds",
    "other_quorums",
    "error_in_a_custom_loop",
    "updater_left_behind",
    "errors_apart_from_closures",
)
by_night = () if keras_variants.IS_KERAS_3 else pytest.mark.slow


def with_keras_2_by_night(test):
    return test if keras_variants.IS_KERAS_3 else pytest.mark.slow(test)


@pytest.fixture(scope="module")
def results(request):
    is_night = any(
        item.get_closest_marker("slow")
        for item in request.session.items
        if item.path == request.path
    )
    runs_all = keras_variants.IS_KERAS_3 or is_night
    left_out = () if runs_all else WITH_KERAS_2_BY_NIGHT
    with clusters.Cluster(num_workers=NUM_WORKERS, num_ps=2) as cluster:
        yield programs.run(PROGRAM, left_out, env=cluster.environment())


@pytest.mark.parametrize(
    ("name", "counts"),
    [
        ("full_rounds", [2] * 6),
        ("dropped_rest", [3] * 3),
        ("several_steps_at_once", [2] * 4),
        pytest.param("strategy_run", [3] * 4 + [2], marks=by_night),
        pytest.param("slow_rounds", [2] * 4, marks=by_night),
        pytest.param(
            "variables_in_parts",
            [2] * 4,
            marks=pytest.mark.skipif(
                keras_variants.IS_KERAS_3, reason="Keras 3 cannot train them"
            ),
        ),
    ],
)
def test_each_update_is_the_mean_of_its_round_on_the_weights_before(
    name, counts, results
):
    assert_exact(results[name], counts)
    assert results[name]["iterations"] == len(counts)


@with_keras_2_by_night
def test_number_of_replicas_is_the_clusters_number_of_workers(results):
    assert results["strategy_run"]["total"] == NUM_WORKERS


def test_rest_is_dropped_on_request_and_that_is_said(results):
    dropped = results["dropped_rest"]
    assert "dropped the 1 gradients of a last incomplete round" in dropped["said"]
    assert dropped["stats"]["pending"] == 1


def test_logs_have_the_counters_and_the_validation(results):
    history = results["full_rounds"]["history"]
    assert history["sync/updates"] == 6
    assert history["sync/late"] == history["sync/voided"] == 0
    assert {"loss", "val_loss", "sync/waited_secs"} <= set(history)


def test_checkpoint_of_an_epoch_has_all_of_its_updates(results):
    assert results["full_rounds"]["saved"] == results["full_rounds"]["weights"][3]


@pytest.mark.skipif(
    not importlib.util.find_spec("tensorboard"), reason="needs tensorboard"
)
def test_tensorboards_callback_gets_its_scalars(results):
    tags = results["full_rounds"]["board"]
    assert tags.count("epoch_loss") == 4  # two epochs of training and validation


def test_line_of_each_epoch_names_updates_and_the_slowest_worker(results):
    lines = results["full_rounds"]["output"].splitlines()
    assert len(lines) == 2
    assert all("3 updates (" in line and "of 6 gradients" in line for line in lines)
    assert all("slowest worker:" in line for line in lines)


@with_keras_2_by_night
def test_quorum_changed_while_running_holds_from_the_next_round_on(results):
    result = results["other_quorums"]
    # The rounds that were open at the changes have the old size.
    counts = [3] * 4 + [2] * 4 + [1] * (result["stats"]["updates"] - 8)
    assert len(counts) > 9
    assert_exact(result, counts)


def test_error_in_a_closure_is_raised_and_the_next_fit_works(results):
    result = results["error_in_a_closure"]
    assert result["error"].startswith("InvalidArgumentError")
    assert "1000" in result["error"]
    assert result["after"] == ""
    assert_exact(result)


@pytest.mark.parametrize("loop", ["fit", "custom"])
def test_error_in_an_update_ends_training_and_is_raised(loop, results):
    result = results["error_in_an_update"][loop]
    # It is neither what closures heard of it, nor the CancelledError of those that did
    # not.
    assert result["error"].startswith("InvalidArgumentError")
    assert "too small" in result["error"]
    stats = result["stats"]
    sync_accounting.assert_identities(stats)
    assert result["iterations"] == stats["updates"] == stats["applied"] == 0
    assert "SyncReplicas: an update failed" in result["said"]
    assert "too small" in result["said"]


@with_keras_2_by_night
def test_error_in_a_custom_loop_is_raised_and_a_fit_works_after_it(results):
    result = results["error_in_a_custom_loop"]
    assert "in the scheduled function and" in result["no_step"]
    assert result["in_the_loop"].startswith("ZeroDivisionError")
    assert result["after"] == ""
    assert_exact(result)


@with_keras_2_by_night
def test_updater_that_outlives_its_training_takes_no_part_in_the_next(results):
    result = results["updater_left_behind"]
    assert result["left_behind"]
    assert result["ended"]
    assert_exact(result)


@with_keras_2_by_night
def test_functions_and_closures_fail_without_cancelling_each_other(results):
    said = results["errors_apart_from_closures"]
    for name in ("function 1", "closure 2"):
        assert said[name].startswith("InvalidArgumentError")
        assert "made to fail" in said[name]
    assert said["closure 1"] == said["function 2"] == ""


def test_loss_scaling_is_refused(results):
    # Keras 2 itself refuses this, for any optimizer under this strategy.
    message = (
        "SyncReplicas under ParameterServerStrategy has no place in a LossScaleOpt"
        if keras_variants.IS_KERAS_3
        else "Mixed precision is not supported"
    )
    assert message in results["loss_scaling"]["error"]
