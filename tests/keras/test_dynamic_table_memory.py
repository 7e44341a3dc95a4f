"""Tables that grow take memory for rows in use, and say when there is none."""

import pathlib

import clusters
import memory_groups
import programs
import pytest

PROGRAM = pathlib.Path(__file__).with_name("dynamic_table_memory_program.py")
MAX_ROWS = 50_000_000
ALLOWED_BYTES = 640 * 2**20


def test_slots_that_begin_at_zero_take_memory_once_rows_are_used():
    taken = programs.run(PROGRAM, "built")
    assert set(taken) >= {"AdamAsync", "RowwiseAdagrad"}
    # A slot with one number for each of the rows has 4 bytes of each.
    assert {k: v for k, v in taken.items() if v >= 3 * MAX_ROWS} == {}


def assert_ended_well(found):
    assert "There is no memory for 100000 more rows of items" in found["message"]
    assert f"of {ALLOWED_BYTES >> 20} MB are left" in found["message"]
    assert found["rows"] > 500_000
    assert found["rows"] % 100_000 == 0  # nothing of the batch that failed
    assert found["of_known_ids"] == ""
    assert found["changed"] > 0
    assert "There is no memory for" in found["of_new_ids"]
    assert found["rows_after"] == found["rows"]


@pytest.mark.ci
def test_memory_that_runs_out_is_an_error_and_the_rows_stay():
    with memory_groups.bounded(ALLOWED_BYTES) as group:
        assert_ended_well(programs.run(PROGRAM, str(group)))


@pytest.mark.slow
def test_server_whose_memory_runs_out_says_so_and_goes_on():
    with (
        memory_groups.bounded(ALLOWED_BYTES) as group,
        clusters.Cluster(1, num_ps=1) as cluster,
    ):
        memory_groups.join(group, cluster.pid("ps-0"))
        assert_ended_well(programs.run(PROGRAM, "cluster", env=cluster.environment()))
        assert cluster.status("ps-0") is None
