"""A small data set in files of MovieLens, in RecBole's format."""

import pathlib

import numpy as np

GENRES = ("Action", "Comedy", "Drama", "Film-Noir")


def write(
    folder: pathlib.Path, users: int = 40, items: int = 130, seed: int = 1
) -> pathlib.Path:
    """Writes ratings that follow users' tastes for genres; returns the folder.

    Each user has rated 20 films, of which more are of the genre that the user likes;
    these get more stars.
    """
    random = np.random.default_rng(seed)
    folder.mkdir(parents=True, exist_ok=True)
    genres = random.integers(len(GENRES), size=items)
    lines = ["user_id:token\titem_id:token\trating:float\ttimestamp:float"]
    for user in range(users):
        is_liked = genres == user % len(GENRES)
        odds = np.where(is_liked, 8.0, 1.0)
        films = random.choice(items, 20, replace=False, p=odds / odds.sum())
        for film in films:
            stars = random.choice([4, 5] if is_liked[film] else [1, 2, 3])
            time = 874724710 + random.integers(10_000_000)
            lines.append(f"{user + 1}\t{film + 1}\t{stars}\t{time}")
    # As in the real file, they are in no order.
    _write(folder / "ml-100k.inter", [lines[0], *random.permutation(lines[1:])])
    _write(
        folder / "ml-100k.user",
        [
            "user_id:token\tage:token\tgender:token\toccupation:token\tzip_code:token",
            *(
                f"{user + 1}\t{7 + user}\t{'FM'[user % 2]}\twriter\t{user:05d}"
                for user in range(users)
            ),
        ],
    )
    _write(
        folder / "ml-100k.item",
        [
            "item_id:token\tmovie_title:token_seq\trelease_year:token\tclass:token_seq",
            *(
                f"{film + 1}\tFilm {film + 1}\t{1990 + film % 9}\t{GENRES[genre]}"
                + " War" * (film % 5 == 0)
                for film, genre in enumerate(genres)
            ),
        ],
    )
    return folder


def _write(path: pathlib.Path, lines: list[str]) -> None:
    path.write_text("\n".join(lines) + "\n")
