"""A follower of publications: late, missing, damaged, or of another training."""

import pathlib
import shutil
import subprocess
import sys

import numpy as np
import published_models as models
import pytest
import tensorflow as tf
from waiting import in_thread, until

import tf_syncrep as tfs
from tf_syncrep.serving import Follower

VERSIONS = 6


@pytest.fixture(scope="module")
def training(tmp_path_factory):
    """A folder with the publications 1 to 6, of which 1 and 5 are full."""
    folder = tmp_path_factory.mktemp("published")
    wanted = models.published(folder, versions=VERSIONS, full_every=4, keep=9)
    return folder, wanted


@pytest.fixture(scope="module")
def other_training(tmp_path_factory):
    folder = tmp_path_factory.mktemp("other")
    return folder, models.published(folder, versions=2, seed=7)


def files_of(folder, version):
    """The files and folders of a publication, its manifest last."""
    found = [*folder.glob(f"publication-{version}.*"), *folder.glob(f"{version}")]
    return sorted(found, key=lambda path: path.suffix == ".json")


def publish(folder, source, *versions):
    """Copies publications, as if they were published now."""
    folder.mkdir(exist_ok=True)
    for version in versions:
        for path in files_of(source, version):
            copy = shutil.copytree if path.is_dir() else shutil.copy
            copy(path, folder / path.name)


def unpublish(folder, version):
    for path in reversed(files_of(folder, version)):
        (shutil.rmtree if path.is_dir() else type(path).unlink)(path)


def change_a_byte(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def cut_off(path):
    path.write_bytes(path.read_bytes()[:-1])


def assert_serves(recorded, wanted, version):
    recorded.wait(version)
    assert recorded.follower.version == version
    np.testing.assert_array_equal(recorded.predict(), wanted[version])


def await_failures(recorded, more=3):
    """Waits until it has looked at what is wrong some times."""
    seen = recorded.follower.numbers()["failures"]
    until(lambda: recorded.follower.numbers()["failures"] >= seen + more)


@pytest.fixture
def recorded(tmp_path):
    with models.Recorded(tmp_path / "published", models.probe()) as found:
        yield found


def test_it_waits_for_the_first_publication(recorded, tmp_path, training):
    source, wanted = training
    with pytest.raises(RuntimeError, match="no publication to serve yet in"):
        recorded.predict()
    with pytest.raises(TimeoutError, match=r"from 1 on for 0\.01 s; 0 is"):
        recorded.follower.wait(secs=0.01)
    publish(tmp_path / "published", source, 1)
    assert_serves(recorded, wanted, 1)


def test_nobody_waits_for_one_that_is_closed(tmp_path):
    follower = Follower(tmp_path / "published")
    waiting = in_thread(follower.wait)
    follower.close()
    with pytest.raises(RuntimeError, match="was closed; 0 is served"):
        waiting.result(models.DEADLINE_SECS)


def test_a_late_one_begins_with_the_newest_full_publication(tmp_path, training):
    source, wanted = training
    with models.Recorded(source, models.probe()) as recorded:
        assert_serves(recorded, wanted, 6)
    assert sorted(recorded.predictions) == [5, 6]


@pytest.mark.parametrize("harm", [change_a_byte, cut_off, pathlib.Path.unlink])
@pytest.mark.parametrize("what", ["data-00000-of-00001", "index", "json"])
def test_a_damaged_delta_is_passed_over(
    recorded, tmp_path, training, caplog, what, harm
):
    source, wanted = training
    folder = tmp_path / "published"
    publish(folder, source, 1, 2)
    assert_serves(recorded, wanted, 2)
    broken = tmp_path / "broken"
    publish(broken, source, 3)
    harm(broken / f"publication-3.{what}")
    publish(folder, broken, 3)
    publish(folder, source, 4)
    if (what, harm) != ("json", pathlib.Path.unlink):  # of which nobody knows
        await_failures(recorded)
        assert "Publication 2 goes on serving" in caplog.text
    np.testing.assert_array_equal(recorded.predict(), wanted[2])
    publish(folder, source, 5, 6)  # 5 is full
    assert_serves(recorded, wanted, 6)
    assert {3, 4}.isdisjoint(recorded.predictions)


def test_a_full_publication_that_can_be_reached_is_not_loaded(
    recorded, tmp_path, training
):
    source, wanted = training
    for version in range(1, 7):
        publish(tmp_path / "published", source, version)
        assert_serves(recorded, wanted, version)
    numbers = recorded.follower.numbers()
    assert (numbers["fulls"], numbers["deltas"], numbers["lag"]) == (1, 5, 0)
    assert numbers["updates"] == 6
    assert numbers["rows"] > 0


def test_a_damaged_full_publication_is_passed_over(recorded, tmp_path, training):
    source, wanted = training
    folder = tmp_path / "published"
    publish(folder, source, 5)
    assert_serves(recorded, wanted, 5)
    recorded.follower.close()
    (saved,) = (folder / "5" / "variables").glob("*.index")
    change_a_byte(saved)
    publish(folder, source, 1, 2)
    with models.Recorded(folder, models.probe()) as late:
        late.wait(2)
        np.testing.assert_array_equal(late.predict(), wanted[2])


def test_a_savedmodel_that_cannot_be_loaded_is_not_tried_at_each_look(
    recorded, tmp_path, training, monkeypatch
):
    source, wanted = training
    folder, loaded = tmp_path / "published", []
    load = tf.saved_model.load
    monkeypatch.setattr(
        tf.saved_model, "load", lambda path: loaded.append(path) or load(path)
    )
    publish(folder, source, 1)
    assert_serves(recorded, wanted, 1)
    publish(tmp_path / "broken", source, 5)
    data = (tmp_path / "broken" / "5" / "variables").glob("*.data-*")
    change_a_byte(max(data, key=lambda path: path.stat().st_size))
    publish(folder, tmp_path / "broken", 5)
    await_failures(recorded, more=1)
    # It looks again meanwhile, and goes on where deltas lead.
    for version in (2, 3):
        publish(folder, source, version)
        assert_serves(recorded, wanted, version)
    assert [pathlib.Path(path).name for path in loaded] == ["1", "5"]


def test_a_delta_that_fails_when_it_is_half_applied_is_not_tried_again(
    recorded, tmp_path, training
):
    source, wanted = training
    folder = tmp_path / "published"
    publish(folder, source, 1, 2)
    assert_serves(recorded, wanted, 2)
    with recorded.follower.reading() as model:
        # Shorter than what publication 3 changes.
        model.tables_items.vectors.assign(model.tables_items.vectors[:1])
    publish(folder, source, 3, 4)
    await_failures(recorded, more=1)
    # Publication 1 is loaded again, and only leads to 2.
    until(lambda: recorded.follower.version == 2)
    np.testing.assert_array_equal(recorded.predict(), wanted[2])
    publish(folder, source, 5)
    assert_serves(recorded, wanted, 5)
    numbers = recorded.follower.numbers()
    assert (numbers["fulls"], numbers["failures"]) == (3, 1)


def test_it_goes_on_serving_while_the_folder_is_gone(recorded, tmp_path, training):
    source, wanted = training
    folder = tmp_path / "published"
    publish(folder, source, 1, 2)
    assert_serves(recorded, wanted, 2)
    folder.rename(tmp_path / "away")
    await_failures(recorded)
    np.testing.assert_array_equal(recorded.predict(), wanted[2])
    (tmp_path / "away").rename(folder)
    publish(folder, source, 3)
    assert_serves(recorded, wanted, 3)
    assert recorded.follower.numbers()["fulls"] == 1


def test_a_training_that_began_anew_is_followed(
    recorded, tmp_path, training, other_training
):
    source, wanted = training
    folder = tmp_path / "published"
    publish(folder, source, 1, 2, 3)
    assert_serves(recorded, wanted, 3)
    for version in (1, 2, 3):
        unpublish(folder, version)
    publish(folder, other_training[0], 1)
    until(lambda: recorded.follower.version == 1)
    publish(folder, other_training[0], 2)
    until(lambda: recorded.follower.version == 2)
    np.testing.assert_array_equal(recorded.predict(), other_training[1][2])


def test_weights_that_are_not_finite_are_not_served(tmp_path):
    folder = tmp_path / "published"
    model, draw = models.make(), np.random.default_rng(0)
    publisher = tfs.keras.Publisher(folder, model=model)
    dense = model.layers[-1].kernel
    with models.Recorded(folder, models.probe()) as recorded:
        models.train(model, draw)
        publisher.publish()
        good = model(models.probe()).numpy()
        assert_serves(recorded, {1: good}, 1)
        kernel = np.array(dense)
        dense.assign(kernel * np.nan)
        assert publisher.publish().manifest.not_finite
        until(lambda: recorded.follower.numbers()["lag"] == 1)
        assert_serves(recorded, {1: good}, 1)
        dense.assign(kernel)
        models.train(model, draw)
        publisher.publish()
        recorded.wait(3)
        np.testing.assert_array_equal(recorded.predict(), model(models.probe()).numpy())
    assert 2 not in recorded.predictions


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ({"candidate": [1]}, r"must have the inputs \['candidate', 'watched'\]"),
        (
            {"candidate": ["a"], "watched": [[1, 2, 3]]},
            "`candidate` must be of dtype int64",
        ),
        (
            {"candidate": [1], "watched": [1]},
            r"`watched` must have shape \(None, 3\). Received: .* \(1,\)",
        ),
    ],
)
def test_bad_requests_are_refused(recorded, tmp_path, training, inputs, message):
    publish(tmp_path / "published", training[0], 1)
    recorded.wait(1)
    with pytest.raises(ValueError, match=message):
        recorded.follower(**inputs)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"poll_secs": 0}, "`poll_secs` must be .* poll_secs=0"),
        ({"directory": __file__}, "`directory` must be a folder"),
    ],
)
def test_bad_arguments_are_refused(tmp_path, options, message):
    with pytest.raises(ValueError, match=message):
        Follower(**{"directory": tmp_path, **options})


WITHOUT_LIBRARY = """
import sys
from tf_syncrep.serving import Follower
with Follower(sys.argv[1]) as follower:
    version = follower.wait(secs=100)
    loaded = "libtf_syncrep.so" in open("/proc/self/maps").read()
    import tf_syncrep as tfs
    tfs.keras.AdamAsync
    print(version, loaded, "libtf_syncrep.so" in open("/proc/self/maps").read())
"""


def test_it_runs_without_the_op_library(tmp_path, training):
    publish(tmp_path / "published", training[0], 1)
    result = subprocess.run(
        [sys.executable, "-c", WITHOUT_LIBRARY, tmp_path / "published"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.stdout == "1 False True\n", result.stderr
