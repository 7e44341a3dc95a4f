"""Checkpoints of a training on a cluster, beside one that runs in one process."""

import json
import pathlib
import shutil
import sys

import checkpoint_models as models
import checkpoint_steps
import clusters
import numpy as np
import programs
import pytest
import tensorflow as tf
import waiting

import tf_syncrep as tfs
from tf_syncrep.python.checkpoint.directory import Directory

pytestmark = pytest.mark.ci

STEPS_OF_WRITER = checkpoint_steps.STEPS
PROGRAM = pathlib.Path(__file__).with_name("checkpoint_program.py")
WORKERS, SERVERS = 2, 2
STEPS = 40


def command_of(folder, **options):
    return [sys.executable, str(PROGRAM), json.dumps(arguments_of(folder, **options))]


def train(folder, cluster, **options):
    arguments = arguments_of(folder, **options)
    return programs.run(PROGRAM, arguments, env=cluster.environment())


def arguments_of(folder, quorum=WORKERS, epochs=2, steps=STEPS, **options):
    # Writing is slow enough that updates overwrite rows before they are written.
    options = {
        "every_n_steps": 9,
        "keep": 100,
        "max_bytes_per_sec": 1e8,
        **options,
    }
    return {
        "folder": str(folder),
        "quorum": quorum,
        "epochs": epochs,
        "steps": steps,
        "options": options,
    }


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
        for name, value in state.items():
            np.testing.assert_array_equal(found[name], value, err_msg=name)
        for value, expected in zip(models.slots_of(model, "m"), slots, strict=True):
            np.testing.assert_array_equal(value, expected)
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
    command = command_of(
        tmp_path,
        full_every=2,
        keep=4,
        max_bytes_per_sec=2e7,
        steps=updates,
    )
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
        for name, value in state.items():
            np.testing.assert_array_equal(found[name], value, err_msg=name)
    # If a worker dies after its gradient has been counted, and before it has said so,
    # another one makes its step again.
    assert updates / 2 < result["iterations"] <= updates + len(steps)
    assert_equal(twin.after(result["iterations"])[0], tmp_path)


def assert_equal(state, folder):
    """Asserts that a state equals that of the program at its end."""
    with np.load(f"{folder}.npz") as result:
        for name, value in state.items():
            np.testing.assert_array_equal(result[name], value, err_msg=name)
