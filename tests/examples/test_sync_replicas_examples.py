"""The examples of SyncReplicasOptimizer, run as a user runs them."""

import pathlib
import re
import sys

import commands
import pytest
import tensorflow as tf

pytestmark = pytest.mark.docs

EXAMPLES = pathlib.Path(__file__).parents[2] / "examples"
HAS_ESTIMATOR = tuple(map(int, tf.__version__.split(".")[:2])) < (2, 16)


def launch(script, *args, workers=2, options=("--run-script-on", "workers")):
    """Runs an example on a cluster with two parameter servers."""
    result = commands.run(
        *("launch", "--workers", workers, "--ps", 2, *options),
        *(EXAMPLES / script, *args),
        env={"TF_CPP_MIN_LOG_LEVEL": "2"},
    )
    assert result.process.returncode == 0, result.output
    return result.output


def trained(output):
    """The number of batches and the last loss of each worker, by its task's name."""
    found = re.findall(r"(worker-\d) \| (\d+) batches, loss \S+ to (\d\.\d+)", output)
    return {task: (int(batches), float(loss)) for task, batches, loss in found}


def assert_learned(workers):
    assert sum(batches for batches, _ in workers.values()) >= 400, workers
    assert max(loss for _, loss in workers.values()) < 0.5, workers


@pytest.mark.parametrize(
    "script",
    ["sync_session.py", pytest.param("sync_supervisor.py", marks=pytest.mark.slow)],
)
def test_a_session_trains_with_all_workers(script):
    output = launch(script)
    workers = trained(output)
    # One may give more than the other, and late gradients are dropped.
    assert len(workers) == 2, output
    assert_learned(workers)
    assert "200 updates of 400 gradients" in output, output
    if script == "sync_session.py":
        # The chief's hook says so, once, every 50 of its steps, and at the end.
        batches = workers["worker-0"][0]
        said = re.findall(r"SyncReplicas: step (\d+): \1 updates", output)
        assert len(said) == batches // 50 + 1, output
        given = re.findall(r"/job:worker/replica:0/task:\d: (\d+) gradients", output)
        assert len(given) == 2, output
        assert 400 <= sum(map(int, given)) <= 402, output


@pytest.mark.soak
def test_monitored_training_session_trains_with_a_backup_worker():
    output = launch("sync_session.py", "--replicas_to_aggregate", 1)
    assert "200 updates of 200 gradients" in output, output
    assert len(trained(output)) == 2, output


needs_estimator = pytest.mark.skipif(
    not HAS_ESTIMATOR, reason="TensorFlow 2.15 was the last with it"
)


@needs_estimator
def test_estimator_trains_on_a_cluster_and_evaluates(tmp_path):
    output = launch(
        *("sync_estimator.py", "--model_dir", tmp_path),
        workers=1,
        options=("--chief", "--run-script-on", "all"),
    )
    step, accuracy = re.search(r"step (\d+): loss \S+, accuracy (\S+)", output).groups()
    assert float(accuracy) > 0.7, output
    # This is the chief's last line; every update had two gradients.
    said = re.findall(
        r"SyncReplicas: step (\d+): (\d+) updates of (\d+) gradients; .* "
        r"by worker: chief:0 (\d+) \(.*\), worker:0 (\d+) \(",
        output,
    )
    last_step, updates, gradients, chief, worker = map(int, said[-1])
    assert last_step == updates == int(step), output
    assert gradients == 2 * updates, output
    assert gradients <= chief + worker <= gradients + 2, output


@needs_estimator
def test_estimator_trains_alone(tmp_path):
    script = EXAMPLES / "sync_estimator.py"
    words = (script, "--steps", 40, "--model_dir", tmp_path)
    result = commands.run(*words, program=[sys.executable])
    output = result.output
    assert result.process.returncode == 0, output
    assert re.search(r"step 40: loss \S+, accuracy \S+", output), output
    assert "SyncReplicas: step 40: 40 updates of 40 gradients" in output, output
