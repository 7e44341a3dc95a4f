"""The MovieLens example, run as a user runs it but on a small made data set."""

import dataclasses
import importlib
import json
import os
import pathlib
import re

import commands
import made_movielens
import movielens_files
import movielens_models
import movielens_tasks
import programs
import pytest
import tensorflow as tf

pytest.importorskip("matplotlib", reason="the example draws with matplotlib")
movielens = importlib.import_module("movielens")

SCRIPT = pathlib.Path(__file__).parents[2] / "examples" / "movielens.py"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Of so many users that one of them more or less in a score decides nothing."""
    return made_movielens.write(tmp_path_factory.mktemp("movielens"), users=120)


def options(model, folder, tmp_path, epochs):
    """Takes larger steps than the real data need, since there are fewer."""
    return [
        *("--model", model, "--data", folder, "--output", tmp_path),
        *("--epochs", epochs, "--batch-size", 64, "--learning-rate", 1e-2),
    ]


def assert_learned(output, model, training, runs=1):
    """Better than any score without a model, by a margin that chance does not give."""
    written = json.loads((output / "scores.json").read_text())
    assert (written["model"], written["training"]) == (model, training)
    assert len(written["seeds"]) == len(written["seconds"]) == runs
    name = {"neumf": "HR@10", "mf": "RMSE", "dcn": "AUC"}[model]
    for score, other in zip(
        written["scores"][name], written["baseline_scores"][name], strict=True
    ):
        if model == "mf":
            assert score < 0.9 * other, written
        else:
            assert score > other + 0.1, written
    assert (output / "scores.png").read_bytes().startswith(b"\x89PNG")
    return written


@pytest.mark.ci
@pytest.mark.one_version
@pytest.mark.parametrize(
    ("model", "epochs", "more"),
    [("neumf", 10, []), ("mf", 25, []), ("dcn", 10, []), ("mf", 25, ["--growing"])],
)
def test_one_process_learns_and_says_how_well(model, epochs, more, folder, tmp_path):
    result = programs.run_script(
        SCRIPT,
        *map(str, options(model, folder, tmp_path, epochs)),
        *("--runs", "2", *more),
        env=os.environ | {"TF_CPP_MIN_LOG_LEVEL": "2"},
        secs=200,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    output = tmp_path / f"{model}-one-process{'-growing' * bool(more)}"
    written = assert_learned(output, model, "one-process", runs=2)
    for name, (first, second) in written["scores"].items():
        shown = re.search(rf"  {name} (\S+) \+- (\S+)  \(", result.stdout)
        assert float(shown[1]) == pytest.approx((first + second) / 2, abs=1e-4)
        spread = abs(first - second) / 2**0.5
        assert float(shown[2]) == pytest.approx(spread, abs=1e-4)


@pytest.mark.one_version
def test_no_training_goes_on_from_weights_that_saw_what_it_is_tested_on(
    folder, tmp_path, monkeypatch
):
    used = []

    def note(directory, **_):
        used.append(str(directory))
        raise InterruptedError

    monkeypatch.setattr(movielens.tfs.keras, "Checkpoint", note)
    data = movielens_files.read(folder)
    cluster = movielens.Cluster(tf.distribute.get_strategy(), workers=1, quorum=0)
    for seed, left_out in ((0, "last"), (0, "any"), (1, "any"), (0, "last")):
        settings = dataclasses.replace(
            movielens_models.SETTINGS["neumf"], seed=seed, left_out=left_out
        )
        task = movielens_tasks.ranking(data, settings)
        with pytest.raises(InterruptedError):
            movielens.train(task, settings, cluster, 1, tmp_path)
    # The same training finds its own.
    assert used[0] == used[3]
    assert len(set(used)) == 3


@pytest.mark.docs
@pytest.mark.one_version
@pytest.mark.parametrize(
    ("training", "workers", "model", "epochs", "more"),
    [
        pytest.param("async", 2, "dcn", 10, [], marks=pytest.mark.slow),
        pytest.param("async", 2, "mf", 25, ["--growing"], marks=pytest.mark.slow),
        pytest.param("sync", 2, "neumf", 10, [], marks=pytest.mark.slow),
        ("backup", 3, "mf", 25, []),
    ],
)
def test_a_cluster_learns_it_too(
    training, workers, model, epochs, more, folder, tmp_path
):
    result = commands.run(
        *("launch", "--workers", workers, "--ps", 2, "--no-prefix", SCRIPT),
        *options(model, folder, tmp_path, epochs),
        *("--training", training, *more),
        env={"TF_CPP_MIN_LOG_LEVEL": "2"},
    )
    assert result.process.returncode == 0, result.output
    output = tmp_path / f"{model}-{training}{'-growing' * bool(more)}"
    assert_learned(output, model, training)
    # A training that has ended leaves no checkpoint from which to continue.
    assert not list(output.glob("checkpoints*"))
    gate = re.search(r"Gate: ([\d,]+) updates of ([\d,]+) gradients", result.output)
    if training == "async":
        assert gate is None
        return
    updates, gradients = (int(x.replace(",", "")) for x in gate.groups())
    assert updates == -(-gradients // 2) > 10
    logs = output / "logs"
    assert list(logs.glob("*/events.out.tfevents.*"))
    report = commands.run("report", logs)
    assert f"quorum 2 of {workers} workers" in report.output
