"""`tf-syncrep doctor`, when all is well, and with each problem that it knows."""

import json
import re
import socket
import subprocess
import sys

import clusters
import pytest
import tensorflow as tf
from package_copies import PackageCopy

import tf_syncrep as tfs
from tf_syncrep.python import doctor


@pytest.fixture
def copy(tmp_path) -> PackageCopy:
    return PackageCopy(tmp_path)


def _run(copy: PackageCopy) -> subprocess.CompletedProcess[str]:
    result = copy.run("-m", "tf_syncrep", "doctor")
    assert "Traceback" not in result.stderr
    return result


def _facts(output: str) -> dict[str, str]:
    """Returns the report's lines as values by label."""
    lines = (line.partition("  ") for line in map(str.strip, output.splitlines()))
    return {label: value.strip() for label, _, value in lines if value}


def test_names_versions_and_library_on_a_page(copy):
    result = _run(copy)
    assert result.returncode == 0, result.stdout + result.stderr
    assert result.stdout.endswith("All is well.\n")
    facts = _facts(result.stdout)
    assert facts["tf_syncrep"].startswith(f"{tfs.__version__} in {copy.package}")
    assert sys.executable in facts["Python"]
    assert facts["TensorFlow"].startswith(f"{tf.__version__} (")
    assert "-D_GLIBCXX_USE_CXX11_ABI=1" in facts["ABI flags"]
    assert re.match(r"(keras|keras-nightly|tf_keras) \d+\.\d+", facts["tf.keras"])
    assert facts["Op library"] == str(copy.library)
    assert facts["built for"].startswith(f"TensorFlow {tf.__version__}, by ")
    assert facts["loads"] == "yes"
    assert "ops" not in facts
    assert facts["CPU level"] in ("avx512", "avx2", "baseline")
    assert {
        "NumPy",
        "tf_keras",
        "CUDA kernels",
        "GPU driver",
        "GPUs",
        "C++ compiler",
        "CMake",
    } <= set(facts)


def test_absent_tensorflow_is_named_with_the_remedy(copy):
    copy.set_built_for("2.20.0")
    copy.hide_module("tensorflow")
    result = _run(copy)
    assert result.returncode == 1
    assert result.stdout.endswith(
        "\n1 problem:\n"
        "1. TensorFlow cannot be imported: ModuleNotFoundError: No module named "
        f"'tensorflow'\n     {sys.executable} -m pip install 'tensorflow==2.20.*'"
        "    (or tensorflow-cpu)\n"
    )


def test_other_tensorflow_is_named_with_the_remedy(copy):
    copy.set_built_for("2.14.1")
    result = copy.run_in_a_fork(
        "import runpy; sys.argv = ['tf-syncrep', 'doctor']; "
        "runpy.run_module('tf_syncrep', run_name='__main__')"
    )
    assert "Traceback" not in result.stderr
    assert result.returncode == 1
    assert _facts(result.stdout)["loads"] == "no"
    assert (
        "1 problem:\n1. tf_syncrep was built for TensorFlow 2.14.1, and TensorFlow "
        f"{tf.__version__} is running;"
    ) in result.stdout
    assert f"\n     {sys.executable} -m pip install " in result.stdout


def test_nothing_but_python_is_two_problems(copy):
    copy.set_distribution(tfs.__version__, "")
    copy.library.unlink()
    copy.build_info.unlink()
    copy.hide_module("tensorflow")
    result = _run(copy)
    assert result.returncode == 1
    assert "\n2 problems:\n1. TensorFlow cannot be imported" in result.stdout
    assert _facts(result.stdout)["Op library"] == f"none at {copy.library}"
    _, remedy = result.stdout.split("\n2. tf_syncrep has no op library: ")
    assert f"\n     {sys.executable} -m pip install " in remedy


def test_unsupported_tensorflow_is_a_problem(monkeypatch):
    monkeypatch.setattr(tf, "__version__", "2.14.1")
    monkeypatch.setattr(doctor.op_library, "load", lambda: tf)
    (problem,) = doctor.examine().problems
    assert problem.startswith(
        "TensorFlow 2.14.1 is not supported; 2.15 to 2.22 are. Install one, and "
        "tf_syncrep for it:\n"
    )


def test_two_tensorflows_of_different_versions_are_a_problem(monkeypatch):
    versions = {"tensorflow": "2.20.0", "tensorflow-cpu": "2.21.0"}
    monkeypatch.setattr(doctor, "_distribution_version", versions.get)
    (problem,) = doctor.examine().problems
    assert problem.startswith(
        "tensorflow 2.20.0, tensorflow-cpu 2.21.0 are installed together and own the "
        "same files. Keep one:\n"
    )


@pytest.mark.parametrize(
    ("kernels", "driver", "is_problem"),
    [
        ("13.0", "12.8", True),
        ("12.9", "12.2", False),
        ("12.9", "13.0", False),
        ("13.0", None, False),
        (None, "12.8", False),
    ],
)
def test_a_driver_too_old_for_the_gpu_kernels_is_a_problem(
    kernels, driver, is_problem, monkeypatch
):
    monkeypatch.setattr(doctor.op_library.build_info(), "CUDA_VERSION", kernels)
    monkeypatch.setattr(doctor, "gpu_driver_version", lambda: driver)
    report = doctor.examine()
    assert ("GPU driver", f"of CUDA {driver}" if driver else "none") in report.facts
    assert bool(report.problems) == is_problem
    for problem in report.problems:
        assert problem.startswith(
            f"The GPU kernels were built with CUDA {kernels}, and the GPU driver, of "
            f"CUDA {driver}, runs none of a later major version. Update the driver, or "
            "build them with an nvcc of CUDA 12:\n  CUDACXX=/path/to/nvcc "
        )


@pytest.mark.slow
def test_absent_legacy_keras_is_named_with_the_remedy(copy, monkeypatch):
    monkeypatch.setenv("TF_USE_LEGACY_KERAS", "1")
    copy.hide_module("tf_keras")
    result = _run(copy)
    assert result.returncode == 1
    assert "\n1. tf.keras cannot be imported (TF_USE_LEGACY_KERAS=1): " in result.stdout
    assert "\n     unset TF_USE_LEGACY_KERAS " in result.stdout


@pytest.mark.parametrize(
    ("flags", "level"),
    [
        ("sse4_2", "baseline"),
        ("sse4_2 avx2 avx512f", "avx2"),
        ("sse4_2 avx2 avx512f avx512bw avx512dq avx512vl", "avx512"),
    ],
)
def test_cpu_level_is_that_of_the_kernels(flags, level):
    assert doctor.cpu_level(set(flags.split())) == level


def _examined(monkeypatch, tf_config) -> doctor.Report:
    monkeypatch.setenv("TF_CONFIG", tf_config)
    report = doctor.Report()
    doctor._examine_tf_config(report)
    return report


def test_no_tf_config_is_no_problem(monkeypatch):
    report = _examined(monkeypatch, " ")
    assert (report.facts, report.problems) == ([("TF_CONFIG", "not set")], [])


def test_bad_tf_config_is_one_problem(monkeypatch):
    report = _examined(monkeypatch, '{"cluster": {"ps": ["here"]}}')
    assert report.facts == [("TF_CONFIG", "wrong")]
    assert report.problems == [
        "TF_CONFIG['cluster']['ps'][0] must be 'host:port', with an IPv6 address in "
        "brackets, and a port between 1 and 65535. Received: 'here'"
    ]


def test_who_answers_and_whose_host_is_not_known(monkeypatch):
    with clusters.Cluster(num_workers=1, num_ps=1) as cluster, socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        silent = f"127.0.0.1:{bound.getsockname()[1]}"
        config = json.loads(cluster.tf_config("worker-0"))
        config["cluster"]["worker"] += [silent]
        # These names are reserved, and belong to nobody (RFC 6761).
        unknown = [f"task{i}.invalid:2222" for i in range(5)]
        config["cluster"]["evaluator"] = unknown
        report = _examined(monkeypatch, json.dumps(config))
    facts = dict(report.facts)
    assert facts["TF_CONFIG"] == "worker 0"
    assert facts["  ps"] == "1 of 1 answer"
    assert facts["  worker"] == f"1 of 2 answer; not {silent}"
    assert facts["  evaluator"] == (
        f"0 of 5 answer; not {', '.join(unknown[:3])} and 2 more"
    )
    assert len(report.problems) == 3
    for index, problem in enumerate(report.problems):
        assert re.fullmatch(
            rf"TF_CONFIG\['cluster'\]\['evaluator'\]\[{index}\] must have a host that "
            rf"is known here\. Received: 'task{index}\.invalid:2222' \(.+\)"
            + (" and 2 more" if index == 2 else ""),
            problem,
        )
