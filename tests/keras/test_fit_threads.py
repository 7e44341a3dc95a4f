"""`fit` on tasks that were told to have one thread for ops."""

import pathlib

import clusters
import prefetch_twin
import programs
import pytest

from tf_syncrep.python.distribute import threads

PROGRAM = pathlib.Path(__file__).with_name("prefetch_program.py")
PASSES = pathlib.Path(__file__).with_name("fit_passes_program.py")
ONE_THREAD = {threads.INTER_OP_VARIABLE: "1", threads.INTRA_OP_VARIABLE: "1"}


def test_a_worker_that_was_told_to_have_one_thread_does_not_stand_still():
    """It would wait in a step for a server, and answer none."""
    name = "distributed worker late"
    with clusters.Cluster(num_workers=1, num_ps=2, env=ONE_THREAD) as cluster:
        result = programs.run(PROGRAM, [name], env=cluster.environment())[name]
    assert result["iterations"] == prefetch_twin.EPOCHS * prefetch_twin.STEPS


@pytest.mark.slow
def test_servers_of_one_thread_answer_while_workers_wait_for_gate_and_queue(tmp_path):
    name = "queue synchronous"
    with clusters.Cluster(num_workers=3, num_ps=2, env=ONE_THREAD) as cluster:
        env = cluster.environment()
        result = programs.run(PASSES, [[name], str(tmp_path)], env=env)[name]
    assert set(result["seen"]) == {2}
    assert result["stats"]["in_flight"] == 0
