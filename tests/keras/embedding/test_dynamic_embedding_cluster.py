"""Tables that grow on clusters of real processes, beside tables of fixed size."""

import os
import pathlib
import time

import clusters
import dynamic_models as models
import embedding_models
import keras_variants
import numpy as np
import programs
import pytest
import tensorflow as tf
from dynamic_models import OPTIMIZERS
from keras_sync_replicas import make_strategy
from keras_variants import for_ever
from same import assert_same

import tf_syncrep as tfs
from tf_syncrep.python.embedding.dynamic_lookup import owners

pytestmark = pytest.mark.ci

STEPS, EXAMPLES = 6, 12
# One batch follows the other, each as often as is needed for both workers to see it.
SEEDS = range(3)


def as_lists(tables):
    return {
        name: table.tolist() if isinstance(table, np.ndarray) else as_pair(table)
        for name, table in tables.items()
    }


def as_pair(table):
    return {"keys": table.keys.tolist(), "vectors": table.vectors.tolist()}


def repeated(seed):
    """The same batch for all workers, for ever."""
    ids, targets = models.batch(EXAMPLES, seed)
    return for_ever(models.as_keys(ids), targets)


def fit(model, dataset, steps):
    # Without a cluster, fit takes no function.
    data = dataset if "TF_CONFIG" in os.environ else dataset()
    tfs.keras.fit(model, data, steps_per_epoch=steps, verbose=0)


def sync(inner):
    return tfs.keras.SyncReplicas(inner, 2, 2, spares=False)


def synchronous(strategy):
    """The initial vectors, and those that were learned."""
    with strategy.scope():
        layer = models.growing("sgd").embedding
    layer(models.as_keys(models.all_ids()), training=True)
    tables = layer.get_embedding_tables()
    results = {}
    for name, make in OPTIMIZERS.items():
        with strategy.scope():
            model = models.growing(sync(make()))
        for seed in SEEDS:
            fit(model, repeated(seed), STEPS)
        results[name] = as_lists(model.tables())
    return tables, results


def own_batches(context):
    """Batches of a worker's own, which the other one never sees, for ever."""
    seeds = seeds_of_worker(int(context.input_pipeline_id))
    batches = [models.batch(EXAMPLES, seed) for seed in seeds]

    def stacked(parts):
        return {name: np.stack([x[name] for x in parts]) for name in models.FEATURES}

    ids = [ids for ids, _ in batches]
    inputs = (stacked([models.as_keys(x) for x in ids]), stacked(ids))
    targets = np.stack([targets for _, targets in batches])
    return tf.data.Dataset.from_tensor_slices((inputs, targets)).repeat()


def seeds_of_worker(worker):
    return range(10 * worker, 10 * worker + 3)


def by_workers_with_own_batches(strategy, tables):
    """The vectors that both kinds of tables have learned, from both workers' batches.

    A worker that was slow at first may have done nothing, so training goes on until the
    keys of both have rows.
    """
    results = {}
    for name, make in OPTIMIZERS.items():
        with strategy.scope():
            model = models.Both(sync(make()), tables)
        deadline = time.monotonic() + clusters.DEADLINE_SECS
        fit(model, own_batches, 2 * STEPS)
        while not all(_has_trained(worker, model.growing) for worker in range(2)):
            assert time.monotonic() < deadline
            fit(model, own_batches, 2 * STEPS)
        results[name] = [as_lists(x.tables()) for x in (model.growing, model.fixed)]
    return results


def _has_trained(worker, model):
    found = model.tables()
    return all(
        set(keys) <= set(found[table].keys.tolist())
        for table, keys in _keys_of_batch(seeds_of_worker(worker)[0]).items()
    )


def asynchronous(strategy):
    """A training in which workers meet new keys all the time."""
    with strategy.scope():
        model = models.growing(tfs.keras.AdamAsync(0.05))
    data = models.dataset(range(40), EXAMPLES, with_keys=True)
    history = tfs.keras.fit(model, data, epochs=3, verbose=0)
    stats = model.embedding.table_stats()
    evaluated = tfs.keras.evaluate(model, data, verbose=0)
    unknown = {name: x + 1 for name, x in models.as_keys(models.batch(4)[0]).items()}
    predicted = tfs.keras.predict(
        model, tf.data.Dataset.from_tensors(unknown), verbose=0
    )
    (bias,) = keras_variants.native(model.dense.bias).numpy()
    stats_after = model.embedding.table_stats()
    tables, weights = as_lists(model.tables()), model.get_weights()
    few = {
        name: table._replace(keys=table.keys[:3], vectors=table.vectors[:3])
        for name, table in model.tables().items()
    }
    model.embedding.set_embedding_tables(few)
    set_tables = as_lists(model.tables())
    model.set_weights(weights)
    return {
        "few": as_lists(few),
        "set": set_tables,
        "set_by_weights": as_lists(model.tables()),
        "losses": history.history["loss"],
        "rows": history.history["tables/rows"],
        "evaluated": evaluated,
        "stats": stats,
        "stats_after": stats_after,
        "of_unknown": np.unique(predicted).tolist(),
        "bias": float(bias),
        "devices": [keras_variants.native(x).device for x in model.embedding.variables],
        "tables": tables,
    }


def messages(strategy):
    """A pair for each way of training: with tables that grow, and with fixed ones."""
    makers = {
        "asynchronous": tfs.keras.AdamAsync,
        "synchronous": lambda: tfs.keras.SyncReplicas(tfs.keras.AdamAsync(), 1, 1),
    }

    def count(make_optimizer, size):
        sizes, (ids, _) = dict.fromkeys(models.SIZES, size), models.batch(EXAMPLES)
        found, _ = embedding_models.messages_of_a_step(
            strategy, lambda: models.Model(sizes).embedding, make_optimizer, ids
        )
        return found

    return {
        kind: [count(make, size) for size in (tfs.keras.Dynamic(99), 99)]
        for kind, make in makers.items()
    }


def evicting(strategy, make):
    """A training in which rows go, and come back."""
    with strategy.scope():
        model = models.growing(make(), unused_for=10)
    tables = {}
    for seed in (0, 1, 0):
        fit(model, repeated(seed), 60)
        tables[seed] = as_lists(model.tables())
    used = {seed: _keys_of_batch(seed) for seed in (0, 1)}
    return {"tables": tables, "used": used, "stats": model.embedding.table_stats()}


def set_while_full(strategy, num_servers):
    """The vectors of a full part that is set while a round is open."""
    keys = np.arange(99)
    before, after = keys[owners(keys, num_servers) == 0][:8].reshape([2, 4])
    with strategy.scope():
        layer = tfs.keras.Embedding(
            tfs.keras.Dynamic(4), 1, embeddings_initializer="zeros"
        )
        layer.build()
        optimizer = sync(tfs.keras.SGD(1.0))
        optimizer.build(layer.trainable_variables)

    def scheduled(ids, scale):
        with optimizer.step():
            with tf.GradientTape() as tape:
                loss = scale * tf.reduce_sum(layer(ids, training=True))
            variables = layer.trainable_variables
            optimizer.apply_gradients(
                zip(tape.gradient(loss, variables), variables, strict=True)
            )

    step = tf.function(scheduled)
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
    with optimizer.updater(strategy):
        for ids, scale in ((before, 100.0), (after[:1], 1.0), (after[:1], 1.0)):
            coordinator.schedule(step, (tf.constant(ids), tf.constant(scale)))
            coordinator.join()
            if ids is before:
                layer.set_embedding_table((after, np.full([4, 1], 7.0)))
    return layer.get_embedding_table().vectors.tolist()


def _keys_of_batch(seed):
    """The keys that a batch asks for, by table."""
    keys = models.as_keys(models.batch(EXAMPLES, seed)[0])
    by_table = {name: [] for name in models.SIZES}
    for feature, name in models.FEATURES.items():
        by_table[name].append(keys[feature].ravel())
    return {k: np.unique(np.concatenate(x)).tolist() for k, x in by_table.items()}


def checkpoints(strategy, folder):
    """Writes full checkpoints and checkpoints of changes, and makes another step."""
    results = {}
    for name, make in OPTIMIZERS.items():
        with strategy.scope():
            model = models.growing(make())
        checkpoint = tfs.keras.Checkpoint(f"{folder}/{name}", model=model, full_every=3)
        for seed in SEEDS:
            fit(model, repeated(seed), STEPS)
            checkpoint.save(wait=True)
        results[name] = with_next_step(model)
    return results


def restored(strategy, folder):
    """Restores what `checkpoints` has written, and makes the same step."""
    results = {}
    for name, make in OPTIMIZERS.items():
        with strategy.scope():
            model = models.growing(make())
        found = tfs.keras.Checkpoint(f"{folder}/{name}", model=model).restore()
        results[name] = {"path": found.path, **with_next_step(model)}
    return results


def with_next_step(model):
    tables = as_lists(model.tables())
    fit(model, repeated(0), 1)
    return {"tables": tables, "next": as_lists(model.tables())}


def trained(strategy, folder, num_servers):
    tables, synchronously = synchronous(strategy)
    results = {
        "initial": as_lists(tables),
        "synchronous": synchronously,
        "evicting_sync": evicting(strategy, lambda: sync(OPTIMIZERS["adam"]())),
    }
    if num_servers:
        results |= {
            "servers": num_servers,
            "folder": folder,
            "own_batches": by_workers_with_own_batches(strategy, tables),
            "asynchronous": asynchronous(strategy),
            "messages": messages(strategy),
            "evicting_async": evicting(strategy, OPTIMIZERS["adam_async"]),
            "set_while_full": set_while_full(strategy, num_servers),
            "checkpoints": checkpoints(strategy, folder),
            "restored": restored(strategy, folder),
        }
    return results


def train(folder, num_servers):
    """Without servers, in this process, what has one result only."""
    strategy = make_strategy() if num_servers else tf.distribute.get_strategy()
    return trained(strategy, folder, num_servers)


def restore(folder):
    return restored(make_strategy(), folder)


@pytest.fixture(
    scope="module",
    params=[*(pytest.param(number, marks=pytest.mark.slow) for number in (1, 2)), 3],
)
def training(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp(f"servers_{request.param}")
    return clusters.call(train, str(folder), request.param, num_ps=request.param)


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """What comes of the synchronous trainings in one process."""
    folder = tmp_path_factory.mktemp("alone")
    return programs.call(train, str(folder), 0)


def test_rows_begin_on_any_number_of_servers_as_in_one_process(training):
    for name, table in models.initial_tables().items():
        own = training["initial"][name]
        assert own["keys"] == table.keys.tolist()
        np.testing.assert_array_equal(np.float32(own["vectors"]), table.vectors)


def assert_as_fixed(growing, fixed, initial, optimizer):
    for name, table in growing.items():
        rows = np.searchsorted(models.KEYS[name], table["keys"])
        np.testing.assert_array_equal(models.KEYS[name][rows], table["keys"])
        tolerance = models.tolerance(optimizer)
        np.testing.assert_allclose(
            table["vectors"], np.asarray(fixed[name])[rows], tolerance, tolerance
        )
        initial_vectors = np.asarray(initial[name]["vectors"])[rows]
        assert not np.allclose(table["vectors"], initial_vectors, atol=0.02)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_synchronous_training_has_the_bits_of_one_process(training, alone, optimizer):
    """So it has the same ones by key on any number of servers."""
    assert_same(training["synchronous"][optimizer], alone["synchronous"][optimizer])


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_workers_with_batches_of_their_own_make_the_bits_of_fixed_tables(
    training, optimizer
):
    growing, fixed = training["own_batches"][optimizer]
    assert_as_fixed(growing, fixed, training["initial"], optimizer)


def test_workers_meet_new_keys_and_evaluation_makes_none(training):
    result = training["asynchronous"]
    for name in models.SIZES:
        stats = result["stats"][name]
        assert stats["rows"] == stats["admitted"] == models.SIZES[name]
        assert stats == result["stats_after"][name]
        keys = result["tables"][name]["keys"]
        assert keys == models.KEYS[name].tolist()
    assert result["rows"][-1] == sum(models.SIZES.values())
    assert result["losses"][-1] < 0.7 * result["losses"][0]
    # Ids without a row have zeros, so only the bias remains.
    np.testing.assert_allclose(result["of_unknown"], result["bias"], rtol=1e-6)


def test_tables_on_servers_are_set_by_key_and_by_weights(training):
    result = training["asynchronous"]
    assert_same(result["set"], result["few"])
    assert_same(result["set_by_weights"], result["tables"])


def test_gradients_of_an_open_round_reach_no_key_of_a_full_table_that_is_set(training):
    # Both gradients from then on make an update of the first key.
    assert training["set_while_full"] == [[6.0], [7.0], [7.0], [7.0]]


def test_each_server_has_vectors_keys_and_uses_of_its_part(training):
    devices = training["asynchronous"]["devices"]
    servers = training["servers"]
    assert len(devices) == 3 * servers
    assert len(set(devices)) == servers
    assert all(devices.count(device) == 3 for device in set(devices))


@pytest.mark.parametrize("kind", ["asynchronous", "synchronous"])
def test_a_step_sends_no_more_messages_than_with_fixed_tables(training, kind):
    growing, fixed = training["messages"][kind]
    # Before it is pruned, the graph has one more for each server: TensorFlow makes
    # zeros for the gradient of row numbers, which nobody uses.
    growing -= training["servers"]
    if kind == "synchronous":
        # Each server but the gate's says when the rows of a gradient were found.
        growing -= training["servers"] - 1
    assert growing <= fixed


@pytest.mark.parametrize("kind", ["evicting_async", "evicting_sync"])
def test_rows_that_are_not_used_go_and_begin_anew(training, kind):
    result = training[kind]
    for name, stats in result["stats"].items():
        used = {seed: result["used"][seed][name] for seed in ("0", "1")}
        # These are the ids of the last batch, and no others.
        assert result["tables"]["1"][name]["keys"] == used["1"]
        assert result["tables"]["0"][name]["keys"] == used["0"]
        once = set(used["0"]) - set(used["1"])
        back = set(used["1"]) - set(used["0"])
        assert stats["evicted"] == len(once) + len(back)
        assert stats["admitted"] == len(set(used["0"]) | set(used["1"])) + len(once)
        assert stats["refused"] == 0


def test_rows_that_begin_anew_learn_what_they_learn_in_one_process(training, alone):
    assert_same(training["evicting_sync"]["tables"], alone["evicting_sync"]["tables"])


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_checkpoints_are_restored_onto_servers_and_in_one_process(training, optimizer):
    result = training["checkpoints"][optimizer]
    restored = training["restored"][optimizer]
    assert restored["path"].endswith("ckpt-3")  # it needs the two before
    assert_same(restored["tables"], result["tables"])
    assert_same(restored["next"], result["next"])
    model = models.growing(OPTIMIZERS[optimizer]())
    folder = str(pathlib.Path(restored["path"]).parent)
    tfs.keras.Checkpoint(folder, model=model).restore()
    assert_as_told(model, result["tables"])
    ids, targets = models.batch(12, 0)
    # In another order, the sum over a row's gradients may have other bits.
    model.fit(models.as_keys(ids), targets, batch_size=12, shuffle=False, verbose=0)
    assert_as_told(model, result["next"])


def assert_as_told(model, tables):
    for name, (keys, vectors) in model.tables().items():
        assert keys.tolist() == tables[name]["keys"]
        np.testing.assert_array_equal(vectors, np.float32(tables[name]["vectors"]))


@pytest.mark.slow
@pytest.mark.parametrize("num_servers", [2, 1])
def test_checkpoints_are_restored_onto_another_number_of_servers(training, num_servers):
    found = clusters.call(
        restore, training["folder"], num_workers=1, num_ps=num_servers
    )
    for optimizer, restored in found.items():
        result = training["checkpoints"][optimizer]
        assert_same(restored["tables"], result["tables"])
        assert_same(restored["next"], result["next"])
