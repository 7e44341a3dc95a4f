"""A synchronous Keras training whose coordinator or parameter server is killed."""

import time

import keras_sync_replicas as helpers
import numpy as np
import pytest
import worker_seams
from keras_sync_cluster import KerasSyncCluster

pytestmark = [pytest.mark.ci, pytest.mark.one_version]


def test_killed_coordinator_goes_on_from_its_backup_with_living_servers(tmp_path):
    quorum, steps, epochs = 2, 8, 5
    with KerasSyncCluster(
        tmp_path,
        num_workers=quorum,
        steps=steps,
        epochs=epochs,
        backup=str(tmp_path / "backup"),
    ) as cluster:
        cluster.start()
        cluster.tasks.wait_for_output("chief", "epoch 1")
        # Closures of the dead coordinator may go on, but must not matter.
        cluster.wait_until_at("half_pushed", worker=1)
        cluster.tasks.kill("chief")
        begun = cluster.num_epochs()
        cluster.start()
        worker_seams.go_on(tmp_path, "half_pushed", worker=1)
        result = cluster.result()
        ended = cluster.num_epochs() - begun
    assert result["iterations"] == epochs * steps // quorum
    # Not everything is repeated: only the epoch that was interrupted, and those after
    # it.
    assert 0 < ended < epochs
    assert result["stats"]["updates"] == ended * steps // quorum
    # Nor does it continue with new weights: all of them were trained before.
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
    with KerasSyncCluster(tmp_path, num_workers=2, loop=loop) as cluster:
        cluster.start()
        cluster.wait_for_updates(1)
        cluster.tasks.kill(f"ps-{index}")
        killed = time.monotonic()
        cluster.tasks.wait_for_output("chief", "raised ")
        elapsed = time.monotonic() - killed
        result = cluster.result(exact=False)
    assert elapsed < 10
    (error,) = result["errors"]
    device = f"/job:ps/replica:0/task:{index}"
    lost = f"SyncReplicas has lost the parameter server {device}, and training cannot"
    assert error.startswith(f"UnavailableError: {lost}")
    assert lost in cluster.tasks.output("chief")
