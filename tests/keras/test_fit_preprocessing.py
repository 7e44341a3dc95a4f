"""Keras' preprocessing layers within a model that trains on a cluster."""

import pathlib

import clusters
import programs
import pytest

pytestmark = pytest.mark.ci

PROGRAM = pathlib.Path(__file__).with_name("fit_preprocessing_program.py")
KINDS = ("arrays", "dataset", "dataset and steps", "function", "function and steps")


@pytest.fixture(scope="module")
def losses():
    with clusters.Cluster(num_workers=2, num_ps=2) as cluster:
        return programs.run(PROGRAM, env=cluster.environment())


def test_all_layers_of_keras_are_in_the_model(losses):
    assert sorted(losses["found"]) == sorted(losses["made"])


@pytest.mark.parametrize("executions", [1, 2])
@pytest.mark.parametrize("kind", KINDS)
def test_layers_compute_on_workers_what_they_do_in_one_process(
    losses, kind, executions
):
    found = losses[f"{kind}, {executions} at once"]
    assert found == pytest.approx(losses["expected"], rel=1e-5)
