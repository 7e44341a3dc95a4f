"""Optimizers and lookups for tf.compat.v1 graphs and sessions, and accumulators."""

from tf_syncrep.python.train.accumulators import (
    ConditionalAccumulator,
    SparseConditionalAccumulator,
)
from tf_syncrep.python.train.adagrad import AdagradOptimizer
from tf_syncrep.python.train.adam_async import AdamAsyncOptimizer
from tf_syncrep.python.train.checkpoint.saver_hook import CheckpointSaverHook
from tf_syncrep.python.train.embedding_lookup import embedding_lookup
from tf_syncrep.python.train.ftrl import FtrlOptimizer
from tf_syncrep.python.train.gradient_descent import GradientDescentOptimizer
from tf_syncrep.python.train.momentum import MomentumOptimizer
from tf_syncrep.python.train.sync_replicas.optimizer import SyncReplicasOptimizer

__all__ = [
    "AdagradOptimizer",
    "AdamAsyncOptimizer",
    "CheckpointSaverHook",
    "ConditionalAccumulator",
    "FtrlOptimizer",
    "GradientDescentOptimizer",
    "MomentumOptimizer",
    "SparseConditionalAccumulator",
    "SyncReplicasOptimizer",
    "embedding_lookup",
]
