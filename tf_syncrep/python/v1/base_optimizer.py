"""What the v1 optimizers share: their hyper-parameters, and slots beside variables."""

import math
from typing import Any, NamedTuple

import tensorflow as tf

from tf_syncrep.python.base.docstrings import with_texts
from tf_syncrep.python.ops.update_inputs import slot_dtype
from tf_syncrep.python.v1 import hyper_parameters

# What the optimizers' docstrings have in common.
COMMON_TEXTS = {
    "rows_and_dtypes": """
A sparse gradient (`tf.IndexedSlices`) moves only the rows that it names, in the
variable and in its slots, as with TensorFlow's class. A row named several times gets
the sum of its gradients, once. One op does it, atomically for each row: no update of
any worker is lost, and the gradient goes through no op that finds equal rows first.

Variables may be reference or resource variables, partitioned or not, of half, bfloat16,
float32 or float64, on CPUs. Slots are made when gradients are first applied, float64
for float64 variables and float32 for all others. So checkpoints of TensorFlow's class
with float32 and float64 variables can be restored. (TensorFlow's slots of half
variables are half.)
""",
    "learning_rate": """
learning_rate: a number of at least 0, a scalar tensor, a variable, or a callable
    without arguments that returns one of these, which is evaluated at each step.
""",
    "use_locking": """
use_locking: let sparse updates of one variable wait for one another as wholes.
    Without it they are atomic for each row, and no update is lost either way.
""",
    "raises": """
Raises:
    ValueError: a number out of range, a tensor that is not a scalar, or an empty name.
    TypeError: an argument of another kind.
""",
}

_EXAMPLE = """
Example:
```python
import tensorflow.compat.v1 as tf
import tf_syncrep as tfs

with tf.Graph().as_default():
    table = tf.get_variable("table", [10, 16], initializer=tf.ones_initializer())
    rows = tf.nn.embedding_lookup(table, [0, 1, 2, 5, 6, 7])
    loss = tf.reduce_sum(rows * 2.0)
    train_op = tfs.train.{call}.minimize(loss)
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        session.run(train_op)
        print(session.run(loss).round(2))  # {loss}, from 192
```
"""


def with_common_text(call: str, loss: float):
    """Fills a docstring, whose example makes the optimizer by a call, and its loss."""
    example = _EXAMPLE.format(call=call, loss=loss)
    return with_texts({**COMMON_TEXTS, "example": example})


class _HyperParameter(NamedTuple):
    """An argument that is evaluated at each step, and must be below a limit."""

    argument: str
    value: Any
    below: float


class BaseOptimizer(tf.compat.v1.train.Optimizer):
    """A v1 optimizer whose hyper-parameters and slots are in the dtype of slots.

    That is float64 for float64 variables, and float32 for all others.
    """

    def __init__(self, use_locking: bool, name: str):
        super().__init__(bool(use_locking), name)
        self._arguments: dict[str, _HyperParameter] = {}
        # The hyper-parameters of the step that is being built, which `_prepare`
        # evaluates, and their tensors by graph, device and dtype.
        self._values: dict[str, Any] = {}
        self._tensors: dict[Any, dict[str, tf.Tensor]] = {}

    def _keep(self, name, argument, value, *, below=math.inf):
        """Checks and keeps a hyper-parameter, which ops know by the name."""
        value = hyper_parameters.check(argument, value, below=below)
        self._arguments[name] = _HyperParameter(argument, value, below)

    def _prepare(self):
        self._tensors = {}
        self._values = {
            name: hyper_parameters.evaluate(x.argument, x.value, below=x.below)
            for name, x in self._arguments.items()
        }

    def _hyper_parameters(self, var) -> dict[str, tf.Tensor]:
        """Returns the hyper-parameters in var's slot dtype, one copy for each device.

        Variables of one device share their tensors: a graph with hundreds of small
        variables would otherwise spend its time on constants.
        """
        dtype = slot_dtype(var.dtype)
        key = (tf.compat.v1.get_default_graph(), var.device, dtype)
        if key not in self._tensors:
            self._tensors[key] = {
                name: tf.constant(value, dtype)
                if isinstance(value, float)
                else tf.cast(value, dtype)
                for name, value in self._values.items()
            }
        return self._tensors[key]

    def _make_slot(self, var, slot_name, value, op_name=None):
        """Makes a slot of var's shape that begins with a number."""
        dtype = slot_dtype(var.dtype)
        op_name = op_name or self._name
        if var.shape.is_fully_defined():
            # A constant would take the memory of a slot as long as there is the graph.
            def initializer(shape, dtype: Any = None, partition_info=None):
                del partition_info
                return tf.fill(shape, tf.constant(value, dtype))

            self._get_or_make_slot_with_initializer(
                var, initializer, var.shape, dtype, slot_name, op_name
            )
        elif self.get_slot(var, slot_name) is None:
            shape = tf.shape(hyper_parameters.initial_value(var))
            initial = tf.fill(shape, tf.constant(value, dtype))
            self._get_or_make_slot(var, initial, slot_name, op_name)

    # The ops sum duplicate indices themselves, so that the sparse methods of subclasses
    # serve gradients with and without duplicates.

    def _apply_sparse_duplicate_indices(self, grad, var):
        return self._apply_sparse(grad, var)

    def _resource_apply_sparse_duplicate_indices(self, grad, handle, indices):
        return self._resource_apply_sparse(grad, handle, indices)

    def _get_or_make_slot_with_initializer(
        self, var, initializer, shape, dtype, slot_name, op_name
    ):
        # When an object-based checkpoint is restored eagerly, this is called before
        # `_create_slots`, for every slot with the dtype of its variable.
        dtype = slot_dtype(var.dtype)
        return super()._get_or_make_slot_with_initializer(
            var, initializer, shape, dtype, slot_name, op_name
        )
