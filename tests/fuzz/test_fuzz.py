"""Replays what the fuzzers have found worth keeping, under sanitizers.

It needs CMake and a C++ compiler, and no fuzzer. See docs/simulator.md.
"""

import os
import pathlib
import shutil
import subprocess
import sysconfig

import pytest

# The build counts as part of the first test.
pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD = ROOT / "build" / "fuzz_replay"
CORPUS = pathlib.Path(__file__).parent / "corpus"


def _run(*command: str | pathlib.Path) -> str:
    result = subprocess.run(
        [str(word) for word in command],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    if result.returncode != 0:
        pytest.fail(f"{' '.join(map(str, command))}\n{result.stdout}", pytrace=False)
    return result.stdout


@pytest.fixture(scope="module")
def programs() -> pathlib.Path:
    """The folder with the programs; kept, so that the next run is quick."""
    scripts = sysconfig.get_path("scripts")
    cmake = shutil.which("cmake", path=os.pathsep.join([scripts, os.environ["PATH"]]))
    if cmake is None:
        pytest.skip("CMake is missing, so nothing is replayed: pip install cmake")
    _run(
        cmake,
        f"-S{ROOT}",
        f"-B{BUILD}",
        "-DTF_SYNCREP_PLUGIN=OFF",
        "-DTF_SYNCREP_FUZZ_REPLAY=ON",
        "-DTF_SYNCREP_SANITIZER=address,undefined",
    )
    _run(cmake, "--build", BUILD, "--parallel", str(os.cpu_count() or 1))
    return BUILD / "tests" / "fuzz"


@pytest.mark.parametrize("topic", ["gate", "accumulator"])
def test_corpus_has_no_errors(topic: str, programs: pathlib.Path):
    output = _run(programs / f"replay_{topic}", CORPUS / f"{topic}.corpus")
    assert "inputs" in output
