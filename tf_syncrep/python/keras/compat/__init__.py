"""The only place of the Keras side that uses private names of TensorFlow and Keras.

Each use has a line that says why; all were checked on TensorFlow 2.15.1 (Keras
2.15.0) and TensorFlow 2.21.0 (Keras 3.15.1 and tf_keras 2.21.0).

`SlotOptimizer` is the base class of this package's optimizers in whatever Keras
`tf.keras` is. Subclasses see one interface:

* `create_slots(variables)`, to be overridden: make the slots, once, with
  `add_slot`, in the order of `variables`;
* `update_variable(gradient, variable, learning_rate)`, to be overridden: one update
  of one variable, called where the variable is (its device, its replica);
* `slot_index(variable)`: the variable's place in what `create_slots` was given;
* `iterations` is advanced by an atomic add.
"""

import tensorflow as tf

from tf_syncrep.python.keras.compat.xla import compiled_by_xla

# Keras 3 alone has an `ops` name space.
if hasattr(tf.keras, "ops"):
    from tf_syncrep.python.keras.compat.keras3 import SlotOptimizer
else:
    from tf_syncrep.python.keras.compat.keras2 import SlotOptimizer

__all__ = ["SlotOptimizer", "compiled_by_xla"]
