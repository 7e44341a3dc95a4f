"""A build asks a Python about its TensorFlow, and explains if there is none."""

import os
import pathlib
import subprocess
import sys

import pytest
import tensorflow as tf

PROBE = pathlib.Path(__file__).resolve().parents[1] / "cmake" / "tensorflow_probe.py"


def _probe(path):
    """Runs the probe, which can import from `path` and the standard library only."""
    command = [sys.executable, "-S", str(PROBE)]
    env = {**os.environ, "PYTHONPATH": path}
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=120)


def test_prints_version_flags_and_paths_of_tensorflow():
    result = _probe(os.pathsep.join(filter(None, sys.path)))
    assert result.returncode == 0, result.stderr
    facts = dict(line.split("=", 1) for line in result.stdout.splitlines())
    assert facts["VERSION"] == tf.__version__
    assert facts["INCLUDE_DIR"] == tf.sysconfig.get_include()
    assert os.path.samefile(os.path.dirname(facts["LIBRARY"]), tf.sysconfig.get_lib())
    assert os.path.isfile(facts["LIBRARY"])
    assert "-D_GLIBCXX_USE_CXX11_ABI=" in facts["COMPILE_FLAGS"]
    assert "-I" not in facts["COMPILE_FLAGS"]
    has_cuda = tf.sysconfig.get_build_info()["is_cuda_build"]
    assert facts["CUDA"] == ("ON" if has_cuda else "OFF")


def test_absent_tensorflow_is_status_1_and_names_the_remedies(tmp_path):
    result = _probe(str(tmp_path))
    assert (result.returncode, result.stdout) == (1, "")
    assert f"{sys.executable}: ModuleNotFoundError: No module named" in result.stderr
    assert f"\n  {sys.executable} -m pip install tensorflow " in result.stderr
    assert "\n  uv pip install --no-build-isolation ." in result.stderr


@pytest.mark.parametrize("version", ["2.14.1", "2.23.0", "3.0.0-rc1"])
def test_unsupported_tensorflow_is_status_2_and_names_the_supported(tmp_path, version):
    (tmp_path / "tensorflow.py").write_text(f"__version__ = {version!r}\n")
    result = _probe(str(tmp_path))
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr.startswith(
        f"tf_syncrep supports TensorFlow 2.15 to 2.22; {sys.executable} has TensorFlow "
        f"{version}.\n"
    )
    assert f"\n  {sys.executable} -m pip install 'tensorflow==2.22.*'" in result.stderr
