"""tfs.keras.fit while other tasks of its cluster are killed."""

import json
import pathlib
import sys

import clusters
import keras_variants
import programs
import pytest

PROGRAM = pathlib.Path(__file__).with_name("fit_faults_program.py")
STEPS, EXAMPLES = 300, 64

# Of what is killed here Keras 2 knows little: by night.
pytestmark = [] if keras_variants.IS_KERAS_3 else [pytest.mark.slow]


@pytest.fixture(scope="module", params=[1, pytest.param(8, marks=pytest.mark.slow)])
def trainings(request):
    """Returns results of a fit that lost workers and of one that lost a server.

    The steps of an execution come before them.
    """
    env = programs.environment()
    arguments = json.dumps([STEPS, request.param])
    with clusters.Cluster(num_workers=2, num_ps=1, env=env) as cluster:
        cluster.start("chief", [sys.executable, str(PROGRAM), arguments])
        # They are killed in the first and in the second epoch. TensorFlow itself waits
        # for a lost worker to come back before it accepts another one that has come
        # back.
        for number, worker in enumerate(["worker-1", "worker-0"], start=1):
            cluster.wait_for_output("chief", "UNDER WAY", occurrence=number)
            cluster.kill(worker)
            cluster.restart(worker)
        cluster.wait_for_output("chief", "UNDER WAY", occurrence=3)
        cluster.kill("ps-0")
        assert cluster.wait("chief") == 0, cluster.output("chief")
        return request.param, *programs.result_in(cluster.output("chief"))


def test_fit_goes_on_over_workers_that_are_killed_and_restarted(trainings):
    per_execution, training, _ = trainings
    assert training["raised"] is None
    assert training["steps"] == [STEPS, STEPS]
    # If a worker is lost during an execution, the execution is made again, so its steps
    # may count twice on servers, but not in metrics. The result of an execution that
    # was over may be lost.
    assert 2 * STEPS <= training["iterations"] <= 2 * (STEPS + per_execution)
    for examples in training["examples"]:
        lost = STEPS - examples / EXAMPLES
        assert lost in (0, 1, per_execution)
    assert training["loss"][1] < 0.5


def test_lost_parameter_server_ends_fit_with_an_error(trainings):
    *_, training = trainings
    assert "Unavailable" in training["raised"] or "/job:ps" in training["raised"]
