"""Our optimizers under the names that TensorFlow 1 scripts look for."""

import importlib
import sys
from types import ModuleType

import tensorflow as tf

from tf_syncrep.python.train.adam_async import AdamAsyncOptimizer
from tf_syncrep.python.train.sync_replicas.optimizer import SyncReplicasOptimizer

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
    """
    for module in _v1_train_modules():
        for optimizer in _OPTIMIZERS:
            setattr(module, optimizer.__name__, optimizer)


def _v1_train_modules() -> list[ModuleType]:
    """Returns every module object that a script may know as `tf.compat.v1.train`.

    The attribute `tf.compat.v1`, the module `tensorflow.compat.v1` and the `compat.v1`
    inside it are different objects, which are made at the first import. Those that a
    script may import later are imported here, so that none appears afterwards without
    our names.
    """
    modules = [
        tf.compat.v1.train,
        tf.compat.v2.compat.v1.train,
        importlib.import_module("tensorflow.compat.v1.train"),
        tf.compat.v1.compat.v1.train,
    ]
    modules += [
        module
        for name, module in list(sys.modules.items())
        if name.startswith("tensorflow.") and name.endswith(".compat.v1.train")
    ]
    return modules
