"""Tables that grow take memory only for the rows that are in use."""

import pathlib

import programs
import pytest

pytestmark = pytest.mark.one_version

PROGRAM = pathlib.Path(__file__).with_name("table_memory_program.py")
CHECKPOINTS = PROGRAM.with_name("checkpoint_memory_program.py")
USED, MAX_ROWS = 500_000, 50_000_000


@pytest.fixture(scope="module")
def of_rows_in_use():
    return programs.run(PROGRAM, USED + 30_000, USED)


@pytest.fixture(scope="module")
def of_large_part():
    return programs.run(PROGRAM, MAX_ROWS, USED)


def test_a_part_takes_the_memory_of_rows_in_use(of_rows_in_use, of_large_part):
    assert of_large_part["bytes"] < 1.3 * of_rows_in_use["bytes"]


def test_admission_takes_two_bytes_of_each_possible_row_at_most(
    of_rows_in_use, of_large_part
):
    counting = programs.run(PROGRAM, MAX_ROWS, USED, 2)
    of_counts = counting["of_index"] - of_large_part["of_index"]
    assert MAX_ROWS <= of_counts <= 2 * MAX_ROWS
    assert counting["bytes"] - of_counts < 1.3 * of_rows_in_use["bytes"]


@pytest.mark.slow
def test_tensorflows_saver_has_no_column_copied(tmp_path):
    result = programs.run(PROGRAM, MAX_ROWS, USED, 1, str(tmp_path))
    assert result["after_saving"] < 30e6


def test_a_row_takes_28_bytes_beside_its_vectors_at_most(of_rows_in_use):
    # The key and the use take 16 of these bytes.
    assert of_rows_in_use["of_index"] < (28 - 16) * USED


@pytest.mark.slow
def test_checkpoints_take_the_memory_and_time_of_rows_in_use():
    result = programs.run(CHECKPOINTS, 2**31 - 1)
    assert (result["full"]["rows"], result["changed"]["rows"]) == (10_000, 4)
    for checkpoint in result.values():
        assert checkpoint["bytes"] < 60e6
        # Only the uses of free rows are read, without a lock for each.
        assert checkpoint["secs"] < 20
