"""Tasks of v1 trainings are killed: they go on from the last checkpoint, exactly."""

import json
import pathlib
import re
import sys

import clusters
import numpy as np
import programs
import pytest
import tensorflow as tf
import v1_checkpoint_models

import tf_syncrep as tfs

pytestmark = pytest.mark.ci

tf1 = tf.compat.v1
_PROGRAM = pathlib.Path(__file__).with_name("v1_checkpoint_program.py")
_LAST_STEP = 120
_ITEMS = 15


def _twin(use_resource, parts):
    """The variables after an undisturbed training in one process."""
    with tf.Graph().as_default():
        loss = v1_checkpoint_models.loss(use_resource, parts)
        opt = tfs.train.AdamAsyncOptimizer(0.01)
        train_op = opt.minimize(loss, global_step=tf1.train.get_global_step())
        with tf1.Session() as session:
            session.run(tf1.global_variables_initializer())
            for _ in range(_LAST_STEP):
                session.run(train_op)
            return v1_checkpoint_models.values(session)


def _cluster():
    return clusters.Cluster(
        num_workers=2,
        num_ps=2,
        chief=False,
        env=programs.environment(),
        serving=("ps",),
    )


def _command(**arguments):
    return [sys.executable, str(_PROGRAM), json.dumps(arguments)]


@pytest.mark.parametrize(
    ("use_resource", "parts"),
    [(False, 2), pytest.param(True, None, marks=pytest.mark.slow)],
)
def test_any_task_is_killed_and_training_ends_with_the_undisturbed_weights(
    tmp_path, use_resource, parts
):
    command = _command(
        directory=str(tmp_path),
        last_step=_LAST_STEP,
        use_resource=use_resource,
        parts=parts,
        sync=True,
        items=_ITEMS,
    )
    with _cluster() as cluster:
        for worker in cluster.names("worker"):
            cluster.start(worker, command)
        kills = ((20, "ps-1"), (50, "ps-0"), (80, "worker-0"))
        for number, (step, task) in enumerate(kills, 1):
            cluster.wait_for_output("worker-0", f"past {step}.")
            cluster.kill(task)
            if task.startswith("ps"):
                cluster.restart(task)
            else:
                cluster.start(task, command)
            # A second kill that comes too early is the same interruption.
            cluster.wait_for_output("worker-0", "restored", occurrence=number)
        for worker in cluster.names("worker"):
            assert cluster.wait(worker) == 0, cluster.output(worker)
        told = {name: cluster.output(name) for name in cluster.names("worker")}
        result = programs.result_in(told["worker-0"])
    for name, expected in _twin(use_resource, parts).items():
        found = np.array(result[name], expected.dtype)
        np.testing.assert_array_equal(found, expected, err_msg=name)
    read = {int(x) for x in re.findall(r"^read (\d+)$", "\n".join(told.values()), re.M)}
    assert read == set(range(_ITEMS))
