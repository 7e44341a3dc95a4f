"""Keras' preprocessing layers within a model that trains on a cluster."""

import pathlib

import clusters
import keras_variants
import programs
import pytest

pytestmark = pytest.mark.ci

PROGRAM = pathlib.Path(__file__).with_name("fit_preprocessing_program.py")
KINDS = (
    "arrays",
    "dataset",
    "dataset and steps",
    "function",
    "function and steps",
    "PyDataset",
    "generator",
)
RAGGED_KINDS = ("ragged arrays", "ragged dataset", "ragged dataset and steps")
# These choose layers in Python, when a function is traced.
CHOOSING = {"AugMix", "RandAugment"}
executions = pytest.mark.parametrize("executions", [1, 2])


@pytest.fixture(scope="module")
def losses():
    with clusters.Cluster(num_workers=2, num_ps=2) as cluster:
        return programs.run(PROGRAM, env=cluster.environment())


def test_all_layers_of_keras_are_in_the_model(losses):
    assert sorted(losses["found"]) == sorted(losses["made"])


@executions
@pytest.mark.parametrize("kind", KINDS)
def test_layers_compute_on_workers_what_they_do_in_one_process(
    losses, kind, executions
):
    found = losses[f"{kind}, {executions} at once"]
    if kind in ("PyDataset", "generator") and not keras_variants.IS_KERAS_3:
        # Its own fit refuses them, too: such batches have no shapes.
        assert "`TextVectorization` to tokenize strings, the input rank" in found
    else:
        assert found == pytest.approx(losses["expected"], rel=1e-5)


@executions
@pytest.mark.parametrize("kind", RAGGED_KINDS)
def test_layers_compute_the_same_of_ragged_tensors(losses, kind, executions):
    names = {"Discretization", "Hashing", "IntegerLookup", "Rescaling", "StringLookup"}
    assert names <= {*losses["take ragged"]}
    found = losses[f"{kind}, {executions} at once"]
    assert found == pytest.approx(losses["expected of ragged"], rel=1e-5)


def test_layers_for_images_compute_the_same_and_draw_once_for_each_step(losses):
    """Of those that are random, losses tell that they give numbers."""
    expected = losses["images"]["one process"]
    found = losses["images"]["workers"]
    assert found["loss"] == pytest.approx(expected["loss"], rel=1e-5)
    for name in expected["drawn"].keys() - CHOOSING:
        assert found["drawn"][name] == expected["drawn"][name], name
    if keras_variants.IS_KERAS_3:
        assert expected["drawn"]["RandomFlip"] == losses["images"]["steps"]
