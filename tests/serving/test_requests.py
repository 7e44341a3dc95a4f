"""Requests while versions come: each is answered by one of them."""

import concurrent.futures
import threading

import numpy as np
import published_models as models
import pytest

import tf_syncrep as tfs
from tf_syncrep.serving import Follower

VERSIONS, THREADS, REQUESTS = 15, 16, 1000


@pytest.mark.parametrize(
    "size",
    [models.SIZE, tfs.keras.Dynamic(models.SIZE, unused_for=2)],
    ids=["fixed", "growing"],
)
def test_a_thousand_requests_are_each_answered_by_the_version_that_they_see(
    tmp_path, size
):
    probe, is_over = models.probe(), threading.Event()

    def ask():
        found = []
        while len(found) * THREADS < REQUESTS or not is_over.is_set():
            with follower.reading() as model:
                (score,) = model.signatures["serving_default"](**probe).values()
                found.append((follower.version, score.numpy().tobytes()))
        return found

    with (
        Follower(tmp_path, poll_secs=0.001) as follower,
        concurrent.futures.ThreadPoolExecutor(THREADS) as threads,
    ):
        wanted = models.published(tmp_path, 1, size=size)
        follower.wait(1, models.DEADLINE_SECS)
        asking = [threads.submit(ask) for _ in range(THREADS)]
        try:
            # It begins anew in the same folder: one version is loaded, others applied.
            wanted |= models.published(
                tmp_path, VERSIONS, seed=7, size=size, full_every=4, keep=9
            )
            follower.wait(max(wanted), models.DEADLINE_SECS)
        finally:
            is_over.set()
        found = {x for call in asking for x in call.result(models.DEADLINE_SECS)}
        assert follower.numbers()["fulls"] == 2
    assert len({x.tobytes() for x in wanted.values()}) == len(wanted)
    assert len({version for version, _ in found}) > VERSIONS // 3
    for version, score in found:
        np.testing.assert_array_equal(np.frombuffer(score, "f4"), wanted[version][:, 0])
