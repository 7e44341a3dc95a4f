"""The only folder of the Keras side that uses private names of TensorFlow and Keras.

Each use has a comment that says why. All were checked on TensorFlow 2.15.1 (Keras
2.15.0), 2.21.0 (Keras 3.15.1, tf_keras 2.21.0) and 2.22.0rc0 (Keras 3.16.0.dev).

`IS_KERAS_3` tells whether `tf.keras` is Keras 3.

`SlotOptimizer` is the base class of this package's optimizers, in the Keras that
`tf.keras` is. Subclasses see the same interface in all:

* `create_slots(variables)`, to be overridden, makes the slots, once, with
  `add_filled_slot`, in the order of `variables`;
* `update_variable(gradient, variable, learning_rate)`, to be overridden, makes one
  update of one variable, and is called where the variable is (its device, its replica);
* `slot_index(variable)` returns the variable's place among those of `create_slots`, and
  `has_slots_of(variable)` whether it is one of them;
* `iterations` is advanced by an atomic add.

`ReceivingOptimizer` is the base class of optimizers around others. Its state is that of
these inner optimizers, and it has the `iterations` of the first one.

* `_optimizers()`, to be overridden, returns the inner optimizers, once they are made;
* `_build_inner(variables)`, to be overridden, builds them, and is called once, outside
  the function or replica in which `build` is called;
* `_receive(gradients, variables)`, to be overridden, takes the gradients of a batch,
  each with its variable; none of them is None.
"""

from tf_syncrep.python.keras.compat.coordinator import (
    apart_from_closures,
    isolate_workers,
)
from tf_syncrep.python.keras.compat.files import (
    NAME_OF_EMBEDDINGS,
    forget,
    has_default_ids,
    holds_numbered_slots,
    holds_values_of,
    note_default_signatures,
    older_files,
    saved_as_stock,
    track,
    untrack,
    without_variables,
)
from tf_syncrep.python.keras.compat.native import (
    IS_KERAS_3,
    in_stateless_scope,
    native,
    variables_at_once,
)
from tf_syncrep.python.keras.compat.optimizers import (
    excludes_from_weight_decay,
    finalize_variable_values,
    schedule_of,
)
from tf_syncrep.python.keras.compat.servers import choose_servers
from tf_syncrep.python.keras.compat.tracing import compiled_by_xla

if IS_KERAS_3:
    from tf_syncrep.python.keras.compat.keras3 import ReceivingOptimizer, SlotOptimizer
else:
    from tf_syncrep.python.keras.compat.keras2 import ReceivingOptimizer, SlotOptimizer
