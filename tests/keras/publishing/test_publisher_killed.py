"""Publisher, servers and follower of a training are killed, again and again, by seeds.

Before each publication the trainer notes what the model predicts. Then it trains on,
and removes rows, while servers write. The follower compares each of its predictions.
"""

import collections
import os
import pathlib
import random
import signal
import time

import clusters
import numpy as np
import output_lines
import programs
import published_models as models
import pytest
import tensorflow as tf
import waiting
from keras_sync_replicas import iterations_of, make_strategy

import tf_syncrep as tfs
from tf_syncrep.serving import Follower

pytestmark = pytest.mark.slow

WORKERS, SERVERS = 2, 2
KEEP = 2
# So slow that updates overwrite rows that are not written yet.
BYTES_PER_SEC = 3e4


def train_for_ever(folder, run):
    """Trains and publishes as the coordinator, from the last checkpoint on."""
    folder, draw = pathlib.Path(folder), np.random.default_rng(run)
    strategy = make_strategy()
    with strategy.scope():
        optimizer = tfs.keras.SyncReplicas(
            tfs.keras.AdamAsync(0.05), WORKERS, WORKERS, spares=False
        )
        size = tfs.keras.Dynamic(models.SIZE, unused_for=5)
        model = models.make(size, optimizer=optimizer, is_normalized=False)
        optimizer.build(model.trainable_variables)
    checkpoint = tfs.keras.Checkpoint(folder / "saved", model=model)
    checkpoint.restore()
    publisher = tfs.keras.Publisher(
        folder / "published",
        model=model,
        full_every=4,
        keep=KEEP,
        max_bytes_per_sec=BYTES_PER_SEC,
    )
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
    variables = model.trainable_variables

    @tf.function
    def step(ids, targets):
        with optimizer.step(), tf.GradientTape() as tape:
            loss = tf.reduce_mean((model(ids, training=True) - targets) ** 2)
            gradients = tape.gradient(loss, variables)
            optimizer.apply_gradients(zip(gradients, variables, strict=True))

    def update():
        most = int(draw.integers(1, models.SIZE))  # so that some ids come seldom
        for _ in range(WORKERS):
            coordinator.schedule(step, args=models.batch(draw, most))
        coordinator.join()
        if not draw.integers(3):
            tfs.keras.maintain_tables(model)

    with optimizer.updater(strategy) as updater:
        while True:
            updater.drain()
            note = folder / "notes" / f"{iterations_of(optimizer)}-{run}.npy"
            np.save(note, model(models.probe()).numpy())
            publication = publisher.publish()
            if checkpoint.saving is None or checkpoint.saving.is_over:
                checkpoint.save()
            while not publication.is_over:
                update()
            publication.wait()
            update()


def follow(folder):
    """Serves, and prints of each version if all of its predictions are as noted."""
    folder, seen = pathlib.Path(folder), set()
    notes = collections.defaultdict(set)
    with Follower(folder / "published", poll_secs=0.02) as follower:
        follower.wait()
        while True:
            with follower.reading() as model:
                predict = model.signatures["serving_default"]
                found = predict(**models.probe())["output_0"].numpy().tobytes()
                version, updates = follower.version, follower.updates
            if version not in seen:
                for note in (folder / "notes").glob(f"{updates}-*.npy"):
                    notes[updates].add(np.load(note).tobytes())
            is_right = found in notes[updates]
            if not is_right or version not in seen:
                what = "served" if is_right else "wrong"
                print(f"{what} {version} of update {updates}", flush=True)
            seen.add(version)


class Tasks(clusters.Cluster):
    """The tasks of a training, and a follower; all of them can be killed."""

    def __init__(self, folder):
        super().__init__(WORKERS, SERVERS)
        self._folder, self._runs = folder, 0
        self.followed = output_lines.Lines()

    def start_chief(self):
        self._runs += 1
        command = programs.call_command(train_for_ever, str(self._folder), self._runs)
        self.start("chief", command)

    def start_follower(self):
        command = programs.call_command(follow, str(self._folder))
        environ = {**os.environ, **programs.environment()}
        self._follower = programs.Program(command, environ, self.followed.add)

    def kill_and_restart(self, victim):
        if victim == "follower":
            self.kill_follower()
            self.start_follower()
            return
        self.kill(victim)
        if victim != "chief":
            self.wait("chief")  # It cannot go on.
            self.restart(victim)
        self.start_chief()

    def kill_follower(self):
        self._follower.send_signal(signal.SIGKILL)
        self._follower.wait()

    def __exit__(self, *error):
        super().__exit__(*error)
        self.kill_follower()


@pytest.mark.timeout(3600)
@pytest.mark.parametrize(
    ("seed", "publications"),
    [(0, 20), *(pytest.param(x, 200, marks=pytest.mark.soak) for x in range(1, 4))],
)
def test_no_prediction_is_wrong(tmp_path, seed, publications):
    draw = random.Random(seed)
    published = tmp_path / "published"
    (tmp_path / "notes").mkdir()

    def newest():
        return max((x.number for x in models.manifests(published)), default=0)

    with Tasks(tmp_path) as tasks:
        tasks.start_follower()
        tasks.start_chief()
        victims = []
        while (number := newest()) < publications:
            wanted = number + draw.randint(1, 4)
            waiting.until(
                lambda n=wanted: newest() >= n, lambda: tasks.output("chief")[-5000:]
            )
            time.sleep(draw.uniform(0, 0.5))  # to be killed at any moment
            if not victims:  # Each has its turn.
                victims = ["chief", "follower", *tasks.names("ps")]
                draw.shuffle(victims)
            tasks.kill_and_restart(victims.pop())
        tasks.kill("chief")
        last = newest()
        tasks.followed.wait_for(rf"^served {last} ")
        lines = tasks.followed.of("stdout")
    assert not [line for line in lines if line.startswith("wrong")]
    served = {int(line.split()[1]) for line in lines if line.startswith("served")}
    assert len(served) > publications / 2
    # What is left of unfinished ones is none of those that are loaded.
    full = [x.number for x in models.manifests(published) if x.state["full"]]
    for number in full:
        tf.saved_model.load(f"{published}/{number}")
    assert len(full) <= KEEP
