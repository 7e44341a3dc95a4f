"""A short synchronous Keras training under random kills, stops and restarts."""

import random
import time

import pytest
from keras_sync_cluster import KerasSyncCluster

pytestmark = pytest.mark.ci

LEASE_SECS = 4.0
NUM_SEEDS = 50


def let_faults_happen(seed, tasks):
    """Kills and suspends tasks, determined by the seed, and lets all run again.

    Workers are killed and suspended, for less or for longer than their lease, perhaps
    several at once. Servers, without which training cannot go on, are only suspended.
    If a fault comes to a task that is down already, it waits until the task is up
    again.
    """
    draw = random.Random(seed)
    down = {}  # when to do what, by task name

    def bring_up(names, until=float("inf")):
        due = sorted((*down[name], name) for name in names if name in down)
        for at, start, name in due:
            if at <= until:
                time.sleep(max(0.0, at - time.monotonic()))
                del down[name]
                (tasks.start if start else tasks.resume)(name)

    for _ in range(draw.randint(3, 6)):
        what = draw.choice(["kill", "kill", "suspend", "suspend_server"])
        name = draw.choice(tasks.names("ps" if what == "suspend_server" else "worker"))
        for_secs = draw.choice([0.0, 0.2, 0.5, 1.5]) * LEASE_SECS * draw.random()
        begin = time.monotonic() + draw.choice([0.0, 0.1, 1.0]) * draw.random()
        print(what, name, for_secs, flush=True)
        bring_up(list(down), until=begin)
        bring_up([name])
        time.sleep(max(0.0, begin - time.monotonic()))
        (tasks.kill if what == "kill" else tasks.suspend)(name)
        down[name] = (time.monotonic() + for_secs, what == "kill")
    bring_up(list(down))


@pytest.mark.parametrize(
    "seed",
    [0, *(pytest.param(seed, marks=pytest.mark.soak) for seed in range(1, NUM_SEEDS))],
)
def test_no_schedule_of_faults_loses_or_repeats_a_gradient(seed, tmp_path):
    with KerasSyncCluster(
        tmp_path,
        num_workers=3,
        loop=("fit", "custom")[seed % 2],
        quorum=2 + seed % 3 // 2,
        shards=2 - seed % 2,
        lease_secs=LEASE_SECS,
        start_secs=LEASE_SECS,
    ) as cluster:
        cluster.start()
        cluster.wait_for_updates(1)
        let_faults_happen(seed, cluster.tasks)
        cluster.tasks.wait_until_ready(*cluster.tasks.names("worker"))
        cluster.tasks.wait_until_ready(*cluster.tasks.names("ps"))
        cluster.wait_for_updates()
        cluster.end()
        cluster.result()
