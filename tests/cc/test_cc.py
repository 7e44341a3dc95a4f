"""Builds the C++ tests of tf_syncrep/cc/lib and runs each program as one test.

They need CMake, a C++ compiler and GoogleTest, and no TensorFlow. Where one of these
is missing they are skipped, and the reason names what to install.
TF_SYNCREP_SANITIZER=thread (or address, undefined) builds them with that sanitizer.
"""

import os
import pathlib
import shutil
import subprocess
import sysconfig

import pytest

pytestmark = pytest.mark.slow

ROOT = pathlib.Path(__file__).resolve().parents[2]
PROGRAMS = sorted(path.stem for path in (ROOT / "tests" / "cc").glob("*_test.cc"))
SANITIZER = os.environ.get("TF_SYNCREP_SANITIZER", "")
NO_GTEST = """\
GoogleTest is missing, so the C++ tests do not run. Install it, then run them again:
  apt-get install libgtest-dev    (Debian, Ubuntu)"""


def _find_cmake() -> str:
    """Returns the path of CMake: that of this environment, else the one on PATH."""
    folders = [sysconfig.get_path("scripts"), os.environ["PATH"]]
    cmake = shutil.which("cmake", path=os.pathsep.join(folders))
    if cmake is None:
        pytest.skip("CMake is missing, so the C++ tests do not run: pip install cmake")
    return cmake


def _run(*command: str) -> str:
    result = subprocess.run(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    if result.returncode == 0:
        return result.stdout
    if "Could NOT find GTest" in result.stdout:
        pytest.skip(NO_GTEST)
    pytest.fail(f"{' '.join(command)}\n{result.stdout}", pytrace=False)


@pytest.fixture(scope="session")
def programs_dir() -> pathlib.Path:
    """The folder with the test programs; kept, so that the next run is quick."""
    cmake = _find_cmake()
    build = ROOT / "build" / f"cc_tests{'_' if SANITIZER else ''}{SANITIZER}"
    _run(
        cmake,
        f"-S{ROOT}",
        f"-B{build}",
        "-DTF_SYNCREP_PLUGIN=OFF",
        "-DTF_SYNCREP_CC_TESTS=ON",
        f"-DTF_SYNCREP_SANITIZER={SANITIZER}",
    )
    _run(cmake, "--build", str(build), "--parallel", str(os.cpu_count() or 1))
    return build / "tests" / "cc"


@pytest.mark.parametrize("program", PROGRAMS)
def test_program_passes(program: str, programs_dir: pathlib.Path):
    print(_run(str(programs_dir / program), "--gtest_brief=1"))


def test_there_are_programs_to_run():
    assert PROGRAMS, f"no *_test.cc beside {__file__}"
