"""An op returns an error if it gets no memory for something as large as its gradient.

tests/cc/out_of_memory_test.cc makes each such allocation of cc/lib fail.
"""

import os
import pathlib
import subprocess
import sys

import programs
import pytest

PROGRAM = pathlib.Path(__file__).with_name("out_of_memory_program.py")
PROGRAM_OF_CHECKPOINTS = PROGRAM.with_name(f"checkpoint_{PROGRAM.name}")

pytestmark = pytest.mark.skipif(
    sys.platform != "linux", reason="RLIMIT_DATA bounds memory on Linux"
)


def test_no_memory_is_an_error_that_says_for_what_and_nothing_is_written(tmp_path):
    errors, is_unchanged, num_pushed = programs.run(PROGRAM, str(tmp_path))
    assert errors == {
        "adam_async": "There is no memory for the order of 10000000 indices, about "
        "160000000 bytes",
        "sparse": "There is no memory for the indices of a gradient, about "
        "80000000 bytes",
        "queue": "There is no thread for the leases of a work queue",
        "gate": "There is no thread for the leases of a gate",
        "checkpoint": "There is no thread to write the checkpoint",
    }
    assert is_unchanged
    assert num_pushed == 1


@pytest.mark.slow
def test_no_memory_for_a_copy_of_a_variable_is_an_error_of_the_checkpoint(tmp_path):
    ran = subprocess.run(
        [sys.executable, PROGRAM_OF_CHECKPOINTS, tmp_path],
        env=os.environ | programs.environment() | {"TF_ENABLE_ONEDNN_OPTS": "0"},
        capture_output=True,
        text=True,
    )
    assert ran.returncode == 0, ran.stderr
    errors, between, after, was_changed_under_its_reader = programs.result_in(
        ran.stdout
    )
    message = "There is no memory for saved, about 40000000 bytes"
    calls = ["begin", "restore whole", "restore table"]
    assert errors == dict.fromkeys(calls, message)
    assert (between, after) == (0, 1e7)
    assert not was_changed_under_its_reader
