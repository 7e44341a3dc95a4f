"""The barrier of the benchmarks: nobody goes on before all have arrived."""

import importlib
import pathlib

from waiting import in_thread

BENCHMARKS = pathlib.Path(__file__).parents[2] / "benchmarks"
NUMBER, ROUNDS = 3, 50
DEADLINE_SECS = 30.0


def test_nobody_is_a_step_ahead_of_anybody(monkeypatch):
    monkeypatch.syspath_prepend(BENCHMARKS)
    barrier = importlib.import_module("harness.barrier")
    arrived = [0] * NUMBER
    ahead = []

    def run(index, end):
        for step in range(1, ROUNDS + 1):
            arrived[index] = step
            end.wait()
            ahead.extend(step - other for other in arrived if other < step)

    with barrier.serve(NUMBER) as folder:
        barriers = [barrier.Barrier(folder, i) for i in range(NUMBER)]
        for one in [in_thread(run, i, barriers[i]) for i in range(NUMBER)]:
            one.result(DEADLINE_SECS)
    assert arrived == [ROUNDS] * NUMBER
    assert ahead == []
