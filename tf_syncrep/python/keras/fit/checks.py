"""Checks and warnings of fit, evaluate and predict before they begin."""

from collections.abc import Container, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from absl import logging

from tf_syncrep.python.base.arguments import check_count, check_number
from tf_syncrep.python.keras import compat
from tf_syncrep.python.keras.cluster import num_tasks
from tf_syncrep.python.keras.compat import trainer
from tf_syncrep.python.keras.embedding.embedding import Embedding
from tf_syncrep.python.keras.embedding.growing_layer import GrowingLayer
from tf_syncrep.python.keras.parts import optimizers_of
from tf_syncrep.python.keras.sync_replicas.optimizer import SyncReplicas

# Tables above this size are worth a warning if each step reads them whole.
LARGE_TABLE_BYTES = 64 * 2**20

_OUTSIDE = (
    "The model must be made in the scope of the strategy. Received: variable {} from "
    "outside of it"
)


def refuse_model_outside_of_scope(model: Any) -> None:
    """Raises for a model that would train on the coordinator of a cluster.

    A process that is connected to workers and parameter servers is the coordinator
    of a ParameterServerStrategy.
    """
    kind = tf.distribute.ParameterServerStrategy
    on_cluster = num_tasks("worker") and num_tasks("ps")
    if on_cluster and not isinstance(model.distribute_strategy, kind):
        raise ValueError(
            "The model must be made in the scope of the strategy, or it trains on the "
            f"coordinator alone. Received: model {model.name} from outside of it"
        )


def is_from_before(device: str) -> bool:
    """Returns whether a device was named before this process joined its cluster.

    With that, the process got another name, and TensorFlow does not find the device any
    more.
    """
    with tf.device("CPU:0"):
        here = tf.constant(0).device
    return tf.DeviceSpec.from_string(device).job != tf.DeviceSpec.from_string(here).job


def refuse_model_from_before(model: Any) -> None:
    """Raises for a model that was made before this process joined its cluster."""
    for variable in model.variables[:1] if model.built else ():
        value = compat.native(variable)
        if is_from_before(value.device):
            raise ValueError(_OUTSIDE.format(value.name))


def refuse_never_to_validate(validation_freq: Any) -> None:
    """Raises for what is neither a number of epochs nor a list of them.

    Keras would divide by zero, for example, after an epoch of training.
    """
    if isinstance(validation_freq, str) or not isinstance(validation_freq, Container):
        check_count("validation_freq", validation_freq)


def refuse_wrong_numbers(
    verbose: Any,
    epochs: Any = 0,
    initial_epoch: Any = 0,
    validation_split: Any = None,
    **counts: Any,
) -> None:
    """Raises for numbers that are out of range, or no numbers, by their names.

    With some of them fit would do something else in silence: it would validate on no
    batches, for example, or take a split of 1.5 for one of 0.5.

    `validation_split`: the argument of fit; None and 0 are without validation.
    `**counts`: numbers of steps, and of examples in a batch, or None.
    """
    for name, count in counts.items():
        if count is not None:
            check_count(name, count)
    check_count("epochs", epochs, least=0)
    check_count("initial_epoch", initial_epoch, least=0)
    # Of 1 Keras says how many examples there are, and that none is left to train on.
    if validation_split and validation_split != 1:
        check_number("validation_split", validation_split, below=1)
    is_whole = isinstance(verbose, int | np.integer | np.bool_)
    if verbose != "auto" and not (is_whole and verbose >= 0):
        raise ValueError(
            '`verbose` must be "auto", or a whole number of at least 0. '
            f"Received: verbose={verbose!r}"
        )


def refuse_multi_worker(model: Any) -> None:
    """Raises for Keras 3 under MultiWorkerMirroredStrategy, with several workers.

    `Model.fit` fails there, even with Keras' own optimizers; with one worker it works.
    """
    strategy = model.distribute_strategy
    if not compat.IS_KERAS_3 or not isinstance(
        strategy, tf.distribute.MultiWorkerMirroredStrategy
    ):
        return
    tasks = strategy.cluster_resolver.cluster_spec().as_dict()
    num_workers = sum(len(tasks.get(job, ())) for job in ("chief", "worker"))
    if num_workers > 1:
        raise ValueError(
            "Keras 3 does not support MultiWorkerMirroredStrategy: use tf_keras "
            "(TF_USE_LEGACY_KERAS=1) or ParameterServerStrategy. "
            f"Received: a strategy of {num_workers} workers"
        )


def warn_of_large_embeddings(model: Any) -> None:
    """Warns of large tables that Keras 3 reads as a whole in each step."""
    if not compat.IS_KERAS_3:
        return
    for layer in trainer.layers_of(model):
        is_stock = isinstance(layer, tf.keras.layers.Embedding)
        if not is_stock or isinstance(layer, Embedding) or not layer.built:
            continue
        table = layer.weights[0]
        size = int(np.prod(table.shape)) * compat.native(table).dtype.size
        if size > LARGE_TABLE_BYTES:
            logging.warning(
                "Keras 3 reads all %.0f MiB of the table of Embedding layer %s from "
                "its parameter server in each step. tfs.keras.Embedding reads rows.",
                size / 2**20,
                layer.name,
            )


def warn_of_replicas(total_num_replicas: int, num_workers: int) -> None:
    """Warns if SyncReplicas expects another number of workers than there are."""
    if num_workers and total_num_replicas != num_workers:
        logging.warning(
            "SyncReplicas counts on total_num_replicas=%d, and the cluster has %d "
            "workers.",
            total_num_replicas,
            num_workers,
        )


def warn_of_constraints(model: Any) -> None:
    """Warns if updates of several workers may be lost, since they are no additions."""
    if num_tasks("worker") < 2 or isinstance(model.optimizer, SyncReplicas):
        return
    constrained = [
        variable.name
        for variable in model.trainable_variables
        if getattr(variable, "constraint", None) is not None
    ]
    if constrained:
        logging.warning(
            "After each update of variable %s and %d others a constraint reads and "
            "assigns it, by which an update of another worker in between is lost. "
            "SyncReplicas loses none.",
            constrained[0],
            len(constrained) - 1,
        )


def refuse_uncompiled(model: Any) -> None:
    """Raises for a model that is not compiled."""
    if not trainer.is_compiled(model):
        raise ValueError("The model must be compiled. Received: one that is not")


def refuse_what_cannot_be(model: Any) -> None:
    """Raises for a model that needs what ParameterServerStrategy cannot do."""
    if model.run_eagerly:
        raise ValueError(
            "Steps that run on workers cannot run eagerly. Received: run_eagerly=True"
        )
    if model.jit_compile:
        raise ValueError(
            "XLA cannot compile steps whose variables are on parameter servers. "
            "Received: jit_compile=True"
        )
    steps = trainer.steps_per_execution(model)
    if steps != "auto" and (not isinstance(steps, int) or steps < 1):
        raise ValueError(
            'steps_per_execution must be at least 1, or "auto". '
            f"Received: steps_per_execution={steps!r}"
        )
    refuse_optimizers(model)
    for layer in trainer.layers_of(model):
        is_recurrent = isinstance(layer, tf.keras.layers.RNN)
        if is_recurrent and layer.stateful and num_tasks("worker") > 1:
            raise ValueError(
                "A layer with stateful=True goes on where its last batch ended, and "
                "several workers would mix their states. Received: layer "
                f"{layer.name} with {num_tasks('worker')} workers"
            )
    replicas = model.distribute_strategy.num_replicas_in_sync
    if replicas > 1:
        raise ValueError(
            "A worker must be one replica: show one GPU to each worker task. "
            f"Received: num_replicas_in_sync={replicas}"
        )


def refuse_optimizers(model: Any) -> None:
    """Raises for an optimizer that does what ParameterServerStrategy cannot do.

    Some optimizers make others when they are built.
    """
    for optimizer in optimizers_of(model):
        accumulated = getattr(optimizer, "gradient_accumulation_steps", None)
        if accumulated:
            raise ValueError(
                "Keras 3 cannot accumulate gradients under ParameterServerStrategy. "
                f"Received: gradient_accumulation_steps={accumulated}"
            )
        if isinstance(getattr(optimizer, "inner_optimizer", None), SyncReplicas):
            raise ValueError(
                "SyncReplicas under ParameterServerStrategy has no place in a "
                f"{type(optimizer).__name__}: train with mixed_bfloat16, without loss "
                "scaling, or, in Keras 3, with `loss_scale_factor` of the inner "
                "optimizer and `auto_scale_loss=False` in `compile`."
            )
        if isinstance(optimizer, SyncReplicas) and optimizer is not model.optimizer:
            raise ValueError(
                "A model trains with one SyncReplicas, the optimizer that it is "
                f"compiled with. Received: {optimizer.name} besides that"
            )


def refuse_to_prefetch_rows(model: Any) -> None:
    """Raises if the model's steps must not miss an update, or its tables may grow."""
    if isinstance(model.optimizer, SyncReplicas):
        raise ValueError(
            "prefetch_rows is for asynchronous training: all gradients of a "
            "synchronous update are computed with the same weights. "
            "Received: prefetch_rows=True with SyncReplicas"
        )
    for layer in trainer.layers_of(model):
        growing = layer._growing.sizes if isinstance(layer, GrowingLayer) else ()
        for name in growing:
            raise ValueError(
                "prefetch_rows is for tables of a fixed size: a lookup in a table that "
                "grows changes what the next one finds. Received: prefetch_rows=True "
                f"with table {name}"
            )


def refuse_tensorboard_without_its_package(callbacks: Sequence[Any]) -> None:
    """Raises if the package is missing that the TensorBoard callback writes with.

    The callback itself would fail only after the first batch.
    """
    for callback in callbacks:
        is_board = isinstance(callback, tf.keras.callbacks.TensorBoard)
        # The package provides the functions of tf.summary.
        if is_board and not hasattr(tf.summary, "scalar"):
            raise ImportError(
                "The TensorBoard callback needs the package tensorboard, which is not "
                "installed: pip install tensorboard"
            )


def refuse_variables_elsewhere(model: Any) -> None:
    """Raises for variables that workers cannot train."""
    extended = model.distribute_strategy.extended
    for optimizer in optimizers_of(model):
        if not extended.variable_created_in_scope(compat.native(optimizer.iterations)):
            raise ValueError(
                "The optimizer must be made in the scope of the strategy. "
                f"Received: optimizer {optimizer.name} from outside of it"
            )
    for variable in model.variables:
        value = compat.native(variable)
        # A partitioner makes a list of variables, which has no handle.
        if compat.IS_KERAS_3 and not hasattr(value, "handle"):
            raise ValueError(
                "Keras 3 cannot train variables in parts: make the strategy without "
                "variable_partitioner, or use tf_keras (TF_USE_LEGACY_KERAS=1). "
                f"Received: variable {variable.path} in {len(value.variables)} parts"
            )
        if not extended.variable_created_in_scope(value):
            raise ValueError(_OUTSIDE.format(value.name))
