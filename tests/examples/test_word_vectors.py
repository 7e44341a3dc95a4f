"""The word vector example, run as a user runs it but for fewer steps."""

import importlib.util
import pathlib
import re

import commands
import numpy as np
import pytest

pytest.importorskip("matplotlib", reason="the example draws with matplotlib")

SCRIPT = pathlib.Path(__file__).parents[2] / "examples" / "word_vectors.py"
# Before TensorFlow 2.16, tf.keras is Keras 2 in any case.
HAS_TF_KERAS = importlib.util.find_spec("tf_keras") is not None
KERAS_2 = {
    "TF_USE_LEGACY_KERAS": "1" if HAS_TF_KERAS else None,
    "TF_CPP_MIN_LOG_LEVEL": "2",
}


def test_learns_on_a_cluster_and_shows_what_it_learned(tmp_path):
    result = commands.run(
        *("launch", "--workers", 2, "--ps", 2, SCRIPT),
        *("--steps", 300, "--steps-per-epoch", 100, "--batch-size", 512),
        *("--dimensions", 16, "--negatives", 16, "--output", tmp_path),
        env=KERAS_2,
    )
    output = result.output
    assert result.process.returncode == 0, output

    assert re.search(r"2 workers, 2 parameter servers", output), output
    losses = [float(x) for x in re.findall(r"step \d+  loss (\d+\.\d+)", output)]
    assert len(losses) == 3, output
    assert losses[-1] < losses[0] - 0.1, output
    for task in (0, 1):
        assert re.search(rf"/job:ps/replica:0/task:{task}/.* x 16", output), output
    assert re.search(r"\| +tuple  \w+, \w+, \w+, \w+, \w+, \w+", output), output
    assert re.search(r"300 steps .*: \d+ steps per second", output), output

    assert (tmp_path / "loss.png").read_bytes().startswith(b"\x89PNG")
    saved = np.load(tmp_path / "vectors.npz")
    assert saved["vectors"].shape == (len(saved["words"]), 16)
    assert np.all(np.isfinite(saved["vectors"]))


def test_without_a_cluster_it_says_how_to_start_one(tmp_path):
    result = commands.run(
        *("launch", "--workers", 1, "--ps", 0, SCRIPT, "--output", tmp_path),
        env=KERAS_2,
    )
    assert result.process.returncode == 1
    assert "tf-syncrep launch --workers 2 --ps 2" in result.output
