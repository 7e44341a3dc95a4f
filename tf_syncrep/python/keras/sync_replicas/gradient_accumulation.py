"""GradientAccumulation: an update of several batches, in one process."""

from typing import Any

import tensorflow as tf

from tf_syncrep.python.base.arguments import check_count
from tf_syncrep.python.keras import compat
from tf_syncrep.python.keras.sync_replicas.in_process_rounds import InProcessRounds
from tf_syncrep.python.keras.sync_replicas.rounds import RefusedRounds, Rounds
from tf_syncrep.python.keras.sync_replicas.rounds_optimizer import (
    ANOTHER,
    RoundsOptimizer,
)

__all__ = ["GradientAccumulation"]


@tf.keras.utils.register_keras_serializable(package="tf_syncrep")
class GradientAccumulation(RoundsOptimizer):
    r"""Makes one update from several batches, in one process.

    The gradients of `num_batches` batches are collected. Then the inner optimizer
    applies their mean once, with the same result as for one batch with the examples of
    all of them:

    $$w \leftarrow w - \mathrm{inner}\Big(\frac{1}{N} \sum_{i=1}^{N} g_i(w)\Big)$$

    Gradients of embeddings stay sparse, unlike with `gradient_accumulation_steps` of
    Keras 3, whose accumulators are as large as the tables. Clipping, weight decay,
    moving averages, schedules and `iterations` are the inner optimizer's, and apply to
    the update. The gradients of an incomplete round are not saved.

    On a cluster, `SyncReplicas` does the same with gradients of several workers.

    Args:
        inner_optimizer: the Keras optimizer that applies the means, or the name of one
            of Keras' own.
        num_batches: how many batches make up an update.
        reject_nonfinite: whether a gradient that contains a NaN or an infinity is
            dropped instead of applied.
        flush_last: whether an incomplete last round is applied at the end of `fit`,
            with the mean of its gradients; otherwise these are dropped.
        name: the optimizer's name.

    Raises:
        ValueError: an argument is out of range, or the inner optimizer is not suitable.

    Example:
    ```python
    optimizer = tfs.keras.GradientAccumulation(tfs.keras.AdamAsync(1e-3), 4)
    model.compile(optimizer, loss="mse", jit_compile=False)
    model.fit(words, targets)
    ```
    """

    _fixed = dict.fromkeys(("num_batches", "reject_nonfinite"), ANOTHER)

    def __init__(
        self,
        inner_optimizer: Any,
        num_batches: int,
        *,
        reject_nonfinite: bool = False,
        flush_last: bool = True,
        name: str = "GradientAccumulation",
    ):
        super().__init__(inner_optimizer, name)
        self.num_batches: int = check_count("num_batches", num_batches)
        self.reject_nonfinite: bool = bool(reject_nonfinite)
        self.flush_last: bool = bool(flush_last)
        self._rounds = self._make_rounds()

    def _make_rounds(self) -> Rounds:
        if tf.distribute.has_strategy():
            strategy = tf.distribute.get_strategy()
            return RefusedRounds(
                "GradientAccumulation trains in one process, without a strategy. "
                f"Received: {type(strategy).__name__}. Under ParameterServerStrategy "
                "use SyncReplicas."
            )
        return InProcessRounds(
            self.num_batches,
            self.reject_nonfinite,
            compat.native(self.iterations),
            self._update,
        )

    def stats(self) -> dict[str, Any]:
        """Reads the counters.

        Returns:
            Numbers by name: "step" (`iterations`), "quorum" and "updates", and the
            numbers of gradients "applied", "pending" and "rejected".
        """
        return self._rounds.stats()

    def get_config(self) -> dict[str, Any]:
        """Returns the configuration; `from_config` makes an equal optimizer of it."""
        return {
            "name": self.name,
            "inner_optimizer": tf.keras.optimizers.serialize(self.inner_optimizer),
            "num_batches": self.num_batches,
            "reject_nonfinite": self.reject_nonfinite,
            "flush_last": self.flush_last,
        }
