"""Draws embedding_layout.svg: how the rows of a slab lie on parameter servers.

The package itself says where each row is.
"""

import pathlib

from tf_syncrep.python.embedding import layout

TABLES = [layout.Table("movies", 7, 64), layout.Table("users", 4, 64)]
SERVERS = 3
FILLS = {"movies": "#cfe3f5", "users": "#fbdfc4"}
WIDTH, HEIGHT = 100, 24
TOP, LEFT, GAP = 56, 20, 30
FIRST_SERVER = 240


def draw() -> str:
    """Returns the picture, as the text of an SVG file."""
    (slab,) = layout.stack(TABLES, SERVERS)
    parts = [_heading(LEFT, "slab of width 64")]
    for table in slab.tables:
        for id_ in range(table.vocabulary_size):
            row = slab.first_row(table) + id_
            parts.append(_row(LEFT, row, table, id_))
            parts.append(_text(LEFT + WIDTH + 8, row, f"→ ps {row % SERVERS}"))
    for part_number in range(SERVERS):
        x = FIRST_SERVER + part_number * (WIDTH + GAP)
        parts.append(_heading(x, f"ps {part_number}"))
        for part in slab.parts(part_number):
            for k in range(part.num_rows):
                id_ = part.first_id + k * SERVERS
                parts.append(_row(x, part.begin + k, part.table, id_))
    width = FIRST_SERVER + SERVERS * (WIDTH + GAP)
    height = TOP + slab.num_rows * HEIGHT + 20
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
            f'width="{width}" height="{height}" font-family="sans-serif" '
            'font-size="13">',
            "<title>Rows of two stacked tables take turns on three servers</title>",
            f'<rect width="{width}" height="{height}" fill="white"/>',
            *parts,
            "</svg>\n",
        ]
    )


def _heading(x, text):
    return (
        f'<text x="{x + WIDTH // 2}" y="{TOP - 16}" text-anchor="middle" '
        f'font-weight="bold">{text}</text>'
    )


def _row(x, row, table, id_):
    y = TOP + row * HEIGHT
    return (
        f'<rect x="{x}" y="{y}" width="{WIDTH}" height="{HEIGHT}" '
        f'fill="{FILLS[table.name]}" stroke="#666"/>'
        f'<text x="{x + WIDTH // 2}" y="{y + 17}" text-anchor="middle">'
        f"{table.name} {id_}</text>"
    )


def _text(x, row, text):
    y = TOP + row * HEIGHT + 17
    return f'<text x="{x}" y="{y}" fill="#666">{text}</text>'


if __name__ == "__main__":
    pathlib.Path(__file__).with_suffix(".svg").write_text(draw())
