"""The layout of tables on parameter servers."""

import pathlib
import runpy

import numpy as np
import pytest

from tf_syncrep.python.embedding import layout

# The 26 categorical features of Criteo's day logs, on which DLRM trains.
CRITEO = [
    *(1460, 583, 10131227, 2202608, 305, 24, 12517, 633, 3, 93145, 5683, 8351593, 3194),
    *(27, 14992, 5461306, 10, 5652, 2173, 4, 7046547, 18, 15, 286181, 105, 142572),
]


def tables_of(sizes, widths):
    return [
        layout.Table(f"table_{i}", size, widths[i % len(widths)])
        for i, size in enumerate(sizes)
    ]


@pytest.mark.parametrize("num_parts", [1, 2, 3, 8, 50])
@pytest.mark.parametrize("widths", [[16], [16, 64, 8]])
@pytest.mark.parametrize("stacking", ["auto", None])
def test_every_row_is_in_one_place_and_parts_are_alike(num_parts, widths, stacking):
    sizes = [7, 100, 1, 3, 51, 2]
    slabs = layout.stack(tables_of(sizes, widths), num_parts, stacking)
    assert len(slabs) == (len(sizes) if stacking is None else len(widths))
    assert sum(len(slab.tables) for slab in slabs) == len(sizes)
    for slab in slabs:
        assert {table.width for table in slab.tables} == {slab.width}
        seen = {table.name: np.zeros(table.vocabulary_size) for table in slab.tables}
        for part_number in range(num_parts):
            end = 0
            for part in slab.parts(part_number):
                assert part.begin == end
                end += part.num_rows
                for i in range(part.num_rows):
                    id_ = part.first_id + i * num_parts
                    row = slab.first_row(part.table) + id_
                    assert divmod(row, num_parts) == (part.begin + i, part_number)
                    seen[part.table.name][id_] += 1
            assert slab.part_rows(part_number) == end
            assert abs(end - slab.num_rows / num_parts) < 1
        assert all(np.all(count == 1) for count in seen.values())


@pytest.mark.parametrize("num_servers", [2, 4, 8, 16])
@pytest.mark.parametrize("widths", [[16], [4, 16, 64, 128]])
def test_bytes_on_parameter_servers_differ_by_less_than_2_percent(num_servers, widths):
    slabs = layout.stack(tables_of(CRITEO, widths), num_servers)
    sizes = [
        sum(slab.part_rows(server) * slab.width for slab in slabs)
        for server in range(num_servers)
    ]
    assert max(sizes) <= 1.02 * min(sizes)


def test_named_tables_are_stacked_and_others_are_alone():
    tables = tables_of([5, 6, 7, 8], [4])
    for stacking in (["table_2", "table_0"], [["table_2", "table_0"]]):
        slabs = layout.stack(tables, 2, stacking)
        assert [[table.name for table in slab.tables] for slab in slabs] == [
            ["table_0", "table_2"],
            ["table_1"],
            ["table_3"],
        ]


@pytest.mark.parametrize(
    ("stacking", "message"),
    [
        ("all", "table_stacking must be 'auto', None, or lists of names of tables. "),
        (3, "table_stacking must be 'auto', None, or lists"),
        ([["table_9"]], "must name tables, each once. Received: 'table_9'"),
        (
            [["table_0"], ["table_0"]],
            "must name tables, each once. Received: 'table_0'",
        ),
        ([["table_0", "table_1"]], "must have one width and dtype. Received: "),
    ],
)
def test_what_cannot_be_stacked_is_refused(stacking, message):
    with pytest.raises(ValueError, match=message):
        layout.stack(tables_of([5, 6], [4, 8]), 2, stacking)


def test_tables_of_one_name_are_refused():
    with pytest.raises(ValueError, match=r"different names. Received: .*'a', 'a'"):
        layout.stack(2 * [layout.Table("a", 1, 1)], 1)


def test_picture_of_the_guide_is_of_the_present_layout():
    images = pathlib.Path(__file__).parents[2] / "docs" / "images"
    drawn = runpy.run_path(str(images / "embedding_layout.py"))["draw"]()
    assert (images / "embedding_layout.svg").read_text() == drawn


def test_tables_are_stacked_with_those_of_their_optimizer():
    tables = [
        layout.Table(f"table_{i}", 5, 4, optimizer=optimizer)
        for i, optimizer in enumerate(["a", None, "a", "b", None])
    ]
    slabs = layout.stack(tables, 2)
    assert [[x.name for x in slab.tables] for slab in slabs] == [
        ["table_0", "table_2"],
        ["table_1", "table_4"],
        ["table_3"],
    ]
    assert [slab.optimizer for slab in slabs] == ["a", None, "b"]
    with pytest.raises(
        ValueError,
        match="Tables that are stacked must have one optimizer. Received: "
        r"\['table_0', 'table_1'\] of \['a', 'the model'\]",
    ):
        layout.stack(tables, 2, ["table_0", "table_1"])
