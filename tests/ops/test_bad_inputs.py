"""Handles that are others', and scalars that are not: refused, and nothing is changed.

Shape functions refuse some of them, unless shapes are unknown: so a worker with a
broken graph can send them to a parameter server, which must not end.
"""

import pathlib

import programs

PROGRAM = pathlib.Path(__file__).with_name("bad_inputs_program.py")


def test_ops_refuse_handles_and_shapes_that_are_not_their_own_and_change_nothing():
    result = programs.run(PROGRAM)
    assert {
        "syncrep_table_maintain: slots",
        "syncrep_table_find: index",
        "syncrep_sync_gate_admit: fit",
        "syncrep_work_queue_take: device",
        "syncrep_accumulator_take_round_dense: round",
        "resource_apply_adam_async: lr",
    } <= set(result["tried"])
    assert result["accepted"] == result["changed"] == []
