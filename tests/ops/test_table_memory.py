"""Tables that grow take memory only for the rows that are in use."""

import pathlib

import programs
import pytest

pytestmark = pytest.mark.one_version

PROGRAM = pathlib.Path(__file__).with_name("table_memory_program.py")
USED = 500_000


@pytest.fixture(scope="module")
def of_rows_in_use():
    return programs.run(PROGRAM, USED + 30_000, USED)


def test_a_part_takes_the_memory_of_rows_in_use(of_rows_in_use):
    bound = programs.run(PROGRAM, 50_000_000, USED)
    assert bound["bytes"] < 1.3 * of_rows_in_use["bytes"]


def test_a_row_takes_28_bytes_beside_its_vectors_at_most(of_rows_in_use):
    # The key and the use take 16 of these bytes.
    assert of_rows_in_use["of_index"] < (28 - 16) * USED
