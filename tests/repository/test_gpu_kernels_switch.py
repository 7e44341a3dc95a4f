"""One switch, TF_SYNCREP_CUDA, decides whether pip and Bazel build GPU kernels."""

import os
import pathlib
import shutil
import subprocess
import sys

import native_builds
import pytest

# The facts about TensorFlow that cmake/tensorflow_probe.py asks for.
TENSORFLOW = """
import os, types

__version__ = "2.21.0"
sysconfig = types.SimpleNamespace(
    get_build_info=lambda: {"is_cuda_build": os.environ["IS_CUDA_BUILD"] == "yes"},
    get_compile_flags=lambda: [],
    get_include=lambda: os.path.dirname(__file__),
    get_lib=lambda: "/lib",
    get_link_flags=lambda: ["-l:libtensorflow_framework.so.2"],
)
"""


@pytest.fixture(scope="module")
def tree(tmp_path_factory) -> pathlib.Path:
    """configure.sh and its inputs, in a folder where it may write, and programs for it.

    The programs are a Python whose TensorFlow was built with CUDA or not, as
    IS_CUDA_BUILD says, a Bazel and, in a folder of its own, an nvcc; the last two do
    nothing.
    """
    folder = tmp_path_factory.mktemp("tree")
    shutil.copy(native_builds.ROOT / "configure.sh", folder)
    for name in ("cmake", "third_party"):
        shutil.copytree(native_builds.ROOT / name, folder / name)
    (folder / "tensorflow.py").write_text(TENSORFLOW)
    python = f'PYTHONPATH="{folder}" exec "{sys.executable}" -S "$@"'
    for name, script in {
        "bin/python": python,
        "bin/bazel": "echo bazel 4.2.3",
        "nvcc/nvcc": "exit 1",
    }.items():
        program = folder / name
        program.parent.mkdir(exist_ok=True)
        program.write_text(f"#!/bin/sh\n{script}\n")
        program.chmod(0o755)
    return folder


def _environment(tree, switch, is_cuda_build, **more):
    env = {
        name: value for name, value in os.environ.items() if name != "TF_SYNCREP_CUDA"
    }
    if switch:
        env["TF_SYNCREP_CUDA"] = switch
    return {**env, "IS_CUDA_BUILD": is_cuda_build, **more}


def _configure_cmake(tree, switch, is_cuda_build):
    """Runs CMake without an nvcc; returns its status and its output."""
    command = [native_builds.cmake(), "-S", native_builds.ROOT, "-B", tree / "build"]
    command.append(f"-DPython_EXECUTABLE={tree / 'bin/python'}")
    env = _environment(tree, switch, is_cuda_build, CUDACXX=str(tree / "none"))
    return _run(command, env)


def _configure_bazel(tree, switch, is_cuda_build, nvcc="none"):
    """Runs configure.sh with an nvcc of this name; returns its status and output."""
    env = _environment(
        tree,
        switch,
        is_cuda_build,
        CUDACXX=str(tree / nvcc),
        PATH=f"{tree / 'bin'}{os.pathsep}{os.environ['PATH']}",
        PYTHON=str(tree / "bin/python"),
    )
    return _run([tree / "configure.sh"], env)


def _run(command, env):
    result = subprocess.run(
        command,
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        timeout=120,
    )
    return result.returncode, " ".join(result.stdout.split())


@pytest.mark.parametrize("configure", [_configure_cmake, _configure_bazel])
@pytest.mark.parametrize(
    ("switch", "is_cuda_build", "reason"),
    [
        (None, "no", "this TensorFlow was built without CUDA"),
        ("AUTO", "no", "this TensorFlow was built without CUDA"),
        (None, "yes", "there is no nvcc"),
        ("OFF", "yes", "as TF_SYNCREP_CUDA=OFF asks"),
    ],
)
def test_no_gpu_kernels_are_built_and_the_reason_is_said(
    tree, configure, switch, is_cuda_build, reason
):
    status, output = configure(tree, switch, is_cuda_build)
    assert status == 0, output
    assert f"GPU kernels: no, {reason}" in output


@pytest.mark.parametrize("configure", [_configure_cmake, _configure_bazel])
@pytest.mark.parametrize(
    ("switch", "error"),
    [
        ("ON", "TF_SYNCREP_CUDA=ON asks for GPU kernels, and there is no nvcc"),
        ("on", "TF_SYNCREP_CUDA must be ON, OFF or AUTO. Received: 'on'"),
    ],
)
def test_wrong_switch_ends_the_build(tree, configure, switch, error):
    status, output = configure(tree, switch, "yes")
    assert status != 0
    assert error in output


@pytest.mark.parametrize(("switch", "is_cuda_build"), [(None, "yes"), ("ON", "no")])
def test_gpu_kernels_are_built_with_nvcc(tree, switch, is_cuda_build):
    status, output = _configure_bazel(tree, switch, is_cuda_build, "nvcc/nvcc")
    assert status == 0, output
    assert f"GPU kernels: {tree / 'nvcc/nvcc'} Now run" in output
    generated = (tree / ".bazelrc.generated").read_text()
    assert f"--repo_env=TF_SYNCREP_NVCC={tree / 'nvcc/nvcc'}\n" in generated
