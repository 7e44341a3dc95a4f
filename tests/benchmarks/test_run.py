"""Each benchmark runs with tiny sizes, so that none can rot."""

import importlib
import json
import pathlib
import subprocess
import sys

import pytest

pytestmark = pytest.mark.one_version

pytest.importorskip("rich", reason="the tables are drawn by rich")

BENCHMARKS = pathlib.Path(__file__).parents[2] / "benchmarks"

with pytest.MonkeyPatch.context() as patch:
    patch.syspath_prepend(BENCHMARKS)
    NAMES = importlib.import_module("run").BENCHMARKS

# Targets of latencies are for more workers than a quick run has, and those of sparse
# accumulators need more pushes.
WITHOUT_QUICK_VERDICTS = ("accumulator_sparse", "sync_latency")
# Clusters move hardly any bytes.
WITHOUT_BYTES = (
    "dynamic_table",  # that of keys is in some of its lines
    "sync_cluster",
    "sync_backup",
    "keras_cluster",
    "sync_latency",
    "embedding_cluster",
    "fit_cluster",
    "tls_cluster",
    "wire",
    "checkpoint",
    "publish",
)
# One of them shows that the machinery works. The last eight are clusters of the same
# parts as those of other benchmarks.
MARKS = dict.fromkeys(NAMES, pytest.mark.slow) | {
    "dense_apply": pytest.mark.ci,
    "embedding_cluster": pytest.mark.soak,
    "fit_cluster": pytest.mark.soak,
    "sync_backup": pytest.mark.soak,
    "sync_latency": pytest.mark.soak,
    "sync_staleness": pytest.mark.soak,
    "tls_cluster": pytest.mark.soak,
    "publish": pytest.mark.soak,
    "movielens_scores": pytest.mark.soak,
}


def run(*args, env=None):
    return subprocess.run(
        [sys.executable, BENCHMARKS / "run.py", *map(str, args)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=560,
        env=env,
    )


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=MARKS[name]) for name in NAMES]
)
def test_benchmark_measures_every_contender_and_writes_results(name, tmp_path):
    result = run(name, "--quick", "--output", tmp_path)
    assert result.returncode == 0, result.stdout

    written = json.loads((tmp_path / f"{name}.json").read_text())
    assert written["verdicts"] or name in WITHOUT_QUICK_VERDICTS
    measured = {m["contender"] for m in written["measurements"]}
    assert len(measured) > 1
    for measurement in written["measurements"]:
        assert measurement["samples"]
        assert measurement["contender"][:10] in result.stdout
        if measurement["unit"] == "s":
            assert measurement["median"] > 0
            if name not in WITHOUT_BYTES:
                assert measurement["copy_bandwidth"] > 0


def test_every_benchmark_can_be_run():
    scripts = {path.stem for path in BENCHMARKS.glob("*.py")}
    assert scripts - {"run", "report", "gpu"} == set(NAMES)  # make gpu-bench


def test_an_unknown_name_is_refused():
    result = run("dense")
    assert result.returncode == 2
    assert "there is no benchmark 'dense'" in result.stdout


@pytest.mark.ci
def test_a_wrong_contender_ends_the_run(tmp_path):
    wrong = tmp_path / "sitecustomize.py"
    # The twin is compared with steps of another length than the contenders'.
    wrong.write_text(
        "import sys\n"
        f"sys.path.append({str(BENCHMARKS.parent / 'tests' / 'twins')!r})\n"
        "import adam_async_reference\n"
        "right = adam_async_reference._step_size\n"
        "adam_async_reference._step_size = lambda *a: 1.01 * right(*a)\n"
    )
    env = {"PYTHONPATH": str(tmp_path), "PATH": "/usr/bin:/bin"}
    result = run("dense_apply", "--quick", env=env)
    assert result.returncode == 1, result.stdout
    assert "AssertionError" in result.stdout
    assert "failed: dense_apply" in result.stdout
