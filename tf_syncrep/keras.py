"""Optimizers of whatever Keras `tf.keras` is: Keras 3, tf_keras or Keras 2.

`fit`, `evaluate` and `predict` are those of a model, also for Keras 3 under
`ParameterServerStrategy`, and `Embedding` is for tables that are on parameter servers.
"""

from tf_syncrep.python.keras.adam_async import AdamAsync
from tf_syncrep.python.keras.embedding import Embedding
from tf_syncrep.python.keras.fit.api import evaluate, fit, predict
from tf_syncrep.python.keras.sync_replicas.optimizer import SyncReplicas

__all__ = ["AdamAsync", "Embedding", "SyncReplicas", "evaluate", "fit", "predict"]
