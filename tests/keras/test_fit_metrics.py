"""Every metric of Keras under tfs.keras.fit with two workers, beside one process."""

import pathlib

import clusters
import keras_variants
import numpy as np
import programs
import pytest

pytestmark = pytest.mark.ci

PROGRAM = pathlib.Path(__file__).with_name("fit_metrics_program.py")
NUM_BATCHES = 20
# These are of the last batch alone, or random.
NOT_COMPARED = {"computed", "weight", "drawing", "drawn"}
# Steps of an execution: by day one for Keras 3, and several for Keras 2.
per_execution = pytest.mark.parametrize(
    "steps",
    [
        pytest.param(1, marks=() if keras_variants.IS_KERAS_3 else pytest.mark.slow),
        pytest.param(3, marks=pytest.mark.slow if keras_variants.IS_KERAS_3 else ()),
    ],
)


@pytest.fixture(scope="module")
def outcome(request):
    steps = programs.wanted(request, "steps")
    with clusters.Cluster(num_workers=2, num_ps=2) as cluster:
        yield programs.run(PROGRAM, steps, env=cluster.environment())


@per_execution
@pytest.mark.parametrize("what", ["fit", "evaluate", "afterwards"])
def test_every_metric_is_what_one_process_computes(outcome, what, steps):
    expected, actual = outcome["expected"], outcome["actual"][str(steps)]
    assert len(expected) > 35
    # Values of the last batch alone do not come from metrics.
    assert expected.keys() - actual[what].keys() <= {"one", *NOT_COMPARED}
    for name in actual[what].keys() - NOT_COMPARED:
        np.testing.assert_allclose(
            actual[what][name], expected[name], rtol=2e-5, err_msg=name
        )


@per_execution
def test_what_batches_show_is_never_torn_and_nothing_is_written_on_servers(
    outcome, steps
):
    actual = outcome["actual"][str(steps)]
    assert actual["ones"] == [1.0]
    assert actual["differences"] == [2.0]
    assert actual["written"] == [0.0]


@per_execution
def test_optimizers_in_dicts_and_lists_and_counters_of_layers_count_every_step(
    outcome, steps
):
    actual = outcome["actual"][str(steps)]
    assert actual["iterations"] == [2 * NUM_BATCHES] * 2
    assert actual["counted"] == 2 * NUM_BATCHES


@per_execution
def test_random_metric_adds_up_what_was_drawn_which_is_new_in_each_step(outcome, steps):
    actual = outcome["actual"][str(steps)]
    assert len(actual["drawn"]) == 2 * -(-NUM_BATCHES // steps)
    # Without a generator TensorFlow seeds an op at random, by a state of the process
    # that is inherited where one is forked, as these workers are.
    same = 0 if keras_variants.IS_KERAS_3 else len(actual["drawn"]) // 2
    assert len({*actual["drawn"]}) >= len(actual["drawn"]) - same
    if steps == 1:  # or callbacks see some of them
        in_last_epoch = sum(actual["drawn"][NUM_BATCHES:])
        np.testing.assert_allclose(actual["fit"]["drawing"], in_last_epoch, rtol=1e-5)
    if keras_variants.IS_KERAS_3:
        # In two epochs and the evaluation; the trace that builds the model draws none.
        assert actual["draws"] == 3 * NUM_BATCHES
