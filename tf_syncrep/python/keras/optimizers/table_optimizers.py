"""TableOptimizers: optimizers of tables, and one of all other variables."""

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tf_syncrep.python.keras.optimizers.own_optimizers import (
    OwnOptimizer,
    check_one_of_several,
    names_by_optimizer,
    own_optimizers_of,
)
from tf_syncrep.python.keras.optimizers.saved_optimizers import optimizer_from
from tf_syncrep.python.keras.optimizers.several_optimizers import SeveralOptimizers
from tf_syncrep.python.sync.arguments import as_python, check_positive

__all__ = ["TableOptimizers"]


@tf.keras.utils.register_keras_serializable(package="tf_syncrep")
class TableOptimizers(SeveralOptimizers):
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
        super().__init__(optimizer, as_python(name), global_clipnorm, loss_scale_factor)
        # Keras would track an assigned attribute.
        self.__dict__["_names_of_tables"] = []

    def _make_others(self, variables: Sequence[Any]) -> Sequence[Any]:
        """Makes the optimizers of tables.

        Returns for each variable its optimizer, or None.
        """
        own = own_optimizers_of(variables)
        made: dict[OwnOptimizer, Any] = {}
        for found in own:
            if found is not None and found[0] not in made:
                made[found[0]] = found[0].make(len(made))
        self.__dict__["_names_of_tables"] = [
            (name, made[optimizer]) for name, optimizer in names_by_optimizer(variables)
        ]
        return [found and made[found[0]] for found in own]

    @property
    def table_optimizers(self) -> dict[str, Any]:
        """The optimizers of tables by their names, once they are made.

        If two layers have tables of the same name, `#2` follows the name of the second
        one.
        """
        found: dict[str, Any] = {}
        for name, optimizer in self.__dict__["_names_of_tables"]:
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
        """Makes an optimizer from what `get_config` returned.

        Args:
            config: the arguments by name, with the optimizer serialised.
            custom_objects: classes by name, for the optimizer.

        Returns:
            The optimizer, without state.
        """
        optimizer = optimizer_from(config["optimizer"], custom_objects)
        return cls(**{**config, "optimizer": optimizer})
