"""Packs a folder of a fuzzer's inputs into one file, and unpacks it.

corpus.py pack FOLDER FILE, or corpus.py unpack FILE FOLDER. The file has for each input
its length, in four bytes with the lowest first, and its bytes.
"""

import hashlib
import pathlib
import sys


def pack(folder: pathlib.Path, file: pathlib.Path) -> None:
    """Writes all files of a folder into one, in the order of their contents."""
    inputs = sorted(path.read_bytes() for path in folder.iterdir())
    file.write_bytes(
        b"".join(len(data).to_bytes(4, "little") + data for data in inputs)
    )


def unpack(file: pathlib.Path, folder: pathlib.Path) -> None:
    """Writes each input into a file that is named by its hash."""
    folder.mkdir(parents=True, exist_ok=True)
    data = file.read_bytes()
    at = 0
    while at < len(data):
        size = int.from_bytes(data[at : at + 4], "little")
        one = data[at + 4 : at + 4 + size]
        (folder / hashlib.sha256(one).hexdigest()[:16]).write_bytes(one)
        at += 4 + size


if __name__ == "__main__":
    action, first, second = sys.argv[1:]
    {"pack": pack, "unpack": unpack}[action](pathlib.Path(first), pathlib.Path(second))
