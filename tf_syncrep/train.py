"""Optimizers, lookups, accumulators and placement for tf.compat.v1 graphs."""

from tf_syncrep.python.v1.accumulators import (
    ConditionalAccumulator,
    SparseConditionalAccumulator,
)
from tf_syncrep.python.v1.adagrad import AdagradOptimizer
from tf_syncrep.python.v1.adam_async import AdamAsyncOptimizer
from tf_syncrep.python.v1.checkpoint.saver_hook import CheckpointSaverHook
from tf_syncrep.python.v1.checkpoint.warm_start import warm_start
from tf_syncrep.python.v1.embedding_lookup import embedding_lookup
from tf_syncrep.python.v1.ftrl import FtrlOptimizer
from tf_syncrep.python.v1.gradient_descent import GradientDescentOptimizer
from tf_syncrep.python.v1.momentum import MomentumOptimizer
from tf_syncrep.python.v1.placement import (
    GreedyLoadBalancingStrategy,
    byte_size_load_fn,
)
from tf_syncrep.python.v1.publishing.publisher_hook import PublisherHook
from tf_syncrep.python.v1.sync_replicas.optimizer import SyncReplicasOptimizer

__all__ = [
    "AdagradOptimizer",
    "AdamAsyncOptimizer",
    "CheckpointSaverHook",
    "ConditionalAccumulator",
    "FtrlOptimizer",
    "GradientDescentOptimizer",
    "GreedyLoadBalancingStrategy",
    "MomentumOptimizer",
    "PublisherHook",
    "SparseConditionalAccumulator",
    "SyncReplicasOptimizer",
    "byte_size_load_fn",
    "embedding_lookup",
    "warm_start",
]
