"""A synchronous Keras training whose coordinator, parameter server or step fails."""

import time

import keras_sync_replicas as helpers
import numpy as np
import pytest
import worker_seams
from keras_sync_cluster import KerasSyncCluster

pytestmark = pytest.mark.one_version


def test_killed_coordinator_goes_on_from_its_backup_with_living_servers(tmp_path):
    quorum, steps, epochs = 2, 8, 6
    with KerasSyncCluster(
        tmp_path,
        num_workers=quorum,
        steps=steps,
        epochs=epochs,
        backup=str(tmp_path / "backup"),
    ) as cluster:
        cluster.start()
        cluster.tasks.wait_for_output("chief", "epoch 2")
        # What the dead one's closures do from here on must not matter.
        cluster.wait_until_at("half_pushed", worker=1)
        cluster.tasks.kill("chief")
        begun = cluster.tasks.output("chief").count("epoch ")
        cluster.start()
        worker_seams.go_on(tmp_path, "half_pushed", worker=1)
        result = cluster.result(first_step=None)
        ended = cluster.tasks.output("chief").count("epoch ") - begun
    assert result["errors"] == [None]
    assert result["iterations"] == epochs * steps // quorum
    # Not all anew: only the epoch that was cut short, and those after it.
    assert 0 < ended < epochs
    assert result["stats"]["updates"] == ended * steps // quorum
    # Nor on new weights: all of them were trained before.
    untrained = helpers.make_model().trainable_variables
    for weights, new in zip(result["weights"][0], untrained, strict=True):
        assert not np.allclose(weights, np.asarray(new))


@pytest.mark.parametrize(
    ("index", "loop"),
    [
        (0, "fit"),
        (1, "custom"),
        pytest.param(1, "fit", marks=pytest.mark.soak),
        pytest.param(0, "custom", marks=pytest.mark.soak),
    ],
)
def test_killed_parameter_server_is_an_error_in_seconds(index, loop, tmp_path):
    device = f"/job:ps/replica:0/task:{index}"
    with KerasSyncCluster(tmp_path, num_workers=2, loop=loop) as cluster:
        cluster.start()
        cluster.wait_for_updates()
        cluster.tasks.kill(f"ps-{index}")
        killed = time.monotonic()
        cluster.tasks.wait_for_output("chief", "raised ")
        elapsed = time.monotonic() - killed
        result = cluster.result(exact=False)
    assert elapsed < 10
    (error,) = result["errors"]
    lost = f"SyncReplicas has lost the parameter server {device}, and training cannot"
    assert error.startswith(f"UnavailableError: {lost}")
    assert lost in cluster.tasks.output("chief")


@pytest.mark.parametrize(
    "loop", ["fit", pytest.param("custom", marks=pytest.mark.soak)]
)
def test_error_in_a_step_is_raised_and_a_second_training_works(loop, tmp_path):
    with KerasSyncCluster(tmp_path, num_workers=2, loop=loop, further=[{}]) as cluster:
        cluster.start()
        cluster.wait_for_updates()
        worker_seams.fail(tmp_path, worker=1)
        cluster.tasks.wait_for_output("chief", "raised ")
        cluster.wait_for_updates()
        cluster.end()
        result = cluster.result()
    error, nothing = result["errors"]
    assert "this step was made to fail" in error
    assert nothing is None


def test_quorum_can_be_changed_while_training_runs(tmp_path):
    steps, epochs = 12, 3
    with KerasSyncCluster(
        tmp_path,
        num_workers=3,
        quorum=3,
        steps=steps,
        epochs=epochs,
        configure={"1": [2, 2], "2": [1, 3]},
    ) as cluster:
        cluster.start()
        result = cluster.result(exact=False)
    assert result["errors"] == [None]
    # A round that has begun keeps its quorum. Epochs end, and their last round goes on.
    updates = result["stats"]["updates"]
    counts = [3] * 5 + [2] * 5 + [1] * (updates - 10)
    assert len(counts) > 12
    assert result["stats"]["applied"] == sum(counts)
    helpers.assert_exact(result, counts)
