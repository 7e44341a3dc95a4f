"""Handles of other shapes, of other resources and of variables of other dtypes.

Shape functions refuse some of them, unless shapes are unknown: so a worker with a
broken graph can send them to a parameter server, which must not end.
"""

import pathlib

import programs
import pytest

# DLPack of TensorFlow 2.15 has no bools.
pytestmark = pytest.mark.one_version

PROGRAM = pathlib.Path(__file__).with_name("bad_handles_program.py")


def test_every_op_refuses_handles_that_are_not_its_own():
    result = programs.run(PROGRAM)
    assert {"syncrep_table_maintain: slots", "syncrep_table_find: index"} <= set(
        result["tried"]
    )
    assert result["accepted"] == []
