"""The model of `embedding_trainer` in PyTorch, in this process."""

from __future__ import annotations

import importlib
import importlib.util
import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

FBGEMM = "PyTorch, fbgemm's row-wise Adagrad, one process"


def kinds() -> dict[str, type]:
    """The contenders that can be timed here, by name; none without PyTorch."""
    found: dict[str, type] = {}
    if importlib.util.find_spec("torch"):
        found["PyTorch, EmbeddingBag and SparseAdam, one process"] = _Bags
        if importlib.util.find_spec("fbgemm_gpu"):
            found[FBGEMM] = _Fbgemm
    return found


class _Training:
    """Tables of ones, and two dense layers with Adam."""

    is_adam: bool  # whether that is what trains the tables, too

    def __init__(
        self,
        model: Mapping[str, Any],
        dense: Sequence[np.ndarray],
        adam: Mapping[str, float],
        batches: np.ndarray,
    ):
        """Makes it.

        Args:
            model: as `Trainer` takes it.
            dense: the two layers' first kernels; biases begin with 0.
            adam: learning rate and epsilon.
            batches: ids of shape [batches, tables, examples].
        """
        self._torch: Any = importlib.import_module("torch")
        self._model = model
        self._adam = {"lr": adam["learning_rate"], "eps": adam["epsilon"]}
        self._dense = [
            self._torch.nn.Parameter(self._torch.from_numpy(x.copy()))
            for kernel in dense
            for x in (kernel, np.zeros(kernel.shape[1], np.float32))
        ]
        self._optimizers = [
            self._torch.optim.Adam(self._dense, **self._adam),
            *self.make_tables(),
        ]
        self._batches = self._torch.from_numpy(batches.astype(np.int64))
        self._next = 0

    def make_tables(self) -> list[Any]:
        """Makes the tables, and returns their optimizers."""
        raise NotImplementedError

    def look_up(self, ids: Any) -> Any:
        """The vectors of ids [tables, examples], side by side."""
        raise NotImplementedError

    def step(self, ids: Any) -> None:
        """One step on ids of shape [tables, examples]."""
        first, first_bias, second, second_bias = self._dense
        for optimizer in self._optimizers:
            optimizer.zero_grad()
        hidden = (self.look_up(ids) @ first + first_bias).tanh()
        loss = (hidden @ second + second_bias - 1.0).square().mean()
        loss.backward()
        for optimizer in self._optimizers:
            optimizer.step()

    def run(self, steps: int) -> float:
        """Makes steps; returns the seconds."""
        begin = time.perf_counter()
        for _ in range(steps):
            self.step(self._batches[self._next % len(self._batches)])
            self._next += 1
        return time.perf_counter() - begin


class _Bags(_Training):
    """A bag for each table."""

    is_adam = True

    def make_tables(self) -> list[Any]:
        size = (self._model["rows"], self._model["width"])
        self._bags = [
            self._torch.nn.EmbeddingBag(*size, mode="sum", sparse=True)
            for _ in range(self._model["tables"])
        ]
        for bag in self._bags:
            self._torch.nn.init.ones_(bag.weight)
        weights = [bag.weight for bag in self._bags]
        return [self._torch.optim.SparseAdam(weights, **self._adam)]

    def look_up(self, ids: Any) -> Any:
        vectors = [bag(x[:, None]) for bag, x in zip(self._bags, ids, strict=True)]
        return self._torch.cat(vectors, dim=1)

    def rows(self, ids: np.ndarray) -> np.ndarray:
        """Rows of the first table."""
        return self._bags[0].weight.detach().numpy()[ids]


class _Fbgemm(_Training):
    """All tables in one operator, which trains them in the backward pass."""

    is_adam = False

    def make_tables(self) -> list[Any]:
        tbe = importlib.import_module(
            "fbgemm_gpu.split_table_batched_embeddings_ops_training"
        )
        common = importlib.import_module(
            "fbgemm_gpu.split_table_batched_embeddings_ops_common"
        )
        size = (self._model["rows"], self._model["width"])
        location = (common.EmbeddingLocation.HOST, tbe.ComputeDevice.CPU)
        self._tables = tbe.SplitTableBatchedEmbeddingBagsCodegen(
            [(*size, *location)] * self._model["tables"],
            optimizer=tbe.OptimType.EXACT_ROWWISE_ADAGRAD,
            learning_rate=self._adam["lr"],
            eps=self._adam["eps"],
        )
        for weights in self._tables.split_embedding_weights():
            self._torch.nn.init.ones_(weights)
        return []

    def look_up(self, ids: Any) -> Any:
        offsets = self._torch.arange(ids.numel() + 1)
        return self._tables(ids.reshape(-1), offsets)

    def rows(self, ids: np.ndarray) -> np.ndarray:
        """Rows of the first table."""
        weights = self._tables.split_embedding_weights()[0]
        return weights.detach().numpy()[ids]
