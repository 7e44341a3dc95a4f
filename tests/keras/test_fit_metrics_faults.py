"""Metrics of tfs.keras.fit and evaluate while workers of the cluster are killed."""

import json
import pathlib
import sys

import clusters
import numpy as np
import programs
import pytest

PROGRAM = pathlib.Path(__file__).with_name("fit_metrics_faults_program.py")
# The number is the same as in the program.
BATCHES, EXAMPLES = 200, 4


@pytest.mark.slow
@pytest.mark.parametrize("per_execution", [1, 4])
def test_each_batch_counts_once_whoever_is_killed(per_execution):
    with clusters.Cluster(num_workers=2, num_ps=1) as cluster:
        arguments = json.dumps([per_execution])
        cluster.start("chief", [sys.executable, str(PROGRAM), arguments])
        # They are killed in both epochs, and in the evaluation.
        for number in range(1, 4):
            cluster.wait_for_output("chief", "UNDER WAY", occurrence=number)
            worker = f"worker-{number % 2}"
            cluster.kill(worker)
            cluster.restart(worker)
        assert cluster.wait("chief") == 0, cluster.output("chief")
        result = programs.result_in(cluster.output("chief"))
    counted = [*result["trained"], *result["evaluated"]]
    for (seen, examples), shown in zip(counted, result["results"], strict=True):
        assert max(seen) == 1
        # All metrics count the same steps.
        assert examples == EXAMPLES * sum(seen)
        assert shown == sum(seen)
    # A training step is not repeated only for its metrics: if the worker was lost after
    # the step, and before its result was fetched, its metrics are lost.
    for seen, _ in result["trained"]:
        assert np.count_nonzero(np.equal(seen, 0)) in (0, per_execution)
    for seen, _ in result["evaluated"]:
        assert min(seen) == 1
