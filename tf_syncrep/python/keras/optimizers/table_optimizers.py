"""TableOptimizers: optimizers of tables, and one of all other variables."""

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tf_syncrep.python.base.arguments import as_python, check_positive
from tf_syncrep.python.keras import compat
from tf_syncrep.python.keras.compat.gradient_sums import sum_equal_rows
from tf_syncrep.python.keras.optimizers.outer_optimizer import OuterOptimizer, update
from tf_syncrep.python.keras.optimizers.own_optimizers import (
    OwnOptimizer,
    check_one_of_several,
)
from tf_syncrep.python.keras.optimizers.saved_optimizers import optimizer_from
from tf_syncrep.python.keras.tables.stacked_tables import own_slabs_of

__all__ = ["TableOptimizers"]


@tf.keras.utils.register_keras_serializable(package="tf_syncrep")
class TableOptimizers(OuterOptimizer):
    """Trains each table by the optimizer that its `TableConfig` names.

    All other variables, and tables without an optimizer of their own, are trained by
    `optimizer`. `TableOptimizers` is an ordinary Keras optimizer: `Model.fit`,
    `tfs.keras.fit` and custom loops take it, and so do `tfs.keras.SyncReplicas`,
    `tfs.keras.GradientAccumulation` and `LossScaleOptimizer`. A model with such tables
    cannot be trained without it: any other optimizer raises a ValueError before it
    changes anything.

    Each optimizer has its own learning rate or schedule, clipping, weight decay and
    averages, as if it trained its variables alone. `learning_rate` and `iterations` are
    those of `optimizer`; those of the others are in `table_optimizers`. All of them
    count each step, even if they have no gradient in it. Two arguments concern the
    gradients of all variables together: `global_clipnorm` and `loss_scale_factor`.

    It trains in one process and under ParameterServerStrategy. Under strategies whose
    steps have several replicas, a model that has it can be loaded and evaluated, but
    not trained.

    The optimizers of tables are made when the variables are known, usually when
    training begins. Tables whose optimizers have the same class and configuration share
    one.

    Args:
        optimizer: the Keras optimizer of all other variables, or the name of one of
            Keras' own.
        global_clipnorm: if set, the norm to which the gradients of all variables
            together are clipped.
        loss_scale_factor: in Keras 3, if set, the number by which `fit` multiplies the
            loss, and by which all gradients are divided.
        name: the optimizer's name.

    Raises:
        ValueError: `optimizer` cannot be one of several, or a number is out of its
            range.

    Example:
    >>> users = tfs.keras.TableConfig("users", 1000, 8, optimizer="rowwise_adagrad")
    >>> layer = tfs.keras.DistributedEmbedding(tfs.keras.FeatureConfig("user", users))
    >>> model = tf.keras.Sequential([layer, tf.keras.layers.Dense(1)])
    >>> optimizer = tfs.keras.TableOptimizers(tfs.keras.AdamAsync(0.01))
    >>> model.compile(optimizer, loss="mse", jit_compile=False)
    >>> _ = model.fit(tf.range(1000), tf.ones([1000, 1]), verbose=0)
    >>> print(type(optimizer.table_optimizers["users"]).__name__)
    RowwiseAdagrad

    Source: `optimizer` of `keras_rs.layers.TableConfig`.
    """

    def __init__(
        self,
        optimizer: Any,
        *,
        global_clipnorm: float | None = None,
        loss_scale_factor: float | None = None,
        name: str = "TableOptimizers",
    ):
        if isinstance(optimizer, str):
            optimizer = tf.keras.optimizers.get(as_python(optimizer))
        check_one_of_several(optimizer, "optimizer", "`optimizer`")
        if global_clipnorm is not None:
            global_clipnorm = check_positive("global_clipnorm", global_clipnorm)
        if loss_scale_factor is not None:
            loss_scale_factor = check_positive("loss_scale_factor", loss_scale_factor)
        if loss_scale_factor is not None and not compat.IS_KERAS_3:
            raise ValueError(
                "`loss_scale_factor` must be None: Keras 2 has LossScaleOptimizer. "
                f"Received: loss_scale_factor={loss_scale_factor}"
            )
        # Keras would track assigned attributes.
        vars(self).update(_others=[], _optimizer_of={}, _names_of_tables=[])
        super().__init__(optimizer, as_python(name), global_clipnorm=global_clipnorm)
        self.loss_scale_factor = loss_scale_factor
        self.optimizer: Any = optimizer
        self._strategy = tf.distribute.get_strategy()

    def all_optimizers(self) -> list[Any]:
        """Returns `optimizer`, and those of tables once they are made."""
        return [self.optimizer, *vars(self)["_others"]]

    def optimizer_of(self, variable: Any) -> Any:
        """Returns the optimizer that trains a variable, once all are built."""
        return vars(self)["_optimizer_of"].get(
            id(compat.native(variable)), self.optimizer
        )

    def _optimizers(self) -> list[Any]:
        return self.all_optimizers()

    def _build_inner(self, variables: Sequence[Any]) -> None:
        if tf.distribute.has_strategy():
            self._build_in_scope(variables)
        else:
            with self._strategy.scope():
                self._build_in_scope(variables)

    def _build_in_scope(self, variables: Sequence[Any]) -> None:
        made: dict[OwnOptimizer, Any] = {}
        slabs: dict[int, Any] = {}
        of_each: dict[int, Any] = {}
        for variable, slab in zip(variables, own_slabs_of(variables), strict=True):
            if slab is not None:
                if slab.optimizer not in made:
                    made[slab.optimizer] = slab.optimizer.make(len(made))
                slabs[id(slab)] = slab
                of_each[id(compat.native(variable))] = made[slab.optimizer]
        for number, optimizer in enumerate(made.values()):
            # Files know it by this name.
            setattr(self, f"_table_optimizer_{number}", optimizer)
        vars(self).update(
            _others=list(made.values()),
            _optimizer_of=of_each,
            _names_of_tables=[
                (table.name, made[slab.optimizer])
                for slab in slabs.values()
                for table in slab.tables
            ],
        )
        for optimizer, own in self._divided(variables):
            optimizer.build(own)

    def _divided(self, variables: Sequence[Any]) -> list[tuple[Any, list[Any]]]:
        """Returns each optimizer with the variables that it trains, in their order.

        `optimizer` also gets variables that nobody knows, and raises the error.
        """
        found: dict[int, list[Any]] = {id(x): [] for x in self.all_optimizers()}
        for variable in variables:
            found[id(self.optimizer_of(variable))].append(variable)
        return [(x, found[id(x)]) for x in self.all_optimizers()]

    def _receive(self, gradients: Sequence[Any], variables: Sequence[Any]) -> None:
        """Makes an update of each optimizer, or counts a step without a gradient."""
        strategy = tf.distribute.get_strategy()
        if strategy.num_replicas_in_sync > 1:
            # Each optimizer would reduce its own gradients over the replicas, and
            # TensorFlow mixes up tensors that are reduced at the same time.
            raise ValueError(
                f"{type(self).__name__} trains where a step has one replica: in one "
                "process without a strategy, or under ParameterServerStrategy. "
                f"Received: {type(strategy).__name__} with "
                f"{strategy.num_replicas_in_sync} replicas"
            )
        if self.loss_scale_factor is not None:
            gradients = [_divide(x, self.loss_scale_factor) for x in gradients]
        if self.global_clipnorm:
            gradients = tf.clip_by_global_norm(
                sum_equal_rows(gradients), self.global_clipnorm
            )[0]
        gradient_of = {
            id(compat.native(variable)): gradient
            for gradient, variable in zip(gradients, variables, strict=True)
        }
        for optimizer, own in self._divided(variables):
            if own:
                own_gradients = [gradient_of[id(compat.native(v))] for v in own]
                update(optimizer, own_gradients, own)
            else:
                counter = compat.native(optimizer.iterations)
                counter.assign_add(1, read_value=False)

    def load_own_variables(self, store: Any) -> None:
        """Loads nothing: the state of each optimizer is loaded as its own."""

    def set_weights(self, weights: Sequence[Any]) -> None:
        """Sets the variables of all optimizers, in the order of `variables`."""
        weights = list(weights)
        for optimizer in self.all_optimizers():
            number = len(list(optimizer.variables))
            optimizer.set_weights(weights[:number])
            weights = weights[number:]

    def finalize_variable_values(self, var_list: Sequence[Any]) -> None:
        """Does what each optimizer does at the end of a training."""
        for optimizer, own in self._divided(list(var_list)):
            compat.finalize_variable_values(optimizer, own)

    @property
    def table_optimizers(self) -> dict[str, Any]:
        """The optimizers of tables by their names, once they are made.

        If two layers have tables of the same name, `#2` follows the name of the second
        one.
        """
        found: dict[str, Any] = {}
        for name, optimizer in vars(self)["_names_of_tables"]:
            number, key = 1, name
            while key in found:
                number += 1
                key = f"{name}#{number}"
            found[key] = optimizer
        return found

    def get_config(self) -> dict[str, Any]:
        """Returns the configuration; `from_config` makes an equal optimizer of it."""
        config = {
            "name": self.name,
            "optimizer": tf.keras.optimizers.serialize(self.optimizer),
            "global_clipnorm": self.global_clipnorm,
        }
        if self.loss_scale_factor is not None:
            config["loss_scale_factor"] = self.loss_scale_factor
        return config

    @classmethod
    def from_config(cls, config: dict[str, Any], custom_objects: Any = None) -> Any:
        """Makes an optimizer from what `get_config` returned."""
        optimizer = optimizer_from(config["optimizer"], custom_objects)
        return cls(**{**config, "optimizer": optimizer})


def _divide(gradient: Any, divisor: float) -> Any:
    if isinstance(gradient, tf.IndexedSlices):
        values = gradient.values / divisor
        return tf.IndexedSlices(values, gradient.indices, gradient.dense_shape)
    return gradient / divisor
