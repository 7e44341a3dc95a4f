"""Identities that hold between a gate's counters at any time."""

from typing import Any


def assert_identities(stats: dict[str, Any]) -> None:
    """Checks the three identities, and that workers' counters add up."""
    assert stats["admitted"] == (
        stats["committed"] + stats["aborted"] + stats["in_flight"]
    )
    assert stats["committed"] == stats["applied"] + stats["voided"] + stats["pending"]
    assert stats["rounds"] == stats["updates"] + stats["voids"]
    workers = stats["workers"].values()
    assert stats["committed"] == sum(worker["contributed"] for worker in workers)
    assert stats["voided"] == sum(worker["voided"] for worker in workers)
