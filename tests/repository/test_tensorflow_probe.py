"""A build asks a Python about its TensorFlow, and explains if there is none."""

import os
import pathlib
import subprocess
import sys

import pytest
import tensorflow as tf

PROBE = pathlib.Path(__file__).resolve().parents[2] / "cmake" / "tensorflow_probe.py"
LOGGED = b"I0000 a line of TensorFlow's log\n"


def _probe(path):
    """Runs the probe, which can import from `path` and the standard library only."""
    command = [sys.executable, "-S", str(PROBE)]
    env = {**os.environ, "PYTHONPATH": path}
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=120)


def _write_tensorflow(folder, source):
    """Writes a TensorFlow that first logs a line, as its C++ does."""
    logs = f"import os; os.write(2, {LOGGED!r})\n"
    (folder / "tensorflow.py").write_text(logs + source)


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
    assert result.stderr == ""


def test_absent_tensorflow_is_status_1_and_names_the_remedies(tmp_path):
    result = _probe(str(tmp_path))
    assert (result.returncode, result.stdout) == (1, "")
    assert f"{sys.executable}: ModuleNotFoundError: No module named" in result.stderr
    assert f"\n  {sys.executable} -m pip install tensorflow " in result.stderr
    assert "\n  uv pip install --no-build-isolation ." in result.stderr


@pytest.mark.parametrize("version", ["2.14.1", "2.23.0", "3.0.0-rc1"])
def test_unsupported_tensorflow_is_status_2_and_names_the_supported(tmp_path, version):
    _write_tensorflow(tmp_path, f"__version__ = {version!r}")
    result = _probe(str(tmp_path))
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr.startswith(
        f"tf_syncrep supports TensorFlow 2.15 to 2.22; {sys.executable} has TensorFlow "
        f"{version}.\n"
    )
    assert f"\n  {sys.executable} -m pip install 'tensorflow==2.22.*'" in result.stderr


def test_what_a_tensorflow_that_fails_has_logged_is_shown(tmp_path):
    _write_tensorflow(tmp_path, "raise AttributeError('_ARRAY_API not found')")
    result = _probe(str(tmp_path))
    assert (result.returncode, result.stdout) == (1, "")
    assert "AttributeError: _ARRAY_API not found" in result.stderr
    assert LOGGED.decode() in result.stderr


def test_what_a_tensorflow_that_ends_the_process_has_logged_is_shown(tmp_path):
    _write_tensorflow(tmp_path, "os.abort()")
    result = _probe(str(tmp_path))
    assert result.returncode not in (0, 1, 2)
    assert result.stderr == LOGGED.decode()
