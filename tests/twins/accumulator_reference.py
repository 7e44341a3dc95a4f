"""Float64 NumPy twins of the accumulators.

They follow the documentation of the ops, one gradient at a time, without regard to
speed. A dense gradient is an array; a sparse one is a pair of indices and rows.
"""

import numpy as np


class ReferenceAccumulator:
    """What a `dense_accumulator` or `sparse_accumulator` should do."""

    def __init__(self, sparse, reduction_type="MEAN", mode="STEP"):
        self.sparse = sparse
        self.reduction_type = reduction_type
        self.mode = mode
        self.step = 0
        self.held = []
        self.stale = 0
        self.voided = 0

    def apply(self, step, gradient):
        """Offers a gradient; returns whether it was accepted."""
        if step < self.step:
            self.stale += 1
            return False
        if self.mode == "ROUND" and step > self.step:
            self.set_global_step(step)
        self.held.append(gradient)
        return True

    def set_global_step(self, step):
        if self.mode == "ROUND" and step != self.step:
            self.voided += len(self.held)
            self.held = []
        self.step = step

    def take(self):
        """The reduction of all held gradients; a pair if sparse."""
        gradients, self.held = self.held, []
        self.step += 1
        return self._reduce_sparse(gradients) if self.sparse else self._mean(gradients)

    def _mean(self, gradients):
        total = np.sum([np.asarray(g, np.float64) for g in gradients], axis=0)
        return total if self.reduction_type == "SUM" else total / len(gradients)

    def _reduce_sparse(self, gradients):
        sums, counts = {}, {}
        for indices, values in gradients:
            for index, row in zip(indices, np.asarray(values, np.float64), strict=True):
                sums[int(index)] = sums.get(int(index), 0.0) + row
            for index in {int(i) for i in indices}:
                counts[index] = counts.get(index, 0) + 1
        divisors = {
            "SUM": lambda index: 1,
            "MEAN": lambda index: counts[index],
            "CMEAN": lambda index: len(gradients),
        }
        divisor = divisors[self.reduction_type]
        rows = sorted(sums)
        return np.array(rows, np.int64), np.array([sums[i] / divisor(i) for i in rows])
