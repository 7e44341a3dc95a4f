"""How well models learn MovieLens-100K, by way of training: scores, not speed.

`examples/movielens.py` trains each model with several seeds: in one process, and on
clusters of 2 parameter servers, asynchronously and synchronously with 2 workers, and
synchronously with 3 workers of whose gradients 2 make an update. In one process and
asynchronously it also trains tables that grow with the ids that come. All see the same
examples equally often; the gradients of a synchronous update together have the
examples of one batch of one process. Results of NeuMF by PyTorch and by TFRA's tables
are kept beside them.

Scores are those of the weights after the last epoch. Seconds are those of training
alone, without the start of processes and without tests; all processes share the cores
of one machine. Beside them is a prediction that needs no model, such as the most
popular films.
"""

from __future__ import annotations

import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from typing import Any

import commands
import made_movielens
from harness.benchmark import Axis, Benchmark, Measurement, Point, Verdict

_ROOT = pathlib.Path(__file__).parents[1]
_SCRIPT = _ROOT / "examples" / "movielens.py"
# The example keeps the data that it has fetched in this folder.
_OUTPUT = _ROOT / "build" / "movielens"

NEUMF_LAST = "NeuMF, each user's last film"
NEUMF_ANY = "NeuMF, any film of each user"
MF = "matrix factorisation with biases"
DCN = "DCN V2, all features"
# The example's name of each model, and more options.
_MODELS = {
    NEUMF_ANY: ["neumf", "--left-out", "any"],
    MF: ["mf"],
    NEUMF_LAST: ["neumf", "--left-out", "last"],
    DCN: ["dcn"],
}
ONE_PROCESS = "one process"
ASYNC = "asynchronous, 2 workers"
SYNC = "synchronous, 2 workers"
BACKUP = "synchronous, 2 of 3 workers"
GROWING = "growing tables, one process"
GROWING_ASYNC = "growing tables, asynchronous, 2 workers"
# The example's name of each way of training, how many workers, and if tables grow.
WAYS = {
    ONE_PROCESS: ("one-process", 0, False),
    ASYNC: ("async", 2, False),
    SYNC: ("sync", 2, False),
    BACKUP: ("backup", 3, False),
    GROWING: ("one-process", 0, True),
    GROWING_ASYNC: ("async", 2, True),
}
_SEEDS = 5


def measure(point: Point, rounds: int) -> Sequence[Measurement]:
    """Trains in each way, with each of the seeds."""
    is_full = rounds > 5
    model, *more = _MODELS[point["model"]]
    options = ["--model", model, *more, "--runs", str(_SEEDS if is_full else 2)]
    with tempfile.TemporaryDirectory() as folder:
        if not is_full:
            made = made_movielens.write(pathlib.Path(folder) / "data")
            options += ["--data", str(made), "--epochs", "2", "--batch-size", "64"]
        output = _OUTPUT if is_full else pathlib.Path(folder)
        options += ["--output", str(output), "--test-every", "1000"]
        measurements = []
        for name, (training, workers, grows) in WAYS.items():
            command = [str(_SCRIPT), *options, "--training", training]
            command += ["--growing"] * grows
            if workers:
                launch = f"launch --no-prefix --workers {workers} --ps 2"
                command = [commands.CONSOLE_SCRIPT, *launch.split(), *command]
            else:
                command = [sys.executable, *command]
            way = f"{model}-{training}{'-growing' * grows}"
            found = _run(command, output / way / "scores.json")
            measurements.append(_measurement(name, point, found))
    baseline = found["baseline_scores"]
    first = next(iter(baseline.values()))
    measurements.append(
        Measurement(
            found["baseline"],
            point,
            "score",
            first,
            counts={"epochs": 0},
            scores=baseline,
        )
    )
    return measurements


def _run(command: list[str], path: pathlib.Path) -> dict[str, Any]:
    """Runs the example; returns the scores that it has written to a file."""
    path.unlink(missing_ok=True)
    result = subprocess.run(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        cwd=_ROOT,
        env=os.environ,
    )
    if result.returncode:
        raise RuntimeError(f"{' '.join(command)} failed:\n{result.stdout[-3000:]}")
    return json.loads(path.read_text())


def _measurement(name: str, point: Point, found: dict[str, Any]) -> Measurement:
    scores = found["scores"]
    return Measurement(
        name,
        point,
        "score",
        next(iter(scores.values())),
        counts={"epochs": found["epochs"]},
        scores={**scores, "seconds": found["seconds"]},
    )


def judge(measurements: Sequence[Measurement]) -> Sequence[Verdict]:
    """Compares the means with published ones, and with those of one process."""
    means: dict[str, dict[str, float]] = {}
    spreads: dict[str, float] = {}
    for m in measurements:
        model = m.point["model"]
        if m.contender in WAYS:
            means.setdefault(model, {})[m.contender] = statistics.fmean(m.samples)
        if m.contender == ONE_PROCESS:
            spreads[model] = statistics.stdev(m.samples)
    verdicts = []
    for model in (NEUMF_LAST, NEUMF_ANY):
        if set(means.get(model, ())) == set(WAYS):
            value = min(means[model].values())
            claim = f"HR@10 at least 0.75 in every way ({model})"
            verdicts.append(Verdict(claim, value, value >= 0.75))
    if set(means.get(MF, ())) == set(WAYS):
        value = max(means[MF].values())
        claim = f"RMSE at most 0.92 in every way ({MF})"
        verdicts.append(Verdict(claim, value, value <= 0.92))
    for model, of_model in means.items():
        for way in (name for name in of_model if name != ONE_PROCESS):
            value = abs(of_model[way] - of_model[ONE_PROCESS]) / spreads[model]
            claim = f"{way} within 1 standard deviation of one process ({model})"
            verdicts.append(Verdict(claim, value, value <= 1))
    return verdicts


BENCHMARK = Benchmark(
    title="Scores on MovieLens-100K, by way of training",
    axes={"model": Axis(list(_MODELS), quick=[MF])},
    measure=measure,
    judge=judge,
)
