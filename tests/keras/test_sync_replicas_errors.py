"""SyncReplicas where something raises, on a cluster of real processes."""

import pathlib

import clusters
import keras_sync_replicas as helpers
import keras_variants
import programs
import pytest
import sync_accounting

pytestmark = pytest.mark.one_version

PROGRAM = pathlib.Path(__file__).with_name("sync_replicas_errors_program.py")


@pytest.fixture(scope="module")
def cluster():
    with clusters.Cluster(num_workers=3, num_ps=2) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def errors(cluster):
    return programs.run(PROGRAM, env=cluster.environment())


def test_error_in_a_closure_is_raised_and_the_next_fit_works(errors):
    result = errors["error_in_a_closure"]
    assert result["error"].startswith("InvalidArgumentError")
    assert "1000" in result["error"]
    assert result["after"] == ""
    helpers.assert_exact(result)


@pytest.mark.parametrize("loop", ["fit", "custom"])
def test_error_in_an_update_ends_training_and_is_raised(loop, errors):
    result = errors["error_in_an_update"]
    # Not what closures heard of it, nor the CancelledError of those that did not.
    assert result[loop]["error"].startswith("InvalidArgumentError")
    assert "too small" in result[loop]["error"]
    stats = result[loop]["stats"]
    sync_accounting.assert_identities(stats)
    assert result[loop]["iterations"] == stats["updates"] == stats["applied"] == 0
    assert "SyncReplicas: an update failed" in result["said"]
    assert "too small" in result["said"]


def test_rounds_that_outlast_the_wait_for_them_are_waited_for(errors):
    result = errors["slow_rounds"]
    assert result["error"] == ""
    assert result["stats"]["updates"] == 4
    helpers.assert_exact(result)


def test_updater_that_outlives_its_training_takes_no_part_in_the_next(errors):
    result = errors["updater_left_behind"]
    assert result["left_behind"]
    assert result["ended"]
    helpers.assert_exact(result)


def test_functions_and_closures_fail_without_cancelling_each_other(errors):
    said = errors["errors_apart_from_closures"]
    for name in ("function 1", "closure 2"):
        assert said[name].startswith("InvalidArgumentError")
        assert "made to fail" in said[name]
    assert said["closure 1"] == said["function 2"] == ""


def test_error_in_a_custom_loop_is_raised_and_a_fit_works_after_it(errors):
    result = errors["error_in_a_custom_loop"]
    assert "in the scheduled function and" in result["no_step"]
    assert result["in_the_loop"].startswith("ZeroDivisionError")
    assert result["after"] == ""
    helpers.assert_exact(result)


def test_quorum_changed_while_running_holds_from_the_next_round_on(errors):
    result = errors["other_quorum"]
    assert result["error"] == ""
    # The round that was open at the change is of the old size.
    helpers.assert_exact(result, [3, 3, 3, 3, 2, 2, 2])


def test_loss_scaling_is_refused(errors):
    # By Keras 2 itself, of any optimizer under this strategy.
    message = (
        "SyncReplicas under ParameterServerStrategy has no place in a LossScaleOpt"
        if keras_variants.IS_KERAS_3
        else "Mixed precision is not supported"
    )
    assert message in errors["loss_scaling"]["error"]
