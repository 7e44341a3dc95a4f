"""Builds programs of the C++ core by CMake, and runs them. No TensorFlow is needed."""

import fcntl
import functools
import os
import pathlib
import shutil
import subprocess
import sysconfig

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
_NO_GTEST = """\
GoogleTest is missing, so the C++ tests do not run. Install it, then run them again:
  apt-get install libgtest-dev    (Debian, Ubuntu)"""


def run(
    *command: str | pathlib.Path, status: int = 0, timeout_secs: float | None = None
) -> str:
    """Runs a command to its end; returns its output.

    The test fails, with the output, if the command ends with another status, or has not
    ended in time; then it is killed.
    """
    words = [str(word) for word in command]
    try:
        result = subprocess.run(
            words,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
            timeout=timeout_secs,
        )
    except subprocess.TimeoutExpired as error:
        said = (error.stdout or b"").decode(errors="replace")
        pytest.fail(
            f"{' '.join(words)}\ndid not end in {timeout_secs} s\n{said}", pytrace=False
        )
    if result.returncode != status:
        if "Could NOT find GTest" in result.stdout:
            pytest.skip(_NO_GTEST)
        pytest.fail(f"{' '.join(words)}\n{result.stdout}", pytrace=False)
    return result.stdout


def cmake() -> str:
    """This environment's CMake, or the one on PATH; without any, the test skips."""
    folders = [sysconfig.get_path("scripts"), os.environ["PATH"]]
    command = shutil.which("cmake", path=os.pathsep.join(folders))
    if command is None:
        pytest.skip("CMake is missing, so nothing is built: pip install cmake")
    return command


@functools.cache
def build(name: str, *options: str) -> pathlib.Path:
    """Builds `build/NAME`, which is kept, so that the next build is quick.

    The options are for CMake. It returns the folder with the programs of tests.
    """
    folder = ROOT / "build" / name
    folder.mkdir(parents=True, exist_ok=True)
    # Tests of several files, in processes of their own, may want it at once.
    with open(folder / ".lock", "w", encoding="ascii") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        run(cmake(), f"-S{ROOT}", f"-B{folder}", "-DTF_SYNCREP_PLUGIN=OFF", *options)
        run(cmake(), "--build", folder, "--parallel", str(os.cpu_count() or 1))
    return folder / "tests"


def simulator() -> pathlib.Path:
    """The folder with the programs of the simulator."""
    return build("simulator", "-DTF_SYNCREP_SIMULATOR=ON") / "simulator"
