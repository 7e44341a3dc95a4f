"""An op that gets no memory for what is as large as its gradient is an error.

Each such allocation of cc/lib is made to fail in tests/cc/out_of_memory_test.cc.
"""

import pathlib
import sys

import programs
import pytest

PROGRAM = pathlib.Path(__file__).with_name("out_of_memory_program.py")


@pytest.mark.skipif(
    sys.platform != "linux", reason="RLIMIT_DATA bounds memory on Linux"
)
def test_no_memory_is_an_error_that_says_for_what_and_nothing_is_written():
    errors, is_unchanged, num_pushed = programs.run(PROGRAM)
    assert errors == {
        "adam_async": "There is no memory for the order of 10000000 indices, about "
        "160000000 bytes",
        "sparse": "There is no memory for the indices of a gradient, about "
        "80000000 bytes",
        "queue": "There is no thread for the leases of a work queue",
        "gate": "There is no thread for the leases of a gate",
    }
    assert is_unchanged
    assert num_pushed == 1
