"""The DLRM example, run as a user runs it but for fewer steps."""

import importlib.util
import os
import pathlib
import re
import signal

import commands
import criteo_logs
import pytest
import tensorflow as tf
from waiting import until

pytestmark = [pytest.mark.docs, pytest.mark.one_version]

SCRIPT = pathlib.Path(__file__).parents[2] / "examples" / "criteo_dlrm.py"
HAS_KERAS_3 = hasattr(tf.keras, "ops")
HAS_TF_KERAS = importlib.util.find_spec("tf_keras") is not None


def run(*args, workers, servers=1, env=None):
    result = commands.run(
        *("launch", "--workers", workers, "--ps", servers, "--no-prefix", SCRIPT),
        *("--lines", 20000, "--epochs", 3),
        *("--buckets", 20000, "--dimensions", 8, "--learning-rate", 3e-3, *args),
        env={"TF_CPP_MIN_LOG_LEVEL": "2"} | (env or {}),
    )
    assert result.process.returncode == 0, result.output
    return result.output


def assert_learned(output):
    """Far above chance, and not above what is possible without luck."""
    match = re.search(r"AUC (\S+) \(the planted model's own: (\S+)\) on", output)
    reached, best = map(float, match.groups())
    assert best > 0.8, output
    assert 0.7 < reached < best + 0.02, output
    assert re.search(r"Wrote 20,000 lines of planted logs, [\d,]+ a second", output)
    assert re.search(r"Speed: [\d,]+ examples per second", output), output


@pytest.mark.slow
@pytest.mark.skipif(HAS_KERAS_3 and not HAS_TF_KERAS, reason="needs Keras 2")
def test_learns_asynchronously_with_keras_2(tmp_path):
    legacy = {"TF_USE_LEGACY_KERAS": "1" if HAS_TF_KERAS else None}
    output = run("--output", tmp_path, workers=2, servers=2, env=legacy)
    assert "Training asynchronously." in output
    assert_learned(output)


def test_learns_synchronously_and_leaves_logs_for_a_report(tmp_path):
    output = run("--sync", "--backup-workers", 1, "--output", tmp_path, workers=3)
    assert "Training synchronously: quorum 2 of 3 workers." in output
    assert_learned(output)
    gate = re.search(r"Gate: (\d+) updates of (\d+) gradients", output)
    updates, applied = map(int, gate.groups())
    # All updates but the last have two gradients.
    assert updates == -(-applied // 2) > 60, output
    # A worker that was always late has given nothing.
    given = map(int, re.findall(r"task:\d  (\d+) contributions, waited", output))
    assert len([count for count in given if count]) >= 2, output
    assert list(tmp_path.glob("logs/*/events.out.tfevents.*"))
    # A training that has ended leaves no checkpoint from which to continue.
    assert not (tmp_path / "checkpoints").exists()


@pytest.mark.slow
def test_logs_that_are_given_are_trained_and_evaluated_on(tmp_path):
    paths, _ = criteo_logs.write_planted(tmp_path / "logs", 8000, files=2)
    held_out = criteo_logs.batches(paths, 1000, 10, held_out=True)
    lines = sum(len(labels) for _, labels in held_out)
    output = run(
        *("--data", *paths, "--epochs", 2),
        *("--learning-rate", 1e-2, "--output", tmp_path / "output"),
        workers=1,
    )
    losses = [float(x) for x in re.findall(r"epoch \d: loss (\S+),", output)]
    assert len(losses) == 2, output
    assert losses[1] < losses[0], output
    reached = re.search(rf"AUC (\S+) on {lines:,} lines held out\.", output)
    assert 0.6 < float(reached[1]) < 1, output
    assert "planted" not in output
    assert not (tmp_path / "output" / "data").exists()


def kill(launched, name, life):
    started = rf"{name} starts at \S+ \(pid (\d+)\)"
    os.kill(int(launched.wait_for_line(started, life)[1]), signal.SIGKILL)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_comes_within_half_a_percent_of_the_best_through_faults(tmp_path):
    """A million lines; a parameter server is killed on the way, and then a worker."""
    # Files that were being read when a task died are read again, as a whole.
    paths, best = criteo_logs.write_planted(tmp_path / "logs", 1_000_000, files=100)
    script = (SCRIPT, "--data", *paths, "--output", tmp_path / "output")
    with commands.Command(
        *("launch", "--workers", 3, "--ps", 2, "--no-prefix", "--max-restarts", 1),
        *("--on-worker-failure", "restart", "--on-ps-failure", "restart", *script),
        *("--sync", "--epochs", 3, "--batch-size", 256, "--dimensions", 8),
        *("--learning-rate", 2e-2),
        env={"TF_CPP_MIN_LOG_LEVEL": "2"},
    ) as launched:
        launched.wait_for_line("epoch 1: loss", secs=600)
        # The next checkpoint is due after a minute.
        checkpoints = tmp_path / "output" / "checkpoints"
        until(lambda: [*checkpoints.glob("ckpt-*.json")], lambda: launched.output)
        kill(launched, "ps-0", life=1)
        launched.wait_for_line("restart 1 of 1 of all tasks")
        launched.wait_for_line("Training goes on from")
        kill(launched, "worker-1", life=2)
        launched.wait_for_line("restart 1 of 1, pid")
        assert launched.wait(secs=900) == 0, launched.output
    reached = re.search(r"AUC (\S+) on [\d,]+ lines held out", launched.output)
    assert 0.995 * best < float(reached[1]) < best + 0.005, launched.output
