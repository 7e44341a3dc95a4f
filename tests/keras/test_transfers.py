"""How many tensors the tasks of a cluster send one another in a step of `fit`."""

import os
import pathlib
import subprocess
import sys

import messages_sent
import programs
import pytest

PROGRAM = pathlib.Path(__file__).with_name("transfers_program.py")
NUM_PS = 2
# In a step of one worker: from and to each server, and what the step returns.
FEWEST = 2 * NUM_PS + 1
ASYNCHRONOUS = {
    "two_layers": FEWEST,
    "shared_layers": FEWEST,
    "mixed_precision": FEWEST,
    # A server that has a variable reads it for the other, which has its constraint's
    # operands, after it was updated.
    "constraints": FEWEST + 4,
    "regularizers": FEWEST,
    "frozen": FEWEST,
    "without_gradient": FEWEST,
    # The averages are read, assigned, and read again by the layer's second call.
    "batch_normalization": FEWEST + 4,
    "dropout": FEWEST,
    "assigned_between_reads": FEWEST + 2,
    # The rows' numbers, the rows and their gradient.
    "embeddings": FEWEST + 3,
    "distributed_embedding": FEWEST + 3 * NUM_PS,
}
OPTIMIZERS = ("Adam", "averaged", "clipped", "scheduled")


def results(models, optimizer="AdamAsync", is_synchronous=False, per_execution=1):
    """What the program says of models, in a process that logs what is sent."""
    arguments = (list(models), optimizer, is_synchronous, per_execution)
    finished = subprocess.run(
        [sys.executable, PROGRAM, *map(programs.json.dumps, arguments)],
        env={**os.environ, **programs.environment(), **messages_sent.ENVIRONMENT},
        capture_output=True,
        text=True,
        check=False,
    )
    assert finished.returncode == 0, finished.stdout[-5000:]
    return programs.result_in(finished.stdout)
