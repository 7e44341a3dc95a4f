"""The inputs of models with many embedding tables."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any

import numpy as np

# With so large an epsilon the weights depend on the number by which a gradient was
# divided.
ADAM: Mapping[str, Any] = {"learning_rate": 0.1, "epsilon": 1e-4}
# These are the widths of the dense layers behind the tables.
UNITS = (64, 1)


def batches(model: Mapping[str, Any], seed: int, number: int) -> np.ndarray:
    """Ids of shape [batches, tables, examples]."""
    random = np.random.default_rng(seed)
    shape = (number, model["tables"], model["examples"])
    if model["ids"] == "uniform":
        return random.integers(model["rows"], size=shape, dtype=np.int32)
    return ((random.zipf(1.2, shape) - 1) % model["rows"]).astype(np.int32)


def kernels(model: Mapping[str, Any]) -> list[np.ndarray]:
    """The initial kernels of the dense layers."""
    random = np.random.default_rng(0)
    sizes = (model["tables"] * model["width"], *UNITS)
    return [
        random.uniform(-0.1, 0.1, shape).astype(np.float32)
        for shape in itertools.pairwise(sizes)
    ]
