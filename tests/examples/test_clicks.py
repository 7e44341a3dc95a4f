"""The made-up clicks of the examples."""

import clicks
import numpy as np
import pytest


def test_a_seed_gives_one_order_and_another_seed_another():
    first, again, other = (next(clicks.batches(seed)) for seed in (1, 1, 2))
    for name in ("user", "item", "click"):
        np.testing.assert_array_equal(first[name], again[name])
    assert np.mean(first["user"] == other["user"]) < 0.1


@pytest.mark.ci
def test_what_one_worker_sees_tells_what_another_one_will():
    seen = np.zeros([2, clicks.NUM_USERS, clicks.NUM_ITEMS])
    for seed in (0, 1):
        batch = next(clicks.batches(seed, size=400_000))
        np.add.at(seen[seed], (batch["user"], batch["item"]), 2 * batch["click"] - 1)
    left, strengths, right = np.linalg.svd(seen[0], full_matrices=False)
    predicted = (left[:, :2] * strengths[:2]) @ right[:2]
    agreement = np.mean(np.sign(predicted[seen[1] != 0] * seen[1][seen[1] != 0]))
    assert agreement > 0.5
