"""MovieLens: its files, the splits, the batches."""

import collections
import zipfile

import made_movielens
import movielens_batches
import movielens_files
import movielens_tasks
import numpy as np
import pytest
import tensorflow as tf


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return made_movielens.write(tmp_path_factory.mktemp("movielens"))


@pytest.fixture(scope="module")
def data(folder):
    return movielens_files.read(folder)


def lines(folder, name):
    rows = (folder / name).read_text().splitlines()[1:]
    return [row.split("\t") for row in rows]


def test_reads_each_rating_of_whom_and_what(folder, data):
    users = np.unique([row[0] for row in lines(folder, "ml-100k.user")])
    items = np.unique([row[0] for row in lines(folder, "ml-100k.item")])
    assert (data.num_users, data.num_items) == (40, 130)
    expected = [
        (user, item, float(stars), int(time))
        for user, item, stars, time in lines(folder, "ml-100k.inter")
    ]
    found = zip(
        users[data.users],
        items[data.items],
        data.ratings.tolist(),
        data.times.tolist(),
        strict=True,
    )
    assert list(found) == expected
    assert data.users.dtype == data.items.dtype == np.int32


def test_features_are_those_of_the_users_and_films(folder, data):
    users = {row[0]: row for row in lines(folder, "ml-100k.user")}
    items = {row[0]: row for row in lines(folder, "ml-100k.item")}
    names, films = np.unique(list(users)), np.unique(list(items))
    for feature, of in (
        ("age", lambda row: "0" if len(row[1]) == 1 else row[1][0]),
        ("gender", lambda row: row[2]),
        ("region", lambda row: row[4][0]),
    ):
        ids = data.user_features[feature]
        values = [of(users[name]) for name in names]
        assert len(set(ids.tolist())) == len(set(values)) == ids.max() + 1
        assert len(set(zip(ids.tolist(), values, strict=True))) == len(set(values))
    assert data.item_features["year"].max() == 8
    # Their names, sorted.
    genres = [*made_movielens.GENRES, "War"]
    for film, row in zip(films, data.genres, strict=True):
        assert [g for g, has in zip(genres, row, strict=True) if has] == items[film][
            3
        ].split()


def test_the_files_come_out_of_the_wheel(folder, tmp_path, monkeypatch):
    wheel = tmp_path / "recbole-1.2.1-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for name in movielens_files.FILES:
            archive.write(folder / name, f"recbole/dataset_example/ml-100k/{name}")
        archive.writestr("recbole/more.py", "")
    target = tmp_path / "data"
    movielens_files.extract(wheel, target)
    assert sorted(path.name for path in target.iterdir()) == sorted(
        movielens_files.FILES
    )
    for name in movielens_files.FILES:
        assert (target / name).read_bytes() == (folder / name).read_bytes()
    # They are there: nothing is downloaded.
    monkeypatch.setattr(movielens_files.subprocess, "run", None)
    assert movielens_files.fetch(target) == target


def test_without_a_network_it_says_what_to_do(tmp_path, monkeypatch):
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    with pytest.raises(SystemExit, match=r"give a folder that has .* by --data"):
        movielens_files.fetch(tmp_path / "data")
    assert not (tmp_path / "data").exists()


def test_files_that_are_not_as_they_should_be_are_named(folder, tmp_path):
    with pytest.raises(SystemExit, match=r"There is no .*ml-100k\.inter"):
        movielens_files.read(tmp_path)
    for name in movielens_files.FILES:
        (tmp_path / name).write_bytes((folder / name).read_bytes())
    with (tmp_path / "ml-100k.inter").open("a") as file:
        file.write("1\t2\t3\n")
    with pytest.raises(SystemExit, match=r"inter, line 802: expected 4 .* Found: 3"):
        movielens_files.read(tmp_path)
    text = (folder / "ml-100k.inter").read_text() + "1\t999\t3\t1\n"
    (tmp_path / "ml-100k.inter").write_text(text)
    with pytest.raises(SystemExit, match="the item_id '999', which has no line"):
        movielens_files.read(tmp_path)


def test_the_last_rating_of_each_user_is_left_out():
    users = np.array([2, 0, 0, 2, 0, 5])
    times = np.array([9, 4, 7, 1, 7, 3])
    # Of user 0's two last ratings, the one later in the file counts.
    assert movielens_tasks.leave_one_out(users, times).tolist() == [
        *(True, False, False, False, True, True)
    ]


def test_folds_are_parts_of_the_same_size_that_are_all_together():
    folds = [movielens_tasks.fold(1003, i) for i in range(movielens_tasks.FOLDS)]
    assert np.all(np.sum(folds, axis=0) == 1)
    assert {int(fold.sum()) for fold in folds} == {200, 201}
    np.testing.assert_array_equal(folds[2], movielens_tasks.fold(1003, 7))


def test_lists_have_the_right_film_first_and_none_that_the_user_rated(data):
    tested = movielens_tasks.leave_one_out(data.users, data.times)
    users, lists = movielens_tasks.lists_to_rank(data, tested, 99, seed=3)
    assert lists.shape == (40, 100)
    np.testing.assert_array_equal(lists[:, 0], data.items[tested])
    for user, candidates in zip(users, lists, strict=True):
        assert len(set(candidates.tolist())) == 100
        assert not set(candidates[1:].tolist()) & set(
            data.items[data.users == user].tolist()
        )
    again = movielens_tasks.lists_to_rank(data, tested, 99, seed=3)
    np.testing.assert_array_equal(again[1], lists)
    other = movielens_tasks.lists_to_rank(data, tested, 99, seed=4)
    assert np.mean(other[1][:, 1:] == lists[:, 1:]) < 0.1


def examples(data, **options):
    return movielens_batches.Examples(
        {"user": data.users, "item": data.items},
        data.ratings,
        data.num_items,
        **{"share": 64, **options},
    )


def epoch_of(some, epoch):
    """Columns and labels of an epoch, whose shares are read in order."""
    shares = range(some.shares_per_epoch())
    drawn = [some.draw(epoch * len(shares) + share) for share in shares]
    columns = {k: np.concatenate([x[k] for x, _ in drawn]) for k in ("user", "item")}
    return columns["user"], columns["item"], np.concatenate([y for _, y in drawn])


def test_an_epoch_has_each_rating_once_in_an_order_of_its_own(data):
    some = examples(data)
    assert some.shares_per_epoch() == 13
    ratings = sorted(zip(data.users, data.items, data.ratings, strict=True))
    epochs = [epoch_of(some, epoch) for epoch in range(2)]
    for epoch in epochs:
        assert sorted(zip(*epoch, strict=True)) == ratings
    assert np.mean(epochs[0][0] == epochs[1][0]) < 0.2
    for first, second in zip(epochs[0], epoch_of(some, 0), strict=True):
        np.testing.assert_array_equal(first, second)
    other = epoch_of(examples(data, seed=1), 0)
    assert np.mean(epochs[0][0] == other[0]) < 0.2


def test_negatives_are_films_that_the_user_has_not_rated(data):
    some = examples(data, negatives=4)
    rated = set(zip(data.users, data.items, strict=True))
    seen = collections.Counter()
    epochs = [epoch_of(some, epoch) for epoch in range(20)]
    for users, items, labels in epochs:
        assert len(labels) == 5 * len(data.users)
        is_negative = labels == 0
        assert is_negative.sum() == 4 * len(data.users)
        pairs = list(zip(users[is_negative], items[is_negative], strict=True))
        assert not rated & set(pairs)
        seen.update(items[is_negative].tolist())
        counts = np.bincount(users[is_negative], minlength=data.num_users)
        np.testing.assert_array_equal(counts, 4 * np.bincount(data.users))
        # Negatives do not follow their ratings.
        assert 0.7 < is_negative[: len(labels) // 10].mean() < 0.9
    # Each film is drawn about as often as it can be: by those who have not rated it.
    raters = np.bincount(data.items, minlength=data.num_items)
    expected = 20 * 4 * 20 * (data.num_users - raters) / (data.num_items - 20)
    found = np.array([seen[item] for item in range(data.num_items)])
    assert np.all(np.abs(found - expected) < 6 * np.sqrt(expected))
    assert np.mean(epochs[0][1] == epochs[1][1]) < 0.1


def test_who_has_rated_all_films_leaves_no_negatives(data):
    items = np.arange(130, dtype=np.int32)
    everything = {"user": np.zeros_like(items), "item": items}
    with pytest.raises(ValueError, match="A user has rated all films"):
        movielens_batches.Examples(everything, np.ones(130), 130, negatives=1)


def test_batches_go_on_over_the_ends_of_shares(data):
    some = examples(data, share=100)
    batches = list(some.batches(tf.data.Dataset.range(8), 48))
    assert [len(labels) for _, labels in batches] == [48] * 16 + [32]
    assert batches[0][1].shape == (48, 1)
    users = np.concatenate([columns["user"] for columns, _ in batches])
    np.testing.assert_array_equal(users, epoch_of(some, 0)[0])
    assert some.batches_per_epoch(48) == 16
