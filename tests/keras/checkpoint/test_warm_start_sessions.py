"""A model that begins with what fits it of a checkpoint of a v1 session."""

import numpy as np
import pytest
import tensorflow as tf
import tensorflow.compat.v1 as v1
from warm_models import WIDTH, dense_of, make, tables_of

import tf_syncrep as tfs
from tf_syncrep.python.checkpoint import source


def trained(folder, parts, has_hook):
    """Trains a graph, which is saved; returns the values of a table and of a bias."""
    with tf.Graph().as_default():
        step = v1.train.get_or_create_global_step()
        partitioner = v1.fixed_size_partitioner(parts) if parts else None
        with v1.variable_scope("model"):
            table = v1.get_variable("goods", [10, WIDTH], partitioner=partitioner)
            bias = v1.get_variable("bias", [1])
        loss = tf.reduce_sum(v1.nn.embedding_lookup(table, [1, 2, 9]) ** 2) + bias[0]
        train = tfs.train.AdamAsyncOptimizer(0.1).minimize(loss, step)
        values, saver = [tf.convert_to_tensor(table), bias], v1.train.Saver()
        hook = tfs.train.CheckpointSaverHook(folder, save_steps=1, full_every=2)
        with v1.train.MonitoredSession(hooks=[hook] * has_hook) as session:
            session.run(train)
            session.run(train)
            if not has_hook:
                session.run_step_fn(
                    lambda step_context: saver.save(
                        step_context.session, f"{folder}/model"
                    )
                )
            return session.run(values)


@pytest.mark.parametrize("has_hook", [True, False])
@pytest.mark.parametrize(("parts", "num_parts"), [(None, 3), (3, 2)])
def test_tables_and_variables_are_taken_by_names_that_are_mapped(
    has_hook, parts, num_parts, tmp_path, monkeypatch
):
    table, bias = trained(str(tmp_path), parts, has_hook)
    new = make({"goods": 12}, None, monkeypatch, num_parts)
    before = tables_of(new)
    report = tfs.keras.warm_start(
        new,
        tmp_path,
        rename={"model/goods": "tables/goods", "model/bias": "variables/top/bias"},
    )
    after = tables_of(new)
    np.testing.assert_array_equal(after["tables/goods"][:10], table)
    for name, values in before.items():
        begin = 10 if name == "tables/goods" else 0
        np.testing.assert_array_equal(after[name][begin:], values[begin:])
    np.testing.assert_array_equal(dense_of(new)["variables/top/bias"], bias)
    assert report["tables/goods"].rows == 10
    assert "slots begin anew: there are none" in report["tables/goods"].note
    assert "global_step" in report.of("not used")


@pytest.mark.parametrize("has_hook", [True, False])
@pytest.mark.parametrize("parts", [None, 3])
def test_a_table_becomes_one_that_grows(parts, has_hook, tmp_path, monkeypatch):
    """It is read some rows at a time."""
    monkeypatch.setattr(source, "_BYTES_AT_A_TIME", 3 * WIDTH * 4)
    table, _ = trained(str(tmp_path), parts, has_hook)
    new = make({"goods": tfs.keras.Dynamic(50)}, None, monkeypatch, 2)
    tfs.keras.warm_start(new, tmp_path, rename={"model/goods": "tables/goods"})
    rows = tables_of(new)["tables/goods"]
    assert sorted(rows) == list(range(10))
    np.testing.assert_array_equal([rows[i] for i in range(10)], table)
