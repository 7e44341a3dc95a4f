"""Every metric of Keras under tfs.keras.fit with three workers, beside one process."""

import pathlib

import clusters
import numpy as np
import programs
import pytest

PROGRAM = pathlib.Path(__file__).with_name("fit_metrics_program.py")
NUM_BATCHES = 40


@pytest.fixture(scope="module")
def outcome():
    with clusters.Cluster(num_workers=3, num_ps=2) as cluster:
        yield programs.run(PROGRAM, env=cluster.environment())


@pytest.mark.parametrize("what", ["fit", "evaluate", "afterwards"])
def test_every_metric_is_what_one_process_computes(outcome, what):
    expected = outcome["expected"]
    assert len(expected) > 35
    for actual in outcome["actual"]:
        # Values of the last batch alone do not come from metrics.
        assert expected.keys() - actual[what].keys() <= {"one", "computed", "weight"}
        for name in actual[what].keys() - {"computed", "weight"}:
            np.testing.assert_allclose(
                actual[what][name], expected[name], rtol=2e-5, err_msg=name
            )


def test_what_batches_show_is_never_torn_and_nothing_is_written_on_servers(outcome):
    for actual in outcome["actual"]:
        assert actual["ones"] == [1.0]
        assert actual["differences"] == [2.0]
        assert actual["written"] == [0.0]


def test_optimizers_in_dicts_and_counters_of_layers_count_every_step(outcome):
    for actual in outcome["actual"]:
        assert actual["iterations"] == [2 * NUM_BATCHES] * 2
        assert actual["counted"] == 2 * NUM_BATCHES
