"""Builds the simulator of the protocol, and runs it and defects that it must find.

It needs CMake and a C++ compiler, and no TensorFlow. See docs/simulator.md.
"""

import os
import pathlib
import re
import shutil
import subprocess
import sysconfig

import pytest
from simulator_mutants import MUTANTS, Mutant

# The build counts as part of the first test.
pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD = ROOT / "build" / "simulator"
# A minute's worth on a slow core, with room for a machine that is busy.
SEEDS = 10_000


def _run(*command: str | pathlib.Path, status: int = 0) -> str:
    result = subprocess.run(
        [str(word) for word in command],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    if result.returncode != status:
        pytest.fail(
            f"{' '.join(map(str, command))}\n{result.stdout}",
            pytrace=False,
        )
    return result.stdout


@pytest.fixture(scope="session")
def programs() -> pathlib.Path:
    """The folder with the programs; kept, so that the next run is quick."""
    scripts = sysconfig.get_path("scripts")
    cmake = shutil.which("cmake", path=os.pathsep.join([scripts, os.environ["PATH"]]))
    if cmake is None:
        pytest.skip(
            "CMake is missing, so the simulator does not run: pip install cmake"
        )
    _run(
        cmake,
        f"-S{ROOT}",
        f"-B{BUILD}",
        "-DTF_SYNCREP_PLUGIN=OFF",
        "-DTF_SYNCREP_SIMULATOR=ON",
    )
    _run(cmake, "--build", BUILD, "--parallel", str(os.cpu_count() or 1))
    return BUILD / "tests" / "simulator"


def test_no_schedule_fails(programs: pathlib.Path):
    output = _run(programs / "simulate", f"--seeds=0:{SEEDS}")
    assert f"{SEEDS} schedules" in output


def test_a_seed_replays_bit_for_bit(programs: pathlib.Path):
    first, second = (
        _run(programs / "simulate", "--seeds=0:300", "--digest") for _ in range(2)
    )
    digest = r"digest \w{16}"
    assert re.findall(digest, first) == re.findall(digest, second) != []


def _build(
    mutant: Mutant, programs: pathlib.Path, folder: pathlib.Path
) -> pathlib.Path:
    """Links the simulator with one file of cc/lib exchanged."""
    source = folder / pathlib.Path(mutant.file).name
    source.write_text(mutant.apply(ROOT))
    program = folder / "simulate"
    _run(
        os.environ.get("CXX", "c++"),
        "-std=c++17",
        "-O1",
        f"-I{ROOT}",
        source,
        ROOT / "tests" / "simulator" / "simulate_main.cc",
        programs / "libtf_syncrep_simulator.a",
        "-pthread",
        "-o",
        program,
    )
    return program


def _found(program: pathlib.Path, mutant: Mutant) -> str:
    """Returns what is said of the first schedule that shrinks to few enough events."""
    seed = 0
    while seed < SEEDS:
        output = _run(program, f"--seeds={seed}:{SEEDS - seed}", status=1)
        found = re.search(
            r"seed (\d+) fails.*?shrunk to (\d+) events", output, re.DOTALL
        )
        assert found is not None, output
        if int(found[2]) <= mutant.most_events:
            return output
        seed = int(found[1]) + 1
    pytest.fail(
        f"No schedule with {mutant.name} shrinks to {mutant.most_events} events"
    )


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_defect_is_found_and_shrunk(
    mutant: Mutant, programs: pathlib.Path, tmp_path: pathlib.Path
):
    program = _build(mutant, programs, tmp_path)
    output = _found(program, mutant)
    # And what is printed fails when it is read again.
    schedule = output.split("==== the schedule\n")[1].split("==== told")[0]
    (tmp_path / "schedule").write_text(schedule)
    _run(program, f"--schedule={tmp_path / 'schedule'}", status=1)
    _run(programs / "simulate", f"--schedule={tmp_path / 'schedule'}")
