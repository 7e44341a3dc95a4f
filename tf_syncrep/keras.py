"""Training with Keras and parameter servers: Keras 3, tf_keras or Keras 2.

`fit`, `evaluate` and `predict` are those of a model, also under
`ParameterServerStrategy`, where `install_fit` makes a model's own come here.
"""

from tf_syncrep.python.keras.checkpoint.checkpoint import Checkpoint
from tf_syncrep.python.keras.checkpoint.warm_start import warm_start
from tf_syncrep.python.keras.cluster import prepare_strategies
from tf_syncrep.python.keras.compat import isolate_workers
from tf_syncrep.python.keras.compat.private_names import warn_of_untried_keras
from tf_syncrep.python.keras.embedding.config import FeatureConfig, TableConfig
from tf_syncrep.python.keras.embedding.distributed_embedding import (
    DistributedEmbedding,
)
from tf_syncrep.python.keras.embedding.embedding import Embedding
from tf_syncrep.python.keras.embedding.ids import string_keys
from tf_syncrep.python.keras.embedding.serving import (
    export_for_serving,
    for_serving,
)
from tf_syncrep.python.keras.embedding.weights import show_tables_whole
from tf_syncrep.python.keras.fit.api import evaluate, fit, predict
from tf_syncrep.python.keras.fit.install import (
    install_fit,
    stand_in_front,
    uninstall_fit,
)
from tf_syncrep.python.keras.optimizers.rules.adagrad import Adagrad
from tf_syncrep.python.keras.optimizers.rules.adam_async import AdamAsync
from tf_syncrep.python.keras.optimizers.rules.ftrl import FTRL
from tf_syncrep.python.keras.optimizers.rules.lazy_optimizer import LazyOptimizer
from tf_syncrep.python.keras.optimizers.rules.rowwise_adagrad import RowwiseAdagrad
from tf_syncrep.python.keras.optimizers.rules.sgd import SGD
from tf_syncrep.python.keras.optimizers.table_optimizers import TableOptimizers
from tf_syncrep.python.keras.publishing.publisher import Publisher
from tf_syncrep.python.keras.sidecar_evaluator import Evaluation, SidecarEvaluator
from tf_syncrep.python.keras.sync_replicas.gradient_accumulation import (
    GradientAccumulation,
)
from tf_syncrep.python.keras.sync_replicas.optimizer import SyncReplicas
from tf_syncrep.python.keras.sync_replicas.report.sync_report import SyncReport
from tf_syncrep.python.keras.tables.growing.dynamic import (
    Dynamic,
    LeastFrequent,
    LeastRecent,
    MinCount,
)
from tf_syncrep.python.keras.tables.growing.legacy_files import refuse_legacy_files
from tf_syncrep.python.keras.tables.growing.maintenance import maintain_tables
from tf_syncrep.python.keras.tables.misfits import note_skip_mismatch
from tf_syncrep.python.keras.transfers.transfers import few_messages

__all__ = [
    "FTRL",
    "SGD",
    "Adagrad",
    "AdamAsync",
    "Checkpoint",
    "DistributedEmbedding",
    "Dynamic",
    "Embedding",
    "Evaluation",
    "FeatureConfig",
    "GradientAccumulation",
    "LazyOptimizer",
    "LeastFrequent",
    "LeastRecent",
    "MinCount",
    "Publisher",
    "RowwiseAdagrad",
    "SidecarEvaluator",
    "SyncReplicas",
    "SyncReport",
    "TableConfig",
    "TableOptimizers",
    "evaluate",
    "few_messages",
    "fit",
    "for_serving",
    "install_fit",
    "isolate_workers",
    "maintain_tables",
    "predict",
    "string_keys",
    "uninstall_fit",
    "warm_start",
]

prepare_strategies()
stand_in_front()
show_tables_whole()
note_skip_mismatch()
refuse_legacy_files()
export_for_serving()
warn_of_untried_keras()
