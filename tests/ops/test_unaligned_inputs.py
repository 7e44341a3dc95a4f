"""Tensors whose memory begins at any address: of DLPack, of slices, of own buffers.

TensorFlow's own accessors of typed elements end the process if memory is not aligned to
64 bytes.
"""

import pathlib

import programs
import pytest

# DLPack of TensorFlow 2.15 has no bools.
pytestmark = pytest.mark.one_version

PROGRAM = pathlib.Path(__file__).with_name("unaligned_inputs_program.py")


@pytest.fixture(scope="module")
def aligned():
    return programs.run(PROGRAM, 0)


def test_every_input_of_every_op_is_tried(aligned):
    assert aligned["untried"] == [], (
        "call them in a scenario of unaligned_inputs_program"
    )


@pytest.mark.parametrize("offset", [pytest.param(8, marks=pytest.mark.slow), 1])
def test_unaligned_inputs_give_the_bits_of_aligned_ones(aligned, offset):
    assert programs.run(PROGRAM, offset)["results"] == aligned["results"]
