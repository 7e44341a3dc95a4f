"""Our optimizers under the names that TensorFlow 1 scripts look for."""

import importlib
import sys
from types import ModuleType
from typing import Any

import tensorflow as tf

from tf_syncrep.python.v1.adam_async import AdamAsyncOptimizer
from tf_syncrep.python.v1.sync_replicas.optimizer import SyncReplicasOptimizer

__all__ = ["install_v1_names"]

_OPTIMIZERS = (AdamAsyncOptimizer, SyncReplicasOptimizer)


def install_v1_names() -> None:
    """Puts our v1 optimizers under `tf.compat.v1.train`.

    After it, a script that says

    ```python
    import tensorflow.compat.v1 as tf

    optimizer = tf.train.AdamAsyncOptimizer(0.001)
    ```

    runs as it is, whether it imports TensorFlow before or after the call, and by any of
    TensorFlow's names. It may be called any number of times. The script has to care
    itself for everything else that it needs of TensorFlow 1, which is usually
    `tf.disable_v2_behavior()`. `AdagradOptimizer` and others that TensorFlow has, too,
    stay TensorFlow's there; ours are in `tfs.train`.

    `tf.layers` and `tf.nn.rnn_cell` are not in Keras 3. The error of a script that uses
    them says then what to install and to set.
    """
    modules = _v1_modules()
    for train in [module.train for module in modules] + _imported(".compat.v1.train"):
        for optimizer in _OPTIMIZERS:
            setattr(train, optimizer.__name__, optimizer)
    for module in modules:
        if not _has(module.layers, "dense"):
            module.layers = _MissingLayers("tf.layers")
        if not _has(module.nn.rnn_cell, "LSTMCell"):
            module.nn.rnn_cell = _MissingLayers("tf.nn.rnn_cell")


class _MissingLayers(ModuleType):
    """A module of TensorFlow 1 whose layers are in no Keras that is there.

    TensorFlow's own error only says that Keras 3 has them not.
    """

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        minor = ".".join(tf.__version__.split(".")[:2])
        raise AttributeError(
            f"`{self.__name__}.{name}` needs Keras 2: pip install "
            f"'tf_keras=={minor}.*', and set TF_USE_LEGACY_KERAS=1 before TensorFlow "
            "is imported."
        )


def _has(module: ModuleType, name: str) -> bool:
    """Returns whether a module that TensorFlow takes from Keras has a name."""
    try:
        return hasattr(module, name)
    # If it is asked a second time for a missing Keras, TensorFlow raises the second
    # error.
    except (ImportError, RecursionError):
        return False


def _v1_modules() -> list[Any]:
    """Returns every module object that a script may know as `tf.compat.v1`.

    The attribute `tf.compat.v1`, the module `tensorflow.compat.v1` and the `compat.v1`
    inside it are different objects, which are made at the first import. Those that a
    script may import later are imported here, and so is `tensorflow.compat.v1.train`,
    so that none appears afterwards without our names.
    """
    importlib.import_module("tensorflow.compat.v1.train")
    return [
        tf.compat.v1,
        tf.compat.v2.compat.v1,
        importlib.import_module("tensorflow.compat.v1"),
        tf.compat.v1.compat.v1,
        *_imported(".compat.v1"),
    ]


def _imported(name: str) -> list[Any]:
    """Returns TensorFlow's modules whose names end so."""
    return [
        module
        for key, module in list(sys.modules.items())
        if key.startswith("tensorflow.") and key.endswith(name)
    ]
