"""What fit, evaluate and predict refuse before they begin."""

from typing import Any

from tf_syncrep.python.keras.fit.exact_state import optimizers_of

__all__ = [
    "refuse_uncompiled",
    "refuse_variables_elsewhere",
    "refuse_what_cannot_be",
]


def refuse_uncompiled(model: Any) -> None:
    """Raises for a model that is not compiled."""
    if not model.compiled:
        raise ValueError("The model must be compiled. Received: one that is not")


def refuse_what_cannot_be(model: Any) -> None:
    """Raises for what Keras 3 cannot do under ParameterServerStrategy."""
    if model.run_eagerly:
        raise ValueError(
            "Steps that run on workers cannot run eagerly. Received: run_eagerly=True"
        )
    if model.jit_compile:
        raise ValueError(
            "XLA cannot compile steps whose variables are on parameter servers. "
            "Received: jit_compile=True"
        )
    for optimizer in optimizers_of(model):
        accumulated = getattr(optimizer, "gradient_accumulation_steps", None)
        if accumulated:
            raise ValueError(
                "Keras 3 cannot accumulate gradients under ParameterServerStrategy. "
                f"Received: gradient_accumulation_steps={accumulated}"
            )
    replicas = model.distribute_strategy.num_replicas_in_sync
    if replicas > 1:
        raise ValueError(
            "A worker must be one replica: show one GPU to each worker task. "
            f"Received: num_replicas_in_sync={replicas}"
        )


def refuse_variables_elsewhere(model: Any) -> None:
    """Raises for variables that workers cannot train."""
    extended = model.distribute_strategy.extended
    for optimizer in optimizers_of(model):
        if not extended.variable_created_in_scope(optimizer.iterations.value):
            raise ValueError(
                "The optimizer must be made in the scope of the strategy. "
                f"Received: optimizer {optimizer.name} from outside of it"
            )
    for variable in model.variables:
        value = variable.value
        # What a partitioner made is a list of variables, without a handle.
        if not hasattr(value, "handle"):
            raise ValueError(
                "Keras 3 cannot train variables in parts: make the strategy without "
                "variable_partitioner, or use tf_keras (TF_USE_LEGACY_KERAS=1). "
                f"Received: variable {variable.path} in {len(value.variables)} parts"
            )
        if not extended.variable_created_in_scope(value):
            raise ValueError(
                "The model must be made in the scope of the strategy. "
                f"Received: variable {variable.path} from outside of it"
            )
