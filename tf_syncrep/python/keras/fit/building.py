"""Makes the variables that a model misses before its steps are scheduled."""

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tf_syncrep.python.keras.compat import trainer
from tf_syncrep.python.keras.fit import checks


def build(model: Any, first_batch: Callable[[], Any], kind: str) -> None:
    """Makes the variables that are missing for a kind of step.

    Args:
        model: the model.
        first_batch: reads a batch to build it with, if that is needed.
        kind: "train", "test" or "predict"; the last needs the layers alone.
    """
    unbuilt = [x for x in trainer.layers_of(model) if not x.built]
    metrics_built = loss_built = kind == "predict"
    if kind != "predict":
        metrics_built = trainer.are_metrics_built(model)
        # A train step of the user's own need not use the loss.
        own_step = type(model).train_step is not tf.keras.Model.train_step
        loss_built = own_step or trainer.is_loss_built(model)
    with model.distribute_strategy.scope():
        if not checks.has_call(model):
            checks.check_model_without_call(model, kind)
        elif unbuilt or not (metrics_built and loss_built):
            batch = first_batch()
            x, y, sample_weight = tf.keras.utils.unpack_x_y_sample_weight(batch)
            y_pred = model(x)
            if not metrics_built:
                model.compute_metrics(x, y, y_pred, sample_weight)
            if not loss_built:
                model.compute_loss(x, y, y_pred, sample_weight)
            model.reset_metrics()
        checks.refuse_variables_elsewhere(model)
        checks.warn_of_large_embeddings(model)
        if kind == "train":
            optimizer = model.optimizer
            # Those of Keras 2 build but once, whatever they are told.
            if optimizer is not None and not getattr(optimizer, "built", False):
                optimizer.build(model.trainable_variables)
