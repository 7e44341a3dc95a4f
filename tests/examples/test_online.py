"""The example of publishing and following, run for some days of a small made stream."""

import importlib
import pathlib
import re

import commands
import made_movielens
import movielens_files
import numpy as np
import pytest

pytest.importorskip("matplotlib", reason="the example draws with matplotlib")
online = importlib.import_module("online")

SCRIPT = pathlib.Path(__file__).parents[2] / "examples" / "online.py"
FIRST_DAY, DAYS = 90, 3


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return made_movielens.write(tmp_path_factory.mktemp("movielens"), users=120)


def test_a_stream_has_each_rating_once_in_the_order_of_their_times(folder):
    data = movielens_files.read(folder)
    stream = online.Stream(data)
    order = np.argsort(data.times, kind="stable")
    days = [list(stream.batches(day)) for day in range(len(stream.dates))]
    batches = [batch for day in days for batch in day]
    for name, column in (("user", data.users), ("film", data.items)):
        ids = np.concatenate([ids[name] for ids, _ in batches])
        np.testing.assert_array_equal(ids, column[order])
    liked = np.concatenate([liked for _, liked in batches])[:, 0]
    np.testing.assert_array_equal(liked, data.ratings[order] >= 4)
    sizes = [sum(len(liked) for _, liked in day) for day in days]
    dates = (data.times // 86400).astype("datetime64[D]")
    wanted = [np.sum(dates == date) for date in stream.dates]
    assert sizes == wanted
    assert max(len(liked) for _, liked in batches) == online.BATCH


@pytest.mark.docs
@pytest.mark.one_version
def test_each_rating_is_asked_about_before_it_is_trained(folder, tmp_path):
    result = commands.run(
        *("launch", "--workers", 2, "--ps", 2, "--no-prefix", SCRIPT),
        *("--data", folder, "--output", tmp_path, "--first-day", FIRST_DAY),
        *("--days", DAYS, "--rate", 8, "--every-secs", 0.05, "--unused-for", 50),
        env={"TF_CPP_MIN_LOG_LEVEL": "2"},
    )
    assert result.process.returncode == 0, result.output
    stream = online.Stream(movielens_files.read(folder))
    days = range(FIRST_DAY, FIRST_DAY + DAYS)
    asked = [liked for day in days for _, liked in stream.batches(day)]
    with np.load(tmp_path / "answers.npz") as file:
        found = dict(file)
    np.testing.assert_array_equal(found["liked"], np.concatenate(asked)[:, 0])
    # No version knows a rating that it is asked about, or one that comes later.
    for name in ("online", "daily", "never"):
        assert min(found[f"{name}_behind"]) >= 0, result.output
    for name, versions in (("never", 1), ("daily", DAYS)):
        assert len(set(found[f"{name}_version"])) == versions, result.output
    # The one of last midnight knows all days before.
    for day in days:
        of_day = found["day"] == day
        first = found["batch"][of_day].min()
        behind = online.BATCH * (found["batch"][of_day] - first)
        np.testing.assert_array_equal(found["daily_behind"][of_day], behind)
    assert len(set(found["online_version"])) > 1, result.output
    assert "0 failures" in result.output
    rows = re.findall(r"^(\S+) +(\d+) +0\.\d+ +0\.\d+ +0\.\d+ ", result.output, re.M)
    assert [name for name, _ in rows] == [*map(str, stream.dates[days]), "all"]
    assert int(rows[-1][1]) == len(found["liked"])
    assert (tmp_path / "online.png").read_bytes().startswith(b"\x89PNG")
