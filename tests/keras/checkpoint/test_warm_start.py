"""A model that begins with what fits it of another one, row by row."""

import json
import shutil

import all_optimizers
import numpy as np
import pytest
import tensorflow as tf
from warm_models import (
    IN_PARTS,
    WIDTH,
    assert_all_equal,
    assert_same_by_key,
    dense_of,
    make,
    saved,
    tables_of,
    train,
    uses_of,
)

import tf_syncrep as tfs
from tf_syncrep.python.checkpoint import function_calls
from tf_syncrep.python.checkpoint.directory import DamagedError
from tf_syncrep.python.keras import compat
from tf_syncrep.python.keras.checkpoint.contents import contents_of

GROWS = tfs.keras.Dynamic(50)


@IN_PARTS
@pytest.mark.parametrize("full_every", [3, pytest.param(1, marks=pytest.mark.ci)])
def test_a_table_with_more_rows_keeps_the_first_ones(
    num_parts, from_parts, full_every, tmp_path, monkeypatch
):
    """So do its slots, and all else is taken as it is."""
    sizes = {"user": 10, "item": 7}
    old = train(make(sizes, None, monkeypatch, from_parts))
    checkpoint = saved(old, tmp_path, full_every=full_every)
    for _ in range(full_every - 1):
        train(old)
        checkpoint.save(wait=True)
    new = make({"user": 14, "item": 7}, None, monkeypatch, num_parts)
    before = tables_of(new)
    report = tfs.keras.warm_start(new, tmp_path)
    after, there = tables_of(new), tables_of(old)
    for name, values in there.items():
        num = len(values)
        np.testing.assert_array_equal(after[name][:num], values, err_msg=name)
        np.testing.assert_array_equal(after[name][num:], before[name][num:])
    # Powers of beta are those of a part; others are the same for all.
    assert (
        int(new.optimizer.iterations)
        == int(old.optimizer.iterations)
        == 3 * (full_every)
    )
    for old_layer, new_layer in zip(old.layers[-2:], new.layers[-2:], strict=True):
        for x, y in zip(old_layer.get_weights(), new_layer.get_weights(), strict=True):
            np.testing.assert_array_equal(x, y)
    user, item = report["tables/user"], report["tables/item"]
    assert (user.status, user.rows, user.of_rows) == ("in part", 10, 14)
    assert (item.status, item.rows, item.of_rows) == ("taken", 7, 7)
    assert user.bytes == 10 * WIDTH * 4 * 3
    assert report.of("initial") == ["optimizer/learning_rate"]
    assert not report.of("not used")


@IN_PARTS
def test_a_table_with_fewer_rows_needs_truncate(
    num_parts, from_parts, tmp_path, monkeypatch
):
    old = train(make({"user": 11}, None, monkeypatch, from_parts))
    saved(old, tmp_path)
    new = make({"user": 8}, None, monkeypatch, num_parts)
    before = tables_of(new), dense_of(new)
    with pytest.raises(ValueError, match=r"`truncate`.*tables/user of 8 rows.* has 11"):
        tfs.keras.warm_start(new, tmp_path)
    assert_all_equal((tables_of(new), dense_of(new)), before)
    report = tfs.keras.warm_start(new, tmp_path, truncate=True)
    for name, values in tables_of(old).items():
        np.testing.assert_array_equal(tables_of(new)[name], values[:8])
    assert report["tables/user"].status == "in part"
    assert report["tables/user"].note == "3 of 11 rows left out"


def test_a_checkpoint_that_has_lost_its_manifest_is_taken(tmp_path, monkeypatch):
    """It is read as ours, although it says no more how many rows tables have."""
    old = train(make({"user": 11}, None, monkeypatch, 2))
    saved(old, tmp_path)
    (tmp_path / "ckpt-1.json").unlink()
    new = make({"user": GROWS}, None, monkeypatch, 3)
    tfs.keras.warm_start(new, tmp_path / "ckpt-1")
    rows, there = tables_of(new)["tables/user"], tables_of(old)["tables/user"]
    np.testing.assert_array_equal([rows[i] for i in range(11)], there)


@pytest.mark.parametrize(
    ("dtype", "num_parts"), [("bfloat16", 1), ("float16", 3), ("float64", 2)]
)
def test_a_table_in_another_dtype_is_converted(num_parts, dtype, tmp_path, monkeypatch):
    """So is one that grows, whatever the other is, and back."""
    sizes = {"user": 10, "item": tfs.keras.Dynamic(50), "shop": 10, "tag": GROWS}
    others = {"user": 13, "item": GROWS, "shop": GROWS, "tag": 13}
    old = train(make(sizes, None, monkeypatch, 2), steps=2)
    saved(old, tmp_path / "old")
    new = make(others, None, monkeypatch, num_parts, dtype=dtype)
    report = tfs.keras.warm_start(new, tmp_path / "old")
    saved(new, tmp_path / "new")
    back = make(sizes, None, monkeypatch, 2)
    tfs.keras.warm_start(back, tmp_path / "new", truncate=True)
    for table in map("tables/{}".format, sizes):
        there, here, again = (by_number(tables_of(x)[table]) for x in (old, new, back))
        assert len(there) > 4
        assert f"float32 became {dtype}" in report[table].note
        for number, row in there.items():
            expected = tf.cast(row, dtype).numpy()
            assert here[number].dtype == dtype
            np.testing.assert_array_equal(here[number], expected, err_msg=table)
            np.testing.assert_array_equal(again[number], expected.astype(np.float32))


def by_number(rows):
    """Rows by their numbers or keys."""
    return rows if isinstance(rows, dict) else dict(enumerate(rows))


def test_a_table_of_another_optimizer_keeps_its_vectors(tmp_path, monkeypatch):
    """Equal names of slots do not make them slots of the same kind."""
    optimizers = {
        "AdamAsync": lambda: tfs.keras.AdamAsync(0.01),
        "Adagrad": lambda: tfs.keras.Adagrad(0.01),
        "RowwiseAdagrad": lambda: tfs.keras.RowwiseAdagrad(0.01),
        "SGD": lambda: tf.keras.optimizers.SGD(0.01, momentum=0.9),
        "Lion": lambda: tf.keras.optimizers.Lion(0.01),
    }
    for number, (name, other) in enumerate(
        [("AdamAsync", "Adagrad"), ("Adagrad", "RowwiseAdagrad"), ("SGD", "Lion")]
    ):
        folder = tmp_path / str(number)
        old = train(make({"user": 10}, optimizers[name](), monkeypatch, 2))
        saved(old, folder)
        new = make({"user": 10}, optimizers[other](), monkeypatch, 3)
        before = tables_of(new)
        report = tfs.keras.warm_start(new, folder)
        after = tables_of(new)
        for array, values in after.items():
            expected = tables_of(old) if array == "tables/user" else before
            np.testing.assert_array_equal(values, expected[array], err_msg=array)
        line = report["tables/user"]
        assert line.status == "in part"
        assert line.note == f"slots begin anew: they are of {name}, not of {other}"
        # An average of gradients in the dense layers is another one, too.
        assert report["variables/hidden/kernel"].status == "in part"


OPTIMIZERS = {
    **all_optimizers.KERAS_OPTIMIZERS,
    **{
        f"tfs.{name}": kind
        for name, kind in all_optimizers.rules_in(tfs.keras).items()
        if kind is not tfs.keras.LazyOptimizer
    },
    "LionOfMine": all_optimizers.LionOfMine,
    "SyncReplicas": lambda: tfs.keras.SyncReplicas(tfs.keras.AdamAsync(), 1),
}
if compat.IS_KERAS_3:
    OPTIMIZERS["LossScale"] = lambda: tf.keras.optimizers.LossScaleOptimizer(
        tf.keras.optimizers.Adam()
    )


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_all_of_an_optimizer_is_taken(name, tmp_path, monkeypatch):
    old = train(make({"user": 10}, OPTIMIZERS[name](), monkeypatch, 2))
    saved(old, tmp_path)
    new = make({"user": 10}, OPTIMIZERS[name](), monkeypatch, 3)
    report = tfs.keras.warm_start(new, tmp_path)
    assert_all_equal([tables_of(new)], [tables_of(old)])
    initial = {name: report[name].note for name in report.of("initial")}
    assert {"as the program sets it"} <= {*initial.values()}
    if name == "Adafactor":
        assert "it is not known of which variable it is" in initial.values()
        return
    assert all("learning_rate" in name for name in initial)
    there = dense_of(old)
    for array, values in dense_of(new).items():
        # Those of parts have names of their own.
        if array in there and array not in initial:
            np.testing.assert_array_equal(values, there[array], err_msg=array)
    assert report.of("in part") == report.of("not used") == []


def test_slots_that_no_optimizer_has_are_not_used(tmp_path):
    saved(train(make({"user": 10})), tmp_path)
    new = make({"user": 10}, tfs.keras.SGD(0.1))
    report = tfs.keras.warm_start(new, tmp_path)
    for name in ("tables/user", "variables/top/kernel"):
        assert report[name].status == "taken"
        assert report[name].note == "slots in the source are not used"


@pytest.mark.parametrize("skip", ["slots", "slots/beta_1_power/tables/user"])
def test_slots_are_left_out_together(skip, tmp_path):
    """Powers of beta have no rows, and belong to the slots that have."""
    saved(train(make({"user": 10})), tmp_path)
    new = make({"user": 10})
    before = tables_of(new)
    report = tfs.keras.warm_start(new, tmp_path, skip=skip)
    assert report["tables/user"].note == "slots begin anew: skipped"
    del before["tables/user"]
    after = {name: x for name, x in tables_of(new).items() if name in before}
    assert_all_equal([after], [before])


def test_names_are_mapped_and_left_out(tmp_path, monkeypatch):
    old = train(make({"user": 10, "item": 7}))
    saved(old, tmp_path)
    for rename in (
        {"tables/item": "tables/goods"},
        lambda name: "tables/goods" if name == "tables/item" else name,
    ):
        new = make({"user": 10, "goods": 7}, None, monkeypatch, 3)
        before = tables_of(new), dense_of(new)
        report = tfs.keras.warm_start(
            new, tmp_path, rename=rename, skip=["tables/user", "variables/hidden"]
        )
        after, there = tables_of(new), tables_of(old)
        for kind in ("", "slots/m/", "slots/v/"):
            np.testing.assert_array_equal(
                after[f"{kind}tables/goods"], there[f"{kind}tables/item"]
            )
            np.testing.assert_array_equal(
                after[f"{kind}tables/user"], before[0][f"{kind}tables/user"]
            )
            name = f"{kind}variables/hidden/kernel"
            np.testing.assert_array_equal(dense_of(new)[name], before[1][name])
        assert report["tables/goods"].source == "tables/item"
        assert "was tables/item" in str(report)
        user = report["tables/user"]
        assert (user.note, user.rows, user.of_rows) == ("skipped", 0, 10)


def test_a_dense_variable_of_another_shape_begins_anew_or_is_padded(tmp_path):
    """With one more table, the first layer has more inputs."""
    old = train(make({"user": 10}))
    saved(old, tmp_path)
    sizes = {"user": 10, "item": 7}
    new = make(sizes, dense=5)
    before = dense_of(new)
    report = tfs.keras.warm_start(new, tmp_path)
    line = report["variables/hidden/kernel"]
    assert line.status == "initial"
    assert line.note == "it is float32[4, 3] there, and float32[8, 5] here"
    kernel = "variables/hidden/kernel"
    np.testing.assert_array_equal(dense_of(new)[kernel], before[kernel])
    new = make(sizes, dense=5)
    before = dense_of(new)
    report = tfs.keras.warm_start(new, tmp_path, pad=True)
    for name in (kernel, f"slots/m/{kernel}", f"slots/v/{kernel}"):
        expected = before[name].copy()
        expected[:4, :3] = dense_of(old)[name]
        np.testing.assert_array_equal(dense_of(new)[name], expected, err_msg=name)
    assert report[kernel].note == "the common block of [4, 3] and [8, 5]"
    assert (report[kernel].rows, report[kernel].of_rows) == (4, 8)


@IN_PARTS
def test_a_table_that_grows_takes_the_rows_of_all_ids(
    num_parts, from_parts, tmp_path, monkeypatch
):
    keys = np.array([-5, 3, 2**40, 77, 1, 9])
    old = make({"user": tfs.keras.Dynamic(100)}, None, monkeypatch, from_parts)
    saved(train(old, keys), tmp_path)
    new = make({"user": tfs.keras.Dynamic(300)}, None, monkeypatch, num_parts)
    report = tfs.keras.warm_start(new, tmp_path)
    assert_same_by_key(tables_of(new), tables_of(old))
    assert report["tables/user"].status == "taken"
    assert report["tables/user"].rows == len(keys)
    # Both train on alike.
    for model in (old, new):
        train(model, keys, 1)
    assert_same_by_key(tables_of(new), tables_of(old), 1e-6)


@pytest.mark.parametrize("num_parts", [3, pytest.param(1, marks=pytest.mark.ci)])
def test_the_least_used_rows_go_where_there_is_no_room(
    num_parts, tmp_path, monkeypatch
):
    old = make({"user": tfs.keras.Dynamic(1000)}, None, monkeypatch, 2)
    for num in (300, 100, 50):  # The first ones were used most.
        train(old, np.arange(num) * 7, 30)
    saved(old, tmp_path)
    size = tfs.keras.Dynamic(60)
    new = make({"user": size}, None, monkeypatch, num_parts)
    report = tfs.keras.warm_start(new, tmp_path)
    after, there = tables_of(new)["tables/user"], tables_of(old)["tables/user"]
    (table,) = contents_of(new).keyed_tables
    uses, keys = uses_of(old, "tables/user"), np.array([*there])
    owners, kept = table.owners(keys), 0
    for number, part in enumerate(table.parts):
        own = sorted(keys[owners == number], key=lambda k: uses[k], reverse=True)
        here = [k for k in own if k in after]
        num = min(len(own), part.num_rows)
        assert len(here) == num
        assert sorted(uses[k] for k in here) == sorted(uses[k] for k in own[:num])
        kept += num
    for key, values in after.items():
        np.testing.assert_array_equal(values, there[key])
    assert report["tables/user"].note == (
        f"the {len(keys) - kept} least used of {len(keys)} rows left out"
    )


@IN_PARTS
def test_numbers_of_rows_are_keys_and_the_other_way_round(
    num_parts, from_parts, tmp_path, monkeypatch
):
    old = train(make({"user": 11}, None, monkeypatch, from_parts))
    saved(old, tmp_path / "fixed")
    grows = make({"user": tfs.keras.Dynamic(50)}, None, monkeypatch, num_parts)
    report = tfs.keras.warm_start(grows, tmp_path / "fixed")
    there = tables_of(old)
    for name, rows in tables_of(grows).items():
        assert sorted(rows) == list(range(11))
        np.testing.assert_array_equal([rows[i] for i in range(11)], there[name])
    assert "the number of a row is its key" in report["tables/user"].note
    saved(grows, tmp_path / "grows")
    back = make({"user": 13}, None, monkeypatch, from_parts)
    before = tables_of(back)
    report = tfs.keras.warm_start(back, tmp_path / "grows")
    for name, values in tables_of(back).items():
        np.testing.assert_array_equal(values[:11], there[name])
        np.testing.assert_array_equal(values[11:], before[name][11:])
    assert (report["tables/user"].rows, report["tables/user"].of_rows) == (11, 13)
    small = make({"user": 6}, None, monkeypatch, from_parts)
    with pytest.raises(ValueError, match=r"a row for each key.*has key (6|7|8|9|10)"):
        tfs.keras.warm_start(small, tmp_path / "grows")
    report = tfs.keras.warm_start(small, tmp_path / "grows", truncate=True)
    np.testing.assert_array_equal(
        tables_of(small)["tables/user"], there["tables/user"][:6]
    )
    assert "5 keys that are no row left out" in report["tables/user"].note


def test_a_table_that_grows_must_have_room_for_all_rows_of_a_fixed_one(tmp_path):
    saved(train(make({"user": 11})), tmp_path)
    new = make({"user": tfs.keras.Dynamic(10)})
    with pytest.raises(ValueError, match=r"larger max_rows.*tables/user"):
        tfs.keras.warm_start(new, tmp_path)


def test_sources_that_are_none(tmp_path):
    model = make({"user": 10})
    for source, message in (
        (3, "source=3"),
        (tmp_path / "missing", "where there is neither"),
        (tmp_path, "which has none"),
    ):
        with pytest.raises(ValueError, match=message):
            tfs.keras.warm_start(model, source)
    (tmp_path / "ckpt-1.writing").mkdir()
    with pytest.raises(ValueError, match="which has none"):
        tfs.keras.warm_start(model, tmp_path)


def test_a_checkpoint_that_is_being_written_is_none(tmp_path):
    """Nor is what a program left that was killed as it wrote."""
    old = make({"user": 10})
    checkpoint = saved(old, tmp_path)
    expected = tables_of(old)
    train(old)
    checkpoint.save(wait=True)
    (tmp_path / "ckpt-2.json").unlink()
    (tmp_path / "ckpt-2.writing").mkdir()
    new = make({"user": 10})
    with pytest.raises(ValueError, match=r"ckpt-2', which is being written"):
        tfs.keras.warm_start(new, tmp_path / "ckpt-2")
    report = tfs.keras.warm_start(new, tmp_path)
    assert report.source.endswith("ckpt-1")
    assert_all_equal([tables_of(new)], [expected])


def test_tasks_with_other_working_directories_find_the_files(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    saved(make({"user": 10}), "run")
    tf.train.Checkpoint(x=tf.Variable(1.0)).write("alone")
    for source, prefix in (("run", "run/ckpt-1"), ("alone", "alone")):
        report = tfs.keras.warm_start(make({"user": 10}), source)
        assert report.source == str(tmp_path / prefix)


def test_a_damaged_source_is_passed_over_or_refused(tmp_path):
    old = make({"user": 10})
    checkpoint = saved(old, tmp_path)
    expected = tables_of(old)
    train(old)
    checkpoint.save(wait=True)
    (data,) = tmp_path.glob("ckpt-2.data*")
    data.write_bytes(data.read_bytes()[:-1])
    new = make({"user": 10})
    report = tfs.keras.warm_start(new, tmp_path)
    assert report.source.endswith("ckpt-1")
    assert_all_equal([tables_of(new)], [expected])
    with pytest.raises(Exception, match=r"ckpt-2.*bytes, not"):
        tfs.keras.warm_start(new, tmp_path / "ckpt-2")
    # Of a later version of this package.
    for path in tmp_path.glob("ckpt-*.json"):
        content = json.loads(path.read_text())
        content["checkpoint"]["format"] = 99
        path.write_text(json.dumps(content))
    with pytest.raises(Exception, match="None of the checkpoints"):
        tfs.keras.warm_start(new, tmp_path)


def written_by_a_session(folder):
    """A checkpoint of a Saver."""
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        for name, shape in (("tables/user", [10, WIDTH]), ("variables/top/bias", [1])):
            tf.compat.v1.get_variable(name, shape)
        session.run(tf.compat.v1.global_variables_initializer())
        tf.compat.v1.train.Saver().save(session, f"{folder}/ckpt")


def saved_with_keys(folder):
    saved(train(make({"user": 10, "item": GROWS})), folder)


@pytest.mark.parametrize("write", [saved_with_keys, written_by_a_session])
@pytest.mark.parametrize("damage", ["bytes that changed", "an end that is missing"])
def test_damage_is_found_wherever_it_is(write, damage, tmp_path):
    """In what servers read, and in what the coordinator does."""
    write(tmp_path / "whole")
    (data,) = (tmp_path / "whole").glob("*.data*")
    content, model = data.read_bytes(), make({"user": 10, "item": GROWS})
    for number in range(num := 12):
        at, folder = len(content) * number // num, tmp_path / str(number)
        shutil.copytree(tmp_path / "whole", folder)
        rest = bytes([content[at] ^ 1]) + content[at + 1 :]
        rest = rest if "changed" in damage else b""
        (folder / data.name).write_bytes(content[:at] + rest)
        with pytest.raises(DamagedError, match=f"{number}"):
            tfs.keras.warm_start(model, folder / data.name.partition(".data")[0])


def test_a_model_that_is_not_built_is_refused(tmp_path):
    model = tf.keras.Sequential([tf.keras.layers.Dense(1)])
    with pytest.raises(ValueError, match="needs a model that is built"):
        tfs.keras.warm_start(model, tmp_path)


def test_the_report_is_printed(tmp_path, capsys):
    saved(train(make({"user": 10, "item": 7})), tmp_path)
    report = tfs.keras.warm_start(make({"user": 12}), tmp_path)
    printed = capsys.readouterr().out
    assert str(report) in printed
    assert "tables/item" in report.of("not used")
    head, *lines = printed.splitlines()
    assert f"Warm start from {tmp_path}/ckpt-1: " in head
    assert any(
        line.split()[:6] == ["tables/user", "in", "part", "10", "of", "12"]
        for line in lines
    )


def test_a_checkpoint_goes_on_from_its_own_folder_and_else_takes_the_source(
    tmp_path, monkeypatch
):
    """A start that dies in the middle of it is made anew by the next one."""
    old = train(make({"user": 10}))
    saved(old, tmp_path / "old")

    def start():
        return tfs.keras.Checkpoint(
            tmp_path / "new",
            model=make({"user": 12}),
            warm_start={"source": tmp_path / "old", "skip": "variables/top"},
        )

    def die(self, pairs):
        raise KeyboardInterrupt

    with monkeypatch.context() as context:
        context.setattr(function_calls.FunctionCalls, "assign", die)
        with pytest.raises(KeyboardInterrupt):
            start().restore()
    checkpoint = start()
    assert checkpoint.restore() is None
    assert checkpoint.warm_started["tables/user"].rows == 10
    for name, values in tables_of(old).items():
        np.testing.assert_array_equal(tables_of(checkpoint.model)[name][:10], values)
    train(checkpoint.model)
    checkpoint.save(wait=True)
    again = start()
    assert again.restore().iterations == 6
    assert again.warm_started is None
    assert_all_equal([tables_of(again.model)], [tables_of(checkpoint.model)])


def test_fit_takes_the_source_and_begins_with_its_first_epoch(tmp_path):
    saved(train(make({"user": 10})), tmp_path / "old")
    new = make({"user": 10})
    checkpoint = tfs.keras.Checkpoint(tmp_path / "new", warm_start=tmp_path / "old")
    data = tf.data.Dataset.from_tensors((np.zeros([4, 1], np.int64), np.ones([4, 1])))
    history = tfs.keras.fit(new, data, epochs=2, callbacks=[checkpoint], verbose=0)
    assert history.epoch == [0, 1]
    assert int(new.optimizer.iterations) == 3 + 2
    assert checkpoint.warm_started["tables/user"].status == "taken"


@pytest.mark.parametrize(("rows", "num_parts"), [(1, 3), (2, 1), (4, 2)])
def test_padding_is_no_row(rows, num_parts, tmp_path, monkeypatch):
    """In files each part has equally many rows, some of which may be padding."""
    old = make({"user": rows}, None, monkeypatch, 3)
    saved(old, tmp_path)
    new = make({"user": 7}, None, monkeypatch, num_parts)
    before = tables_of(new)["tables/user"]
    tfs.keras.warm_start(new, tmp_path)
    after = tables_of(new)["tables/user"]
    np.testing.assert_array_equal(after[:rows], tables_of(old)["tables/user"])
    np.testing.assert_array_equal(after[rows:], before[rows:])
