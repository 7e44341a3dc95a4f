"""The raw ops, documented; each is one op of the library at `library_path()`."""

from tf_syncrep.python.ops.accumulator_ops import (
    AccumulatorStats,
    accumulator_apply_dense,
    accumulator_apply_sparse,
    accumulator_num_accumulated,
    accumulator_set_global_step,
    accumulator_stats,
    accumulator_take_dense,
    accumulator_take_round_dense,
    accumulator_take_round_sparse,
    accumulator_take_sparse,
    dense_accumulator,
    sparse_accumulator,
)
from tf_syncrep.python.ops.adam_async_ops import (
    apply_adam_async,
    resource_apply_adam_async,
    resource_sparse_apply_adam_async,
    sparse_apply_adam_async,
)
from tf_syncrep.python.ops.embedding_ops import (
    embedding_combine,
    embedding_combine_grad,
    embedding_gather,
    embedding_rows,
)
from tf_syncrep.python.ops.rule_ops import (
    apply_rule,
    resource_apply_rule,
    resource_sparse_apply_rule,
    sparse_apply_rule,
)
from tf_syncrep.python.ops.stochastic_rounding import StochasticRounding

__all__ = [
    "AccumulatorStats",
    "StochasticRounding",
    "accumulator_apply_dense",
    "accumulator_apply_sparse",
    "accumulator_num_accumulated",
    "accumulator_set_global_step",
    "accumulator_stats",
    "accumulator_take_dense",
    "accumulator_take_round_dense",
    "accumulator_take_round_sparse",
    "accumulator_take_sparse",
    "apply_adam_async",
    "apply_rule",
    "dense_accumulator",
    "embedding_combine",
    "embedding_combine_grad",
    "embedding_gather",
    "embedding_rows",
    "resource_apply_adam_async",
    "resource_apply_rule",
    "resource_sparse_apply_adam_async",
    "resource_sparse_apply_rule",
    "sparse_accumulator",
    "sparse_apply_adam_async",
    "sparse_apply_rule",
]
