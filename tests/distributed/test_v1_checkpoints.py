"""Tasks of v1 trainings are killed: they go on from the last checkpoint, exactly."""

import pathlib
import re

import numpy as np
import programs
import pytest
import v1_checkpoint_models
from sync_replicas_cluster import ReplicaCluster

import tf_syncrep as tfs

pytestmark = pytest.mark.ci

_PROGRAM = pathlib.Path(__file__).with_name("v1_checkpoint_program.py")
_LAST_STEP = 120
_ITEMS = 15


@pytest.mark.parametrize(
    ("use_resource", "parts"),
    [(False, 2), pytest.param(True, None, marks=pytest.mark.slow)],
)
def test_any_task_is_killed_and_training_ends_with_the_undisturbed_weights(
    tmp_path, use_resource, parts
):
    replicas = ReplicaCluster(
        _PROGRAM,
        num_workers=2,
        num_ps=2,
        directory=str(tmp_path),
        last_step=_LAST_STEP,
        use_resource=use_resource,
        parts=parts,
        sync=True,
        items=_ITEMS,
    )
    with replicas:
        cluster = replicas.tasks
        for worker in range(2):
            replicas.start(worker)
        kills = ((20, "ps-1"), (50, "ps-0"), (80, "worker-0"))
        for number, (step, task) in enumerate(kills, 1):
            cluster.wait_for_output("worker-0", f"past {step}.")
            cluster.kill(task)
            if task.startswith("ps"):
                cluster.restart(task)
            else:
                replicas.start(0)
            # A second kill that comes too early is the same interruption.
            cluster.wait_for_output("worker-0", "restored", occurrence=number)
        for worker in cluster.names("worker"):
            assert cluster.wait(worker) == 0, cluster.output(worker)
        told = {name: cluster.output(name) for name in cluster.names("worker")}
        result = programs.result_in(told["worker-0"])
    undisturbed = v1_checkpoint_models.trained_alone(
        lambda: tfs.train.AdamAsyncOptimizer(0.01), [_LAST_STEP], use_resource, parts
    )
    for name, expected in undisturbed[_LAST_STEP].items():
        found = np.array(result[name], expected.dtype)
        np.testing.assert_array_equal(found, expected, err_msg=name)
    read = {int(x) for x in re.findall(r"^read (\d+)$", "\n".join(told.values()), re.M)}
    assert read == set(range(_ITEMS))
