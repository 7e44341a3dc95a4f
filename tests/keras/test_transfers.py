"""How many tensors the tasks of a cluster send each other in a step of `fit`."""

import json
import operator
import os
import pathlib
import subprocess
import sys

import messages_sent
import programs
import pytest
from keras_variants import IS_KERAS_3

pytestmark = pytest.mark.ci

PROGRAM = pathlib.Path(__file__).with_name("transfers_program.py")
NUM_PS = 2
# For a step of one worker: messages from each server and to it, and the step's result.
FEWEST = 2 * NUM_PS + 1
LIMITS = {
    "two_layers": FEWEST,
    "shared_layers": FEWEST,
    "mixed_precision": FEWEST,
    "regularizers": FEWEST,
    "frozen": FEWEST,
    "without_gradient": FEWEST,
    "dropout": FEWEST,
    # Updated variables are sent to the worker, and back after their constraints.
    "constraints": 2 * FEWEST - 1,
    # Averages are read, assigned, and read again when the layer is called again.
    "batch_normalization": 2 * FEWEST - 1,
    "assigned_between_reads": FEWEST + 2,
    # Besides, there are row numbers. Rows and their gradients bring the others along.
    "embeddings": FEWEST + 1,
    "distributed_embedding": FEWEST + NUM_PS,
    "growing_tables": FEWEST + NUM_PS,
}
# A server that is not the gate's tells the worker that it has made a gradient.
OF_GROWING_TABLES = 1
# A worker tells the gate who it is, once in an execution.
OF_THE_GATE = 1
# The gate's permit, its answer, and the end of the pushes.
OF_A_STEP_BETWEEN_SERVERS = 3
# The round, the learning rate, and the end of what the other server does.
OF_AN_UPDATE = 3
# With Keras 2, where no counter is sent, some models send the fewest messages anyway.
is_fewer = operator.lt if IS_KERAS_3 else operator.le


def results(models, is_synchronous, per_execution, optimizer="AdamAsync"):
    """The program's results for models, in a process that logs its messages."""
    arguments = (list(models), optimizer, is_synchronous, per_execution)
    finished = subprocess.run(
        [sys.executable, PROGRAM, *map(json.dumps, arguments)],
        env={**os.environ, **programs.environment(), **messages_sent.ENVIRONMENT},
        capture_output=True,
        text=True,
        check=False,
    )
    assert finished.returncode == 0, finished.stdout[-5000:]
    return programs.result_in(finished.stdout)


@pytest.mark.parametrize(
    ("models", "is_synchronous", "per_execution"),
    [
        (tuple(LIMITS), False, 1),
        pytest.param(tuple(LIMITS), False, 8, marks=pytest.mark.slow),
        pytest.param(tuple(LIMITS), True, 1, marks=pytest.mark.slow),
        (("batch_normalization", "distributed_embedding"), True, 8),
    ],
)
def test_few_messages_and_the_same_bits(models, is_synchronous, per_execution):
    for name, result in results(models, is_synchronous, per_execution).items():
        assert result["differ"] == [], name
        assert result["is_finite"], name
        limit = LIMITS[name]
        if is_synchronous:
            limit += OF_THE_GATE / per_execution
            limit += OF_GROWING_TABLES * (name == "growing_tables")
        joined, stock = result["joined"], result["stock"]
        assert joined["messages"] <= limit, (name, limit, result)
        assert is_fewer(joined["messages"], stock["messages"]), (name, result)
        if name == "distributed_embedding" and is_synchronous and IS_KERAS_3:
            # Updates of Keras 2 compute on the gate's server what another one needs.
            most = OF_A_STEP_BETWEEN_SERVERS * per_execution + OF_AN_UPDATE
            assert len(joined["between_servers"]) <= most, (name, result)


@pytest.mark.parametrize(
    "is_synchronous", [False, pytest.param(True, marks=pytest.mark.slow)]
)
def test_many_layers_send_as_few_messages_as_two(is_synchronous):
    result = results(["twenty_layers"], is_synchronous, 1)["twenty_layers"]
    assert result["differ"] == []
    assert result["joined"]["messages"] <= FEWEST + OF_THE_GATE * is_synchronous
    assert result["stock"]["messages"] > 40


@pytest.mark.parametrize(
    "optimizer",
    [
        pytest.param("Adam", marks=pytest.mark.slow),
        pytest.param("averaged", marks=pytest.mark.slow),
        "clipped",
        pytest.param("scheduled", marks=pytest.mark.slow),
    ],
)
def test_optimizers_have_the_same_bits(optimizer):
    models = ["batch_normalization", "embeddings"]
    for name, result in results(models, False, 1, optimizer).items():
        assert result["differ"] == [], name
        joined, stock = result["joined"], result["stock"]
        assert is_fewer(joined["messages"], stock["messages"] / 1.5), result
