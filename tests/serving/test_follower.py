"""A follower of publications: late, missing, damaged, or of another training."""

import dataclasses
import pathlib
import shutil
import subprocess
import sys
import weakref

import numpy as np
import published_models as models
import pytest
import tensorflow as tf
from waiting import in_thread, until

import tf_syncrep as tfs
from tf_syncrep.python.serving.publications import Publications
from tf_syncrep.serving import Follower

VERSIONS = 6
# The second one has keys that are strings, come and go, and need more and more rows.
KINDS = {
    "fixed": {},
    "growing": {"size": tfs.keras.Dynamic(models.SIZE, unused_for=2), "strings": True},
}


@dataclasses.dataclass(frozen=True)
class Training:
    """What a training has published, and what it predicts at each version."""

    folder: pathlib.Path
    kind: str
    wanted: dict
    probe: dict


def publish_all(folder, kind, **options):
    wanted = models.published(folder, **KINDS[kind], **options)
    probe = models.probe(KINDS[kind].get("strings", False))
    return Training(folder, kind, wanted, probe)


@pytest.fixture(scope="module", params=KINDS)
def training(tmp_path_factory, request):
    """Publications 1 to 6, of which 1 and 5 are full."""
    folder = tmp_path_factory.mktemp("published")
    return publish_all(folder, request.param, versions=VERSIONS, full_every=4, keep=9)


@pytest.fixture(scope="module")
def other_training(tmp_path_factory, training):
    folder = tmp_path_factory.mktemp("other")
    return publish_all(folder, training.kind, versions=2, seed=7)


def files_of(folder, version):
    """The files and folders of a publication, its manifest last."""
    found = [*folder.glob(f"publication-{version}.*"), *folder.glob(f"{version}")]
    return sorted(found, key=lambda path: path.suffix == ".json")


def publish(folder, source, *versions, but=()):
    """Copies publications, as if they were published now.

    `but`: how the names of files end that are not there yet.
    """
    folder.mkdir(exist_ok=True)
    for version in versions:
        for path in files_of(source, version):
            if path.name.endswith(but):
                continue
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


def index_of(table):
    """The handle of what finds rows by keys, if the table has that."""
    return [table.index.resource_handle] if hasattr(table, "index") else []


def num_rows(table):
    return int(tf.raw_ops.VariableShape(input=table.vectors.handle)[0])


def assert_serves(recorded, training, version):
    recorded.wait(version)
    assert recorded.follower.version == version
    np.testing.assert_array_equal(recorded.predict(), training.wanted[version])


def await_failures(recorded, more=3):
    """Waits until it has looked at what is wrong some times."""
    seen = recorded.follower.numbers()["failures"]
    until(lambda: recorded.follower.numbers()["failures"] >= seen + more)


@pytest.fixture
def recorded(tmp_path, training):
    with models.Recorded(tmp_path / "published", training.probe) as found:
        yield found


def test_it_waits_for_the_first_publication(recorded, tmp_path, training):
    with pytest.raises(RuntimeError, match="no publication to serve yet in"):
        recorded.predict()
    with pytest.raises(TimeoutError, match=r"from 1 on for 0\.01 s; 0 is"):
        recorded.follower.wait(secs=0.01)
    publish(tmp_path / "published", training.folder, 1)
    assert_serves(recorded, training, 1)


def test_nobody_waits_for_one_that_is_closed(tmp_path):
    follower = Follower(tmp_path / "published")
    waiting = in_thread(follower.wait)
    follower.close()
    with pytest.raises(RuntimeError, match="was closed; 0 is served"):
        waiting.result(models.DEADLINE_SECS)


def test_a_late_one_begins_with_the_newest_full_publication(tmp_path, training):
    with models.Recorded(training.folder, training.probe) as recorded:
        assert_serves(recorded, training, 6)
    assert sorted(recorded.predictions) == [5, 6]


@pytest.mark.parametrize("harm", [change_a_byte, cut_off, pathlib.Path.unlink])
@pytest.mark.parametrize("what", ["data-00000-of-00001", "index", "json"])
def test_a_damaged_delta_is_passed_over(
    recorded, tmp_path, training, caplog, what, harm
):
    source, folder = training.folder, tmp_path / "published"
    publish(folder, source, 1, 2)
    assert_serves(recorded, training, 2)
    broken = tmp_path / "broken"
    publish(broken, source, 3)
    harm(broken / f"publication-3.{what}")
    publish(folder, broken, 3)
    publish(folder, source, 4)
    if (what, harm) != ("json", pathlib.Path.unlink):  # of which nobody knows
        await_failures(recorded)
    until(lambda: recorded.follower.numbers()["lag"] > 0)
    none = "has newer publications, but none that can be served now. Publication 2 "
    until(lambda: none in caplog.text, lambda: caplog.text)
    np.testing.assert_array_equal(recorded.predict(), training.wanted[2])
    publish(folder, source, 5, 6)  # 5 is full
    assert_serves(recorded, training, 6)
    assert {3, 4}.isdisjoint(recorded.predictions)
    assert "no publications lead there from 2" in caplog.text


def test_a_full_publication_that_can_be_reached_is_not_loaded(
    recorded, tmp_path, training
):
    for version in range(1, 7):
        publish(tmp_path / "published", training.folder, version)
        assert_serves(recorded, training, version)
    numbers = recorded.follower.numbers()
    assert (numbers["fulls"], numbers["deltas"], numbers["lag"]) == (1, 5, 0)
    assert numbers["updates"] == 6 * models.UPDATES
    assert numbers["rows"] > 0


def test_a_damaged_full_publication_is_passed_over(recorded, tmp_path, training):
    source, folder = training.folder, tmp_path / "published"
    publish(folder, source, 5)
    assert_serves(recorded, training, 5)
    recorded.follower.close()
    (saved,) = (folder / "5" / "variables").glob("*.index")
    change_a_byte(saved)
    publish(folder, source, 1, 2)
    with models.Recorded(folder, training.probe) as late:
        late.wait(2)
        np.testing.assert_array_equal(late.predict(), training.wanted[2])


def test_a_savedmodel_that_cannot_be_loaded_is_not_tried_at_each_look(
    recorded, tmp_path, training, monkeypatch
):
    source = training.folder
    folder, loaded = tmp_path / "published", []
    load = tf.saved_model.load
    monkeypatch.setattr(
        tf.saved_model, "load", lambda path: loaded.append(path) or load(path)
    )
    publish(folder, source, 1)
    assert_serves(recorded, training, 1)
    publish(tmp_path / "broken", source, 5)
    data = (tmp_path / "broken" / "5" / "variables").glob("*.data-*")
    change_a_byte(max(data, key=lambda path: path.stat().st_size))
    publish(folder, tmp_path / "broken", 5)
    await_failures(recorded, more=1)
    # It looks again meanwhile, and goes on where deltas lead.
    for version in (2, 3):
        publish(folder, source, version)
        assert_serves(recorded, training, version)
    assert [pathlib.Path(path).name for path in loaded] == ["1", "5"]


def test_a_delta_that_fails_when_it_is_half_applied_is_not_tried_again(
    recorded, tmp_path, training
):
    source, folder = training.folder, tmp_path / "published"
    publish(folder, source, 1, 2)
    assert_serves(recorded, training, 2)
    with recorded.follower.reading() as model:
        table = model.tables_items
        if index := index_of(table):
            tf.raw_ops.DestroyResourceOp(resource=index[0])
        else:  # Shorter than what publication 3 changes.
            table.vectors.assign(table.vectors[:1])
    publish(folder, source, 3, 4)
    await_failures(recorded, more=1)
    # Publication 1 is loaded again, and only leads to 2.
    until(lambda: recorded.follower.version == 2)
    np.testing.assert_array_equal(recorded.predict(), training.wanted[2])
    publish(folder, source, 5)
    assert_serves(recorded, training, 5)
    numbers = recorded.follower.numbers()
    assert (numbers["fulls"], numbers["failures"]) == (3, 1)


@pytest.mark.parametrize("is_far_behind", [False, True])
def test_it_goes_on_serving_while_the_folder_is_gone(
    recorded, tmp_path, training, caplog, is_far_behind
):
    source, folder, away = training.folder, tmp_path / "published", tmp_path / "away"
    publish(folder, source, 1, 2)
    assert_serves(recorded, training, 2)
    folder.rename(away)
    await_failures(recorded)
    np.testing.assert_array_equal(recorded.predict(), training.wanted[2])
    assert "has no publications any more. Publication 2 goes on" in caplog.text
    publish(away, source, 3, 4, 5, 6)
    for version in (1, 2, 3, 4) if is_far_behind else ():
        unpublish(away, version)
    away.rename(folder)
    assert_serves(recorded, training, 6)
    assert recorded.follower.numbers()["fulls"] == 1 + is_far_behind


def test_what_is_being_written_is_not_there_yet(
    recorded, tmp_path, training, monkeypatch
):
    folder, looks, after = tmp_path / "published", [], Publications.after
    monkeypatch.setattr(
        Publications, "after", lambda *args: looks.append(1) or after(*args)
    )
    for last, version in ((0, 1), (1, 2), (2, 5)):
        publish(folder, training.folder, version, but=".json")
        seen = len(looks)
        until(lambda seen=seen: len(looks) > seen + 2)
        assert recorded.follower.version == last
        shutil.copy(training.folder / f"publication-{version}.json", folder)
        assert_serves(recorded, training, version)
    assert recorded.follower.numbers()["failures"] == 0


def test_a_training_that_began_anew_is_followed(
    recorded, tmp_path, training, other_training, caplog
):
    source, folder = training.folder, tmp_path / "published"
    publish(folder, source, 1, 2, 3)
    assert_serves(recorded, training, 3)
    for version in (1, 2, 3):
        unpublish(folder, version)
    publish(folder, other_training.folder, 1)
    until(lambda: recorded.follower.version == 1)
    publish(folder, other_training.folder, 2)
    until(lambda: recorded.follower.version == 2)
    assert_serves(recorded, other_training, 2)
    assert "no publications lead there from 3, which was served" in caplog.text


def test_a_training_that_begins_anew_in_the_same_folder_is_followed(
    tmp_path, training, caplog
):
    folder = tmp_path / "published"
    with models.Recorded(folder, training.probe) as recorded:
        for seed in (0, 7):
            more = publish_all(folder, training.kind, versions=2, seed=seed)
            assert_serves(recorded, more, max(more.wanted))
    assert recorded.follower.numbers()["fulls"] == 2
    assert "no publications lead there from 2, which was served" in caplog.text


def test_followers_in_one_process_know_nothing_of_each_other(
    recorded, tmp_path, training, other_training
):
    folder, other = tmp_path / "published", tmp_path / "other"
    with (
        models.Recorded(other, training.probe) as second,
        models.Recorded(other, training.probe) as third,
    ):
        publish(folder, training.folder, 1, 2)
        publish(other, other_training.folder, 1)
        assert_serves(recorded, training, 2)
        assert_serves(second, other_training, 1)
        assert_serves(third, other_training, 1)
        third.follower.close()
        publish(other, other_training.folder, 2)
        assert_serves(second, other_training, 2)
        assert_serves(third, other_training, 1)
        publish(folder, training.folder, 5)
        assert_serves(recorded, training, 5)
        assert_serves(second, other_training, 2)


def test_a_model_that_is_not_served_any_more_takes_no_memory(
    recorded, tmp_path, training
):
    folder = tmp_path / "published"
    publish(folder, training.folder, 1)
    assert_serves(recorded, training, 1)
    vectors = weakref.ref(recorded.follower.model.tables_items.vectors)
    index = index_of(recorded.follower.model.tables_items)
    publish(folder, training.folder, 5)
    assert_serves(recorded, training, 5)
    until(lambda: vectors() is None)
    for handle in index:
        with pytest.raises(tf.errors.NotFoundError):
            tf.raw_ops.LookupTableSizeV2(table_handle=handle)


@pytest.mark.parametrize("training", ["growing"], indirect=True)
def test_requests_go_on_while_a_table_gets_longer(recorded, tmp_path, training):
    publish(tmp_path / "published", training.folder, 1)
    recorded.wait(1)
    with recorded.follower.reading() as model:
        table = model.tables_items
        before = num_rows(table)
        publish(tmp_path / "published", training.folder, 2)
        until(lambda: num_rows(table) > before)
        (found,) = model.signatures["serving_default"](**training.probe).values()
        np.testing.assert_array_equal(found, training.wanted[1])
    assert_serves(recorded, training, 2)


def test_weights_that_are_not_finite_are_not_served(tmp_path, caplog):
    folder = tmp_path / "published"
    model, draw = models.make(), np.random.default_rng(0)
    publisher = tfs.keras.Publisher(folder, model=model)
    dense = model.layers[-1].kernel
    with models.Recorded(folder, models.probe()) as recorded:
        models.train(model, draw)
        publisher.publish()
        good = model(models.probe()).numpy()
        recorded.wait(1)
        np.testing.assert_array_equal(recorded.predict(), good)
        kernel = np.array(dense)
        dense.assign(kernel * np.nan)
        assert publisher.publish().manifest.not_finite
        until(lambda: "Publication 2 is not finite: " in caplog.text)
        assert recorded.follower.numbers()["lag"] == 1
        np.testing.assert_array_equal(recorded.predict(), good)
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
@pytest.mark.parametrize("training", ["fixed"], indirect=True)
def test_bad_requests_are_refused(recorded, tmp_path, training, inputs, message):
    publish(tmp_path / "published", training.folder, 1)
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


@pytest.mark.parametrize("training", ["growing"], indirect=True)
def test_it_runs_without_the_op_library(tmp_path, training):
    publish(tmp_path / "published", training.folder, 1)
    result = subprocess.run(
        [sys.executable, "-c", WITHOUT_LIBRARY, tmp_path / "published"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.stdout == "1 False True\n", result.stderr
