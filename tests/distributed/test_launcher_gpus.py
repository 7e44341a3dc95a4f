"""`tf-syncrep launch`: which of the machine's GPUs each task sees."""

import os

import commands
import pytest

from tf_syncrep.python.distribute import gpus

SEEN = "import os; print('sees', os.environ.get('CUDA_VISIBLE_DEVICES'))"
ON_WORKERS = ("launch", "--run-script-on", "workers", "--ps", 0, "--workers")


@pytest.fixture
def nvidia_smi(tmp_path, monkeypatch):
    """Returns a function that puts a program on PATH, which lists these GPUs."""

    def put(*names, status=0):
        program = tmp_path / "bin" / "nvidia-smi"
        program.parent.mkdir(exist_ok=True)
        lines = "".join(f"echo {name}\n" for name in names)
        program.write_text(f"#!/bin/sh\n{lines}exit {status}\n")
        program.chmod(0o755)
        monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
        monkeypatch.delenv(gpus.VISIBLE_VARIABLE, raising=False)

    return put


def seen(script, *options):
    """What each task of a launch on workers sees, by its name."""
    result = commands.run(*ON_WORKERS, *options, script(SEEN))
    assert result.process.returncode == 0, result.output
    lines = [line.split(" | sees ") for line in result.stdout if " | sees " in line]
    return {name.split()[-1]: what for name, what in lines}


@pytest.mark.parametrize(
    ("visible", "found"),
    [
        ("0,1", ["0", "1"]),
        (" 3 , 5", ["3", "5"]),
        ("GPU-1f,MIG-2a/1/0", ["GPU-1f", "MIG-2a/1/0"]),
        # CUDA reads no further.
        ("0,-1,2", ["0"]),
        ("0,,2", ["0"]),
        ("", []),
        ("-1", []),
        ("NoDevFiles", []),
    ],
)
def test_the_variable_says_which_gpus_there_are(visible, found):
    assert gpus.of_machine({gpus.VISIBLE_VARIABLE: visible}) == found


def test_nvidia_smi_says_it_where_the_variable_does_not(nvidia_smi):
    nvidia_smi("GPU-aa", "GPU-bb")
    assert gpus.of_machine({}) == ["GPU-aa", "GPU-bb"]
    nvidia_smi("NVIDIA-SMI has failed", status=9)
    assert gpus.of_machine({}) == []


def test_each_worker_has_a_gpu_of_its_own(script, nvidia_smi):
    nvidia_smi("GPU-aa", "GPU-bb", "GPU-cc")
    assert seen(script, 2) == {"worker-0": "GPU-aa", "worker-1": "GPU-bb"}


def test_workers_share_where_there_are_fewer_gpus(script, monkeypatch):
    monkeypatch.setenv(gpus.VISIBLE_VARIABLE, "4,6")
    expected = {"worker-0": "4", "worker-1": "6", "worker-2": "4"}
    assert seen(script, 3) == expected


def test_workers_have_as_many_as_asked_for_and_the_chief_beside_them(
    script, monkeypatch
):
    monkeypatch.setenv(gpus.VISIBLE_VARIABLE, "0,1,2,3")
    expected = {"chief": "0,1", "worker-0": "2,3"}
    assert seen(script, 1, "--chief", "--gpus-per-worker", 2) == expected


def test_zero_hides_them(script, monkeypatch):
    monkeypatch.setenv(gpus.VISIBLE_VARIABLE, "0,1")
    assert seen(script, 1, "--gpus-per-worker", 0) == {"worker-0": ""}


@pytest.mark.ci
def test_coordinator_and_evaluator_see_none(script, monkeypatch):
    monkeypatch.setenv(gpus.VISIBLE_VARIABLE, "0,1")
    options = ("--workers", 1, "--ps", 0, "--evaluator")
    result = commands.run("launch", *options, script(SEEN))
    assert result.process.returncode == 0, result.output
    lines = sorted(line.split(" ", 1)[1] for line in result.stdout if "sees" in line)
    assert [line.split("|")[1] for line in lines] == [" sees ", " sees "]


def test_a_machine_without_gpus_is_left_alone(script, monkeypatch):
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.delenv(gpus.VISIBLE_VARIABLE, raising=False)
    assert seen(script, 1) == {"worker-0": "None"}


def test_more_than_there_are_is_an_error(script, monkeypatch):
    monkeypatch.setenv(gpus.VISIBLE_VARIABLE, "0,1,2")
    result = commands.run(*ON_WORKERS, 2, "--gpus-per-worker", 2, script(SEEN))
    assert result.process.returncode == 2
    assert (
        "--gpus-per-worker must be at most 1: this machine has 3 GPUs "
        "(by CUDA_VISIBLE_DEVICES or nvidia-smi) for 2 tasks. Received: 2"
    ) in result.output
