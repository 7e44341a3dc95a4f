"""A trainer that publishes is killed at any moment, and begins anew in the folder."""

import random
import signal
import subprocess
import sys
import time

import numpy as np
import published_models as models
import pytest
import tensorflow as tf
from waiting import until

import tf_syncrep as tfs

pytestmark = pytest.mark.slow

KILLS = 3


def publish_for_ever(folder, wanted, run):
    """Publishes as fast as it can; notes before what is predicted at each version."""
    model = models.make(tfs.keras.Dynamic(models.SIZE, unused_for=2))
    draw = np.random.default_rng(int(run))
    publisher = tfs.keras.Publisher(folder, model=model, full_every=3)
    for updates in range(1, 10**6):
        models.train(model, draw, most=draw.integers(1, models.SIZE))
        tfs.keras.maintain_tables(model)
        np.save(f"{wanted}/{updates}-{run}.npy", model(models.probe()).numpy())
        publisher.publish()


PROGRAM = "import sys, test_killed_publisher as x; x.publish_for_ever(*sys.argv[1:])"


@pytest.mark.parametrize("seed", range(2))
def test_no_prediction_is_of_what_was_not_published(tmp_path, seed):
    draw = random.Random(seed)
    folder, wanted = tmp_path / "published", tmp_path / "wanted"
    wanted.mkdir()
    path = [*(x for x in sys.path if "tests" in x), str(__file__).rsplit("/", 1)[0]]
    seen = 0
    with models.Recorded(folder, models.probe()) as recorded:
        for run in range(KILLS):
            process = subprocess.Popen(
                [sys.executable, "-c", PROGRAM, folder, wanted, str(run)],
                env={"PYTHONPATH": ":".join(path), "PATH": "/usr/bin:/bin"},
            )
            try:
                until(
                    lambda seen=seen: recorded.follower.version > seen + 2,
                    told=lambda: f"version {recorded.follower.version}",
                )
                time.sleep(draw.uniform(0, 0.5))  # to be killed at any moment
            finally:
                process.send_signal(signal.SIGKILL)
                process.wait()
            seen = max(x.number for x in models.manifests(folder))
        recorded.wait(seen)
    assert len(recorded.predictions) > 2 * KILLS
    for version, prediction in recorded.predictions.items():
        notes = wanted.glob(f"{recorded.updates[version]}-*.npy")
        assert any(np.array_equal(np.load(x), prediction) for x in notes), version
    # What is left of unfinished ones is none of those that are loaded.
    for manifest in models.manifests(folder):
        if manifest.state["full"]:
            tf.saved_model.load(f"{folder}/{manifest.number}")
