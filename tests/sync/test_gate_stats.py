"""A gate's counters as a dictionary, a line and scalars."""

import numpy as np

from tf_syncrep.python.sync import gate_stats

TASKS = ["/job:chief/replica:0/task:0", "/job:worker/replica:0/task:1"]
GATE = {
    "generation": 2,
    "closed": 0,
    "round": 9,
    "step": 7,
    "updates": 6,
    "applied": 12,
    "late": 1,
    "stale": 2,
    "rejected": 3,
    "voided": 4,
    "expired": 5,
}
# of each of the two workers
WORKER = {
    "contributed": (8, 4),
    "waited_ns": (1_500_000_000, 0),
    "held_up_ns": (0, 250_000_000),
    "live": (1, 0),
    "phase": (2, 0),
    "phase_ns": (3_000_000_000, 0),
}


def _stats():
    return gate_stats.to_dict(
        np.array([name.encode() for name in GATE]),
        np.array(list(GATE.values())),
        np.array([task.encode() for task in TASKS]),
        np.array([name.encode() for name in WORKER]),
        np.array(list(zip(*WORKER.values(), strict=True))),
    )


def test_dictionary_has_counters_in_pythons_own_types():
    stats = _stats()
    workers = stats.pop("workers")
    assert stats == GATE
    assert all(type(value) is int for value in stats.values())
    assert workers == {
        TASKS[0]: {
            "contributed": 8,
            "waited_secs": 1.5,
            "held_up_secs": 0.0,
            "live": True,
            "phase": "computing",
            "phase_secs": 3.0,
        },
        TASKS[1]: {
            "contributed": 4,
            "waited_secs": 0.0,
            "held_up_secs": 0.25,
            "live": False,
            "phase": "idle",
            "phase_secs": 0.0,
        },
    }
    assert workers[TASKS[1]]["live"] is False
    empty = np.zeros([0, len(WORKER)], np.int64)
    names = [name.encode() for name in WORKER]
    stats = gate_stats.to_dict([b"step"], [0], [], names, empty)
    assert stats == {"step": 0, "workers": {}}


def test_line_says_it_all():
    assert gate_stats.to_line(_stats()) == (
        "step 7: 6 updates of 12 gradients; dropped 1 late, 2 stale, 3 rejected, "
        "4 void; 5 leases expired; by worker: chief:0 8 (waited 1.5 s), "
        "worker:1 4 (waited 0.0 s)"
    )


def test_scalars_leave_out_what_only_numbers_rounds():
    numbers = ("updates", "applied", "late", "stale", "rejected", "voided", "expired")
    assert gate_stats.to_scalars(_stats()) == {
        **{f"sync/{name}": float(GATE[name]) for name in numbers},
        "sync/contributed/chief:0": 8.0,
        "sync/waited_secs/chief:0": 1.5,
        "sync/held_up_secs/chief:0": 0.0,
        "sync/live/chief:0": 1.0,
        "sync/contributed/worker:1": 4.0,
        "sync/waited_secs/worker:1": 0.0,
        "sync/held_up_secs/worker:1": 0.25,
        "sync/live/worker:1": 0.0,
        "sync/waited_secs": 1.5,
    }


def test_worker_that_is_not_named_as_a_task_keeps_its_name():
    stats = {"step": 0, "workers": {"somebody": {"live": True}}}
    assert gate_stats.to_scalars(stats) == {
        "sync/live/somebody": 1.0,
        "sync/waited_secs": 0.0,
    }
