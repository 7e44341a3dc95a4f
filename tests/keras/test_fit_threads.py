"""`fit` on tasks that were told to have one thread for ops."""

import pathlib

import clusters
import prefetch_twin
import programs

from tf_syncrep.python.distribute import threads

PROGRAM = pathlib.Path(__file__).with_name("prefetch_program.py")


def test_a_worker_that_was_told_to_have_one_thread_does_not_stand_still():
    """It would wait in a step for a server, and answer none."""
    env = {threads.INTER_OP_VARIABLE: "1", threads.INTRA_OP_VARIABLE: "1"}
    name = "distributed worker late"
    with clusters.Cluster(num_workers=1, num_ps=2, env=env) as cluster:
        result = programs.run(PROGRAM, [name], env=cluster.environment())[name]
    assert result["iterations"] == prefetch_twin.EPOCHS * prefetch_twin.STEPS
