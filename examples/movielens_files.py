"""MovieLens-100K: fetching it, and reading it.

It has 100,000 ratings of 1,682 films by 943 people, of 1997 and 1998 (Harper and
Konstan, "The MovieLens Datasets: History and Context", 2015). It is free for research,
and may not be redistributed. So it is fetched by pip from a place that has it already,
a wheel of RecBole.
"""

from __future__ import annotations

import dataclasses
import pathlib
import subprocess
import sys
import tempfile
import zipfile

import numpy as np

WHEEL = "recbole==1.2.1"
_IN_WHEEL = "recbole/dataset_example/ml-100k/"
FILES = ("ml-100k.inter", "ml-100k.user", "ml-100k.item")


@dataclasses.dataclass(frozen=True)
class MovieLens:
    """The data set, its ids counted from 0.

    Features are int32, by name, of each user: ids of age, gender, occupation, region;
    and of each film: of its year.
    """

    users: np.ndarray  # int32 `[ratings]`
    items: np.ndarray  # int32 `[ratings]`: the film that was rated
    ratings: np.ndarray  # float32 `[ratings]`: 1 to 5
    times: np.ndarray  # int64 `[ratings]`: seconds since 1970
    user_features: dict[str, np.ndarray]
    item_features: dict[str, np.ndarray]
    genres: np.ndarray  # bool `[items, genres]`

    @property
    def num_users(self) -> int:
        """How many users there are."""
        return len(self.user_features["age"])

    @property
    def num_items(self) -> int:
        """How many films there are."""
        return len(self.genres)


def fetch(folder: pathlib.Path) -> pathlib.Path:
    """Downloads the files into a folder, unless they are there; returns the folder."""
    if all((folder / name).exists() for name in FILES):
        return folder
    print(f"Fetching MovieLens-100K, of the wheel {WHEEL}, into {folder}.", flush=True)
    with tempfile.TemporaryDirectory() as downloads:
        pip = subprocess.run(
            [
                *(sys.executable, "-m", "pip", "download", "--no-deps"),
                *("--only-binary=:all:", "--disable-pip-version-check"),
                *("--retries", "1", "--dest", downloads, WHEEL),
            ],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        wheels = list(pathlib.Path(downloads).glob("*.whl"))
        if pip.returncode or not wheels:
            raise SystemExit(
                f"pip could not download {WHEEL}, which has the data:\n"
                f"{pip.stdout[-1000:].strip()}\n"
                "Where there is no network, give a folder that has the files "
                f"{', '.join(FILES)} by --data."
            )
        extract(wheels[0], folder)
    return folder


def extract(wheel: pathlib.Path, folder: pathlib.Path) -> None:
    """Takes the data set's files out of a wheel of RecBole into a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(wheel) as archive:
        for name in FILES:
            # A file that exists is complete, whenever this ends.
            part = folder / f"{name}.part"
            part.write_bytes(archive.read(_IN_WHEEL + name))
            part.rename(folder / name)


def read(folder: pathlib.Path) -> MovieLens:
    """Reads `FILES` of a folder.

    They are in RecBole's format: fields between tabs, and a first line with `name:type`
    for each field.
    """
    ratings, users, items = (_table(folder / name) for name in FILES)
    user_names, user_places = np.unique(users["user_id"], return_index=True)
    item_names, item_places = np.unique(items["item_id"], return_index=True)
    users = {name: column[user_places] for name, column in users.items()}
    items = {name: column[item_places] for name, column in items.items()}
    decades = np.char.str_len(users["age"])  # "7", "42": one id for each decade
    ages = np.where(decades == 2, np.char.add(_head(users["age"], 1), "0"), "0")
    films = [text.split() for text in items["class"]]
    genres = sorted({genre for film in films for genre in film})
    return MovieLens(
        users=_places(ratings["user_id"], user_names, "user_id"),
        items=_places(ratings["item_id"], item_names, "item_id"),
        ratings=ratings["rating"].astype(np.float32),
        times=ratings["timestamp"].astype(np.float64).astype(np.int64),
        user_features={
            "age": _ids(ages),
            "gender": _ids(users["gender"]),
            "occupation": _ids(users["occupation"]),
            "region": _ids(_head(users["zip_code"], 1)),
        },
        item_features={"year": _ids(items["release_year"])},
        genres=np.array([[g in film for g in genres] for film in films]),
    )


def _table(path: pathlib.Path) -> dict[str, np.ndarray]:
    """Returns the columns of a file, by name, as strings."""
    if not path.exists():
        raise SystemExit(
            f"MovieLens-100K has files {', '.join(FILES)}. There is no {path}."
        )
    header, *lines = path.read_text("utf-8").splitlines()
    names = [field.partition(":")[0] for field in header.split("\t")]
    rows = [line.split("\t") for line in lines]
    for number, row in enumerate(rows, start=2):
        if len(row) != len(names):
            raise SystemExit(
                f"{path}, line {number}: expected {len(names)} fields, as in the first "
                f"line. Found: {len(row)}"
            )
    columns = zip(*rows, strict=True) if rows else ([] for _ in names)
    return dict(zip(names, map(np.array, columns), strict=True))


def _head(texts: np.ndarray, length: int) -> np.ndarray:
    """Returns the first characters of each text."""
    return texts.astype(f"U{length}")


def _ids(texts: np.ndarray) -> np.ndarray:
    """Numbers for the different texts, from 0: int32, of the same shape."""
    return np.unique(texts, return_inverse=True)[1].astype(np.int32)


def _places(texts: np.ndarray, names: np.ndarray, column: str) -> np.ndarray:
    """Returns where each text is in the sorted names: int32."""
    found = np.minimum(np.searchsorted(names, texts), len(names) - 1)
    unknown = texts[names[found] != texts]
    if len(unknown):
        raise SystemExit(
            f"{FILES[0]} has the {column} {str(unknown[0])!r}, which has no line in "
            "the file of all of them."
        )
    return found.astype(np.int32)
