"""A graph whose variables begin with what fits them of another one."""

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
import v1_checkpoint_models as models
import warm_models

import tf_syncrep as tfs

ROWS, WIDTH = 20_000, 16
PARTS = (None, 1, 2, 3)


def build(rows, parts, use_resource, optimizer, name="table", bias=3):
    """A graph with a table and a bias; returns what trains it."""
    step = tf.train.get_or_create_global_step()
    partitioner = tf.fixed_size_partitioner(parts) if parts else None
    with tf.variable_scope("", use_resource=use_resource, partitioner=partitioner):
        table = tf.get_variable(
            name, [rows, WIDTH], initializer=tf.random_normal_initializer(seed=rows)
        )
    with tf.variable_scope("", use_resource=use_resource):
        bias = tf.get_variable("bias", [bias, 2], initializer=tf.zeros_initializer())
    ids = tf.range(0, 20_000, 7) % rows
    rows = tf.nn.embedding_lookup(table, ids)
    loss = tf.reduce_sum(rows**2) + tf.reduce_sum((bias - 1.0) ** 2)
    return optimizer.minimize(loss, step)


def whole(session, name="table"):
    """The values of all variables, and parts of one joined, with their slots."""
    found = models.values(session)
    joined = {}
    for key in sorted(found, key=lambda x: (len(x), x)):
        if "/part_" in key and found[key].ndim == 2:
            head, _, rest = key.partition("/part_")
            tail = rest.partition("/")[2]
            joined.setdefault(f"{head}/{tail}".rstrip("/"), []).append(found[key])
        else:
            joined[key] = found[key]
    return {
        key: np.concatenate(x) if isinstance(x, list) else x
        for key, x in joined.items()
    }


def saved(path, optimizer, parts=2, use_resource=True):
    """Saves a trained graph by the hook; returns its values."""
    with tf.Graph().as_default():
        train_op = build(ROWS, parts, use_resource, optimizer())
        hook = tfs.train.CheckpointSaverHook(path, save_steps=2, full_every=2)
        with tf.train.MonitoredSession(hooks=[hook]) as session:
            for _ in range(3):
                session.run(train_op)
            return session.run_step_fn(lambda step_context: whole(step_context.session))


@pytest.mark.parametrize("parts", PARTS)
@pytest.mark.parametrize("use_resource", [True, False])
def test_a_larger_table_keeps_its_first_rows_and_slots(parts, use_resource, tmp_path):
    def optimizer():
        return tfs.train.AdamAsyncOptimizer(0.01)

    there = saved(str(tmp_path), optimizer)
    with tf.Graph().as_default(), tf.Session() as session:
        build(ROWS + 5, parts, use_resource, optimizer(), "goods")
        session.run(tf.global_variables_initializer())
        before = whole(session)
        report = tfs.train.warm_start(
            session, str(tmp_path), rename={"table": "goods"}, skip="bias"
        )
        after = whole(session)
    num = 0
    for name, values in after.items():
        old = there.get(name.replace("goods", "table"))
        if name.startswith("bias"):
            np.testing.assert_array_equal(values, before[name], err_msg=name)
        elif values.ndim == 2:
            num += 1
            np.testing.assert_array_equal(values[:ROWS], old, err_msg=name)
            np.testing.assert_array_equal(values[ROWS:], before[name][ROWS:])
    assert num == 3
    assert after["global_step"] == 3
    powers = [x for name, x in after.items() if "goods" in name and x.ndim < 2]
    old = [x for name, x in there.items() if "table" in name and x.ndim < 2]
    assert powers
    assert set(map(float, np.ravel(powers))) == set(map(float, np.ravel(old)))
    assert (report["goods"].status, report["goods"].rows) == ("in part", ROWS)
    assert report["bias"].note == "skipped"


def test_slots_of_another_optimizer_begin_anew(tmp_path):
    there = saved(str(tmp_path), lambda: tfs.train.AdamAsyncOptimizer(0.01))
    with tf.Graph().as_default(), tf.Session() as session:
        build(ROWS, 3, True, tf.train.AdagradOptimizer(0.1, 0.5), bias=4)
        session.run(tf.global_variables_initializer())
        report = tfs.train.warm_start(session, str(tmp_path), pad=True)
        after = whole(session)
    np.testing.assert_array_equal(after["table"], there["table"])
    np.testing.assert_array_equal(after["table/Adagrad"], np.full([ROWS, WIDTH], 0.5))
    np.testing.assert_array_equal(after["bias"][:3], there["bias"])
    np.testing.assert_array_equal(after["bias"][3:], np.zeros([1, 2]))
    assert "begin anew: table/Adagrad is not in the source" in report["table"].note


def test_the_hook_takes_the_source_where_it_has_no_checkpoint(tmp_path):
    def optimizer():
        return tfs.train.AdamAsyncOptimizer(0.01)

    there = saved(str(tmp_path / "old"), optimizer)
    steps = []
    for _ in range(2):
        with tf.Graph().as_default():
            train_op = build(ROWS + 5, 3, True, optimizer())
            hook = tfs.train.CheckpointSaverHook(
                str(tmp_path / "new"), 600, warm_start=str(tmp_path / "old")
            )
            with tf.train.MonitoredSession(hooks=[hook]) as session:
                values = session.run_step_fn(
                    lambda step_context: whole(step_context.session)
                )
                if not steps:
                    np.testing.assert_array_equal(
                        values["table"][:ROWS], there["table"]
                    )
                steps.append((int(values["global_step"]), hook.warm_started is None))
                session.run(train_op)
    assert steps == [(3, False), (4, True)]


def test_fewer_rows_and_finalized_graphs_are_refused(tmp_path):
    saved(str(tmp_path), lambda: tf.train.GradientDescentOptimizer(0.1))
    with tf.Graph().as_default() as graph, tf.Session() as session:
        build(ROWS - 1, 2, True, tf.train.GradientDescentOptimizer(0.1))
        session.run(tf.global_variables_initializer())
        with pytest.raises(ValueError, match="`truncate`"):
            tfs.train.warm_start(session, str(tmp_path))
        report = tfs.train.warm_start(session, str(tmp_path), truncate=True)
        assert report["table"].note == "1 of 20,000 rows left out"
        graph.finalize()
        with pytest.raises(ValueError, match="graph is finalized"):
            tfs.train.warm_start(session, str(tmp_path))


@pytest.mark.eager
def test_a_checkpoint_of_keras_has_tables_of_fixed_size_for_it(tmp_path, monkeypatch):
    sizes = {"fixed": 10, "grows": tfs.keras.Dynamic(50)}
    old = warm_models.train(warm_models.make(sizes, None, monkeypatch, 3))
    warm_models.saved(old, tmp_path)
    with tf.Graph().as_default(), tf.Session() as session:
        for name in sizes:
            tf.get_variable(
                *(name, [10, warm_models.WIDTH]),
                partitioner=tf.fixed_size_partitioner(2),
            )
        session.run(tf.global_variables_initializer())
        before = whole(session)
        report = tfs.train.warm_start(
            session, str(tmp_path), rename={f"tables/{x}": x for x in sizes}
        )
        after = whole(session)
    there = warm_models.tables_of(old)["tables/fixed"]
    np.testing.assert_array_equal(after["fixed"], there)
    np.testing.assert_array_equal(after["grows"], before["grows"])
    assert report["grows"].note == "it grows there, and tables of sessions do not"
