"""`tfs.keras.fit(prefetch_rows=True)`: rows that miss the update of one step."""

import pathlib

import clusters
import numpy as np
import prefetch_twin
import programs
import pytest
from prefetch_twin import EPOCHS, STEPS

pytestmark = pytest.mark.ci

PROGRAM = pathlib.Path(__file__).with_name("prefetch_program.py")
KINDS, SOURCES = ("distributed", "layers"), ("sent", "worker", "ends")
TRAININGS = [
    *(f"{kind} {source} early" for kind in KINDS for source in SOURCES),
    "distributed worker late",
    # Ids that depend on rows are known only when these have come.
    "twice worker early",
    "twice worker late",
]


@pytest.fixture(scope="module")
def results():
    with clusters.Cluster(num_workers=1, num_ps=2) as cluster:
        names = [*TRAININGS, "refused"]
        return programs.run(PROGRAM, names, env=cluster.environment())


@pytest.mark.parametrize("name", TRAININGS)
def test_each_step_misses_the_update_of_the_one_before(results, name):
    is_early, is_twice = name.endswith("early"), name.startswith("twice")
    expected, losses, errors = prefetch_twin.trained(is_early, is_twice)
    other, *_ = prefetch_twin.trained(not is_early, is_twice)
    result = results[name]
    # The tables may be one variable, one behind the other.
    weights, expected = (
        np.concatenate([np.ravel(x) for x in some])
        for some in (result["weights"], expected)
    )
    np.testing.assert_allclose(weights, expected, rtol=1e-4, atol=1e-5)
    assert np.max(np.abs(other[0].ravel() - expected[: other[0].size])) > 1e-3
    assert result["iterations"] == EPOCHS * STEPS
    np.testing.assert_allclose(result["history"]["loss"], losses, rtol=1e-4)
    np.testing.assert_allclose(result["history"]["mae"], errors, rtol=1e-4)
    assert result["batches"] == [3, 7, 9] * EPOCHS


def test_refuses_updates_that_are_synchronous_and_rows_that_may_go(results):
    assert results["refused"] == {
        "synchronous": "prefetch_rows is for asynchronous training: all gradients of a "
        "synchronous update are computed with the same weights. "
        "Received: prefetch_rows=True with SyncReplicas",
        "growing": "prefetch_rows is for tables of a fixed size: a lookup in a table "
        "that grows changes what the next one finds. Received: prefetch_rows=True with "
        "table growing_words",
    }
