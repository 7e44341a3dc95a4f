"""Builds and runs the simulator of the protocol, and defects that it must find.

It needs CMake and a C++ compiler, and no TensorFlow. See docs/simulator.md.
"""

import os
import pathlib
import re

import pytest
from native_builds import ROOT, run, simulator
from simulator_mutants import MUTANTS, Mutant

# The build counts as part of the first test.
pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]

# This is enough for a minute on a slow core, with room for a busy machine.
SEEDS = 10_000


def test_no_schedule_fails():
    output = run(simulator() / "simulate", f"--seeds=0:{SEEDS}")
    assert f"{SEEDS} schedules" in output


def test_a_seed_replays_bit_for_bit():
    first, second = (
        run(simulator() / "simulate", "--seeds=0:300", "--digest") for _ in range(2)
    )
    digest = r"digest \w{16}"
    assert re.findall(digest, first) == re.findall(digest, second) != []


def _build(mutant: Mutant, folder: pathlib.Path) -> pathlib.Path:
    """Links the simulator with one file of cc/lib replaced."""
    source = folder / pathlib.Path(mutant.file).name
    source.write_text(mutant.apply(ROOT))
    program = folder / "simulate"
    run(
        os.environ.get("CXX", "c++"),
        "-std=c++17",
        "-O1",
        f"-I{ROOT}",
        source,
        ROOT / "tests" / "simulator" / "simulate_main.cc",
        simulator() / "libtf_syncrep_simulator.a",
        "-pthread",
        "-o",
        program,
    )
    return program


def _found(program: pathlib.Path, mutant: Mutant) -> str:
    """Returns the report on the first schedule that shrinks to few enough events."""
    seed = 0
    while seed < SEEDS:
        output = run(program, f"--seeds={seed}:{SEEDS - seed}", status=1)
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


def test_each_defect_has_its_place_in_the_code():
    assert all(mutant.apply(ROOT) for mutant in MUTANTS)


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_defect_is_found_and_shrunk(mutant: Mutant, tmp_path: pathlib.Path):
    program = _build(mutant, tmp_path)
    output = _found(program, mutant)
    # The printed schedule fails when it is read again.
    schedule = output.split("==== the schedule\n")[1].split("==== told")[0]
    (tmp_path / "schedule").write_text(schedule)
    run(program, f"--schedule={tmp_path / 'schedule'}", status=1)
    run(simulator() / "simulate", f"--schedule={tmp_path / 'schedule'}")
