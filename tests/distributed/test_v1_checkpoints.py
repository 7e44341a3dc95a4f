"""Tasks of v1 trainings are stopped and killed, and go on.

After a kill that is from the last checkpoint, exactly if training is synchronous, and
so is what is published.
"""

import pathlib
import re

import numpy as np
import programs
import published_models
import pytest
import v1_checkpoint_models
import v1_published
from sync_replicas_cluster import ReplicaCluster

import tf_syncrep as tfs

pytestmark = pytest.mark.ci

_PROGRAM = pathlib.Path(__file__).with_name("v1_checkpoint_program.py")
_LAST_STEP = 120
_ITEMS = 15
# The step at which a task is stopped for a while, or killed.
_STOPS = {10: "worker-1", 30: "ps-0", 40: "ps-1", 100: "worker-0"}
_KILLS = {20: "ps-1", 50: "ps-0", 70: "worker-1", 80: "worker-0"}


@pytest.mark.parametrize(
    ("sync", "use_resource", "parts"),
    [
        (True, False, 2),
        (False, True, None),
        pytest.param(True, True, None, marks=pytest.mark.slow),
    ],
)
def test_any_task_is_stopped_or_killed_and_training_ends(
    tmp_path, sync, use_resource, parts
):
    replicas = ReplicaCluster(
        _PROGRAM,
        num_workers=2,
        num_ps=2,
        directory=str(tmp_path),
        last_step=_LAST_STEP,
        use_resource=use_resource,
        parts=parts,
        sync=sync,
        items=_ITEMS,
        holds=[*_STOPS, *_KILLS],
    )
    published = tmp_path / "published"
    with replicas, v1_published.Recorded(published) as recorded:
        cluster = replicas.tasks
        for worker in range(2):
            replicas.start(worker)
        num_restored = 0
        for step in sorted(_STOPS | _KILLS):
            cluster.wait_for_output("worker-0", f"past {step}.")
            (tmp_path / f"go-{step}").touch()
            if step in _STOPS:
                cluster.stop_for_a_while(_STOPS[step])
                continue
            task = _KILLS[step]
            cluster.kill(task)
            if task.startswith("ps"):
                cluster.restart(task)
            else:
                replicas.start(int(task[-1]))
            if task == "worker-1":
                begun = cluster.output(task).count("begun")
                cluster.wait_for_output(task, "begun", occurrence=begun + 1)
                continue
            # A second kill that comes too early is the same interruption.
            num_restored += 1
            cluster.wait_for_output("worker-0", "restored", occurrence=num_restored)
        for worker in cluster.names("worker"):
            assert cluster.wait(worker) == 0, cluster.output(worker)
        told = {name: cluster.output(name) for name in cluster.names("worker")}
        result = programs.result_in(told["worker-0"])
        recorded.wait(published_models.manifests(published)[-1].number)
    if sync:
        assert recorded.assert_right(parts) == _LAST_STEP
        undisturbed = v1_checkpoint_models.trained_alone(
            v1_published.adam, [_LAST_STEP], use_resource, parts
        )
        for name, expected in undisturbed[_LAST_STEP].items():
            found = np.array(result[name], expected.dtype)
            np.testing.assert_array_equal(found, expected, err_msg=name)
    # Another worker may have been in its last step.
    assert 0 <= result["global_step"] - _LAST_STEP <= (0 if sync else 1)
    read = {int(x) for x in re.findall(r"^read (\d+)$", "\n".join(told.values()), re.M)}
    assert read == set(range(_ITEMS))


def test_another_cluster_begins_warm_and_trains_on_as_if_it_were_one(tmp_path):
    """With more servers; no replica makes a step before it is warm."""
    half, parts, told = _LAST_STEP // 2, 2, ""
    for number, num_ps, more in (
        (1, 2, {}),
        (2, 3, {"warm_start": str(tmp_path / "1"), "first_step": half}),
    ):
        replicas = ReplicaCluster(
            _PROGRAM,
            num_workers=2,
            num_ps=num_ps,
            directory=str(tmp_path / str(number)),
            last_step=number * half,
            use_resource=True,
            parts=parts,
            sync=True,
            items=_ITEMS,
            **more,
        )
        with replicas:
            for worker in range(2):
                replicas.start(worker)
            for worker in replicas.tasks.names("worker"):
                status = replicas.tasks.wait(worker)
                assert status == 0, replicas.tasks.output(worker)
            told = replicas.tasks.output("worker-0")
    assert "Warm start from" in told
    result = programs.result_in(told)
    alone = v1_checkpoint_models.trained_alone(
        lambda: tfs.train.AdamAsyncOptimizer(0.01), [_LAST_STEP], True, parts
    )
    for name, expected in alone[_LAST_STEP].items():
        found = np.array(result[name], expected.dtype)
        np.testing.assert_array_equal(found, expected, err_msg=name)
