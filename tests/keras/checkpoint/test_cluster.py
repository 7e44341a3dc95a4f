"""Checkpoints of a training on a cluster, beside one that runs in one process."""

import shutil

import checkpoint_models as models
import checkpoint_steps
import clusters
import numpy as np
import programs
import pytest
import tensorflow as tf
import waiting
from keras_sync_replicas import make_strategy
from same import assert_same

import tf_syncrep as tfs
from tf_syncrep.python.checkpoint.directory import Directory

pytestmark = pytest.mark.ci

STEPS_OF_WRITER = checkpoint_steps.STEPS
WORKERS, SERVERS = 2, 2
STEPS = 40
# So many batches overwrite rows while a checkpoint is being written. Then training
# waits, so that on a slow machine there are as many checkpoints as on a fast one.
BATCHES_MEANWHILE = 8


class Savings(tf.keras.callbacks.Callback):
    """Collects facts about the checkpoints."""

    def __init__(self, checkpoint):
        super().__init__()
        self.checkpoint = checkpoint
        self.savings = []
        self.batches = 0

    def on_train_batch_end(self, batch, logs=None):
        saving = self.checkpoint.saving
        if saving is None:
            return
        if saving not in self.savings:
            self.savings.append(saving)
            self.batches = 0
        self.batches += 1
        if self.batches == BATCHES_MEANWHILE:
            saving.wait_until_over()


def trained(folder, quorum, epochs, steps, options):
    """Trains as the coordinator, and continues from a checkpoint if there is one.

    `quorum` is None without SyncReplicas; FOLDER.npz has the state at the end.
    """
    strategy = make_strategy()
    with strategy.scope():
        model = models.make(
            wrap=quorum
            and (lambda x: tfs.keras.SyncReplicas(x, quorum, quorum, spares=False))
        )
    checkpoint = tfs.keras.Checkpoint(folder, **options)
    savings = Savings(checkpoint)
    history = tfs.keras.fit(
        model,
        models.dataset,
        epochs=epochs,
        steps_per_epoch=steps,
        verbose=0,
        callbacks=[checkpoint, savings],
    )
    np.savez(f"{folder}.npz", **models.state_of(model))
    restored = checkpoint.restored
    return {
        "epochs": history.epoch,
        "restored": restored and [restored.path, restored.iterations],
        "iterations": int(np.asarray(model.optimizer.iterations)),
        "kept_bytes": [x.kept_bytes for x in savings.savings],
        "errors": [str(x.error) for x in savings.savings if x.error],
    }


def train(folder, cluster, **options):
    arguments = arguments_of(folder, **options)
    return programs.call(trained, *arguments, env=cluster.environment())


def arguments_of(folder, quorum=WORKERS, epochs=2, steps=STEPS, **options):
    # Writing is slow enough that updates overwrite rows before they are written.
    options = {
        "every_n_steps": 9,
        "keep": 100,
        "max_bytes_per_sec": 1e8,
        **options,
    }
    return str(folder), quorum, epochs, steps, options


class Twin:
    """The same training in one process, with the given number of updates."""

    def __init__(self):
        self.model = models.make()
        self.updates = 0

    def after(self, updates):
        ids, targets = (tf.constant(x) for x in models.batch())
        assert updates >= self.updates
        for _ in range(updates - self.updates):
            self.model.train_on_batch(ids, targets)
        self.updates = updates
        return models.state_of(self.model), models.slots_of(self.model, "m")


def restored(folder, number):
    """A model in one process into which a checkpoint was restored."""
    directory = Directory(folder)
    model = models.make()
    checkpoint = tfs.keras.Checkpoint(folder, model=model)
    (manifest,) = (x for x in directory.manifests() if x.number == number)
    checkpoint._engine._restore(checkpoint._contents_of_model(), manifest)
    return model


@pytest.fixture(scope="module")
def synchronous(tmp_path_factory):
    folder = tmp_path_factory.mktemp("synchronous")
    with clusters.Cluster(num_workers=WORKERS, num_ps=SERVERS) as cluster:
        # This is more often than is needed: a checkpoint that is due while another one
        # is being written is skipped.
        result = train(folder, cluster, full_every=3, every_n_steps=5)
    return folder, result


def test_each_checkpoint_is_of_one_update_bit_for_bit(synchronous):
    folder, result = synchronous
    assert not result["errors"]
    manifests = Directory(folder).manifests()
    assert len(manifests) >= 4
    assert {len(x.chain) for x in manifests} == {1, 2, 3}
    twin = Twin()
    for manifest in manifests:
        state, slots = twin.after(manifest.state["iterations"])
        model = restored(folder, manifest.number)
        found = models.state_of(model)
        assert_same(found, state)
        assert_same(models.slots_of(model, "m"), slots)
        assert int(np.asarray(model.optimizer.iterations)) == twin.updates
    # There may be fewer if a worker was slow and its gradients came late.
    assert STEPS / 2 < manifests[-1].state["iterations"] <= STEPS
    assert manifests[-1].state["iterations"] == result["iterations"]


def test_rows_were_overwritten_while_they_were_written(synchronous):
    """Otherwise the test above would have shown little."""
    assert max(synchronous[1]["kept_bytes"]) > 0


@pytest.mark.slow
@pytest.mark.one_version
def test_other_numbers_of_tasks_and_quorums_go_on_with_and_without_synchrony(
    synchronous, tmp_path
):
    """From two servers and two workers to three and one, then to one and three."""
    before, updates = synchronous[0], synchronous[1]["iterations"]
    folder = tmp_path / "checkpoints"
    shutil.copytree(before, folder)
    with clusters.Cluster(num_workers=1, num_ps=3) as cluster:
        result = train(folder, cluster, quorum=1, epochs=3)
    # There, two gradients made an update; here each one does.
    assert (result["epochs"], result["restored"][1]) == ([2], updates)
    updates += STEPS
    assert result["iterations"] == updates
    assert_equal(Twin().after(updates)[0], folder)

    with clusters.Cluster(num_workers=3, num_ps=1) as cluster:
        result = train(folder, cluster, quorum=None, epochs=4)
    assert (result["epochs"], result["restored"][1]) == ([3], updates)
    assert not result["errors"]
    last = Directory(folder).manifests()[-1]
    assert last.state["iterations"] == result["iterations"] == updates + STEPS
    assert_equal(models.state_of(restored(folder, last.number)), folder)


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize(
    "steps", [("in part",), pytest.param(STEPS_OF_WRITER, marks=pytest.mark.soak)]
)
def test_coordinator_and_worker_die_while_one_is_written(tmp_path, steps):
    """Servers stop writing for a program that has ended, and do not disturb others."""
    directory = Directory(tmp_path)
    # Writing is slow: a full checkpoint takes two seconds, and training waits for it.
    # There is a checkpoint every 4 to 9 updates, so that this is twice what the deaths
    # need: about three checkpoints for each of `steps`.
    updates = 25 * len(steps) + 20
    options = {"full_every": 2, "keep": 4, "max_bytes_per_sec": 2e7}
    arguments = arguments_of(tmp_path, steps=updates, **options)
    command = programs.call_command(trained, *arguments)
    with clusters.Cluster(num_workers=WORKERS, num_ps=SERVERS) as cluster:
        cluster.start("chief", command)
        waiting.until(lambda: directory.manifests())
        for step in steps:
            last = checkpoint_steps.await_step(directory, step)
            cluster.kill("chief")
            assert directory.manifests()[-1].number in (last, last + 1)
            cluster.start("chief", command)
            waiting.until(lambda n=last: directory.manifests()[-1].number > n)
        for step in steps:
            checkpoint_steps.await_step(directory, step)
            cluster.kill("worker-0")
            cluster.restart("worker-0")
        status = cluster.wait("chief", secs=600)  # a machine may be busy
        assert status == 0, cluster.output("chief")
        result = programs.result_in(cluster.output("chief"))
    assert result["restored"]
    assert not result["errors"]
    assert not list(tmp_path.glob("*.writing"))
    twin = Twin()
    manifests = directory.manifests()
    assert len(manifests) >= 4
    for manifest in manifests:
        state, _ = twin.after(manifest.state["iterations"])
        found = models.state_of(restored(tmp_path, manifest.number))
        assert_same(found, state)
    # If a worker dies after its gradient has been counted, and before it has said so,
    # another one makes its step again.
    assert updates / 2 < result["iterations"] <= updates + len(steps)
    assert_equal(twin.after(result["iterations"])[0], tmp_path)


def assert_equal(state, folder):
    """Asserts that a state equals that of the program at its end."""
    with np.load(f"{folder}.npz") as result:
        assert_same(result, state)
