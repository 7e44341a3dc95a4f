"""The base class of this package's optimizers."""

import numbers
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tf_syncrep.python.base.arguments import as_python, check_number
from tf_syncrep.python.base.docstrings import with_texts
from tf_syncrep.python.keras import compat
from tf_syncrep.python.keras.tables import slots
from tf_syncrep.python.keras.tables.growing.dynamic_tables import DynamicTables
from tf_syncrep.python.keras.tables.stacked_tables import is_part, places_of
from tf_syncrep.python.ops import op_library, table_ops
from tf_syncrep.python.ops.stochastic_rounding import StochasticRounding

# The slot that counts the updates of a variable that is rounded stochastically.
ROUNDING_COUNT = "rounding_count"

# What the optimizers' docstrings have in common.
with_common_text = with_texts(
    {
        "rows_and_dtypes": """
A sparse gradient (`tf.IndexedSlices`, as of an embedding layer) moves only the rows
that it names, in the variable and in its slots. If a row is named several times,
the sum of its gradients is applied once. One op does it, atomically for each row:
no update of any worker is lost, and the cost of a step depends on its rows, not on
the length of the table.

Variables may be half, bfloat16, float32 or float64; slots are float64 for float64
variables and float32 for all others. In functions that XLA compiles, and on GPUs,
the update is made of TensorFlow's own ops, which are slower, are not atomic, and do
not check that the indices are in range.
""",
        "learning_rate": """
learning_rate: a number of at least 0, or a
    `tf.keras.optimizers.schedules.LearningRateSchedule`; in Keras 3 also a
    callable without arguments that returns the rate.
""",
        "base_arguments": """
weight_decay: if set, each step subtracts this, times the learning rate, times
    the variable from each variable, also in rows that no gradient names.
clipnorm: if set, the norm to which the gradient of each variable is clipped.
clipvalue: if set, the absolute value to which each element of a gradient is
    clipped.
global_clipnorm: if set, the norm to which all gradients together are clipped.
use_ema: whether to keep a moving average of each variable.
ema_momentum: decay of that average, in [0, 1].
ema_overwrite_frequency: if set, the variables are overwritten by their
    averages every so many steps.
""",
        "more_arguments": """
stochastic_rounding: round half and bfloat16 variables up or down at random, so
    that each is right on average, and steps that are too small for its dtype
    are not lost. It changes nothing for float32 and float64 variables.
**kwargs: in Keras 3, `loss_scale_factor` and `gradient_accumulation_steps`
    of the base class (accumulators are dense). In Keras 2, `jit_compile`,
    False by default: the ops are faster than what XLA makes of the formula.
""",
    }
)


class BaseOptimizer(compat.SlotOptimizer):
    """An optimizer that moves only the rows that a sparse gradient names.

    Slots of tables are saved by table. A subclass overrides `create_slots`,
    `slots_of_rule` and `update_variable`.
    """

    def __init__(
        self,
        learning_rate: Any,
        weight_decay: float | None = None,
        clipnorm: float | None = None,
        clipvalue: float | None = None,
        global_clipnorm: float | None = None,
        use_ema: bool = False,
        ema_momentum: float = 0.99,
        ema_overwrite_frequency: int | None = None,
        name: str | None = None,
        *,
        stochastic_rounding: bool = False,
        **kwargs: Any,
    ):
        if isinstance(learning_rate, numbers.Real):
            learning_rate = check_number("learning_rate", learning_rate)
        super().__init__(
            learning_rate=learning_rate,
            weight_decay=as_python(weight_decay),
            clipnorm=as_python(clipnorm),
            clipvalue=as_python(clipvalue),
            global_clipnorm=as_python(global_clipnorm),
            use_ema=as_python(use_ema),
            ema_momentum=as_python(ema_momentum),
            ema_overwrite_frequency=as_python(ema_overwrite_frequency),
            name=as_python(name) or type(self).__name__,
            **{key: as_python(value) for key, value in kwargs.items()},
        )
        self.stochastic_rounding: bool = bool(stochastic_rounding)
        # Stored in `__dict__` so that Keras does not track it. Maps a variable's place
        # to the count of its updates, its seed, and what rows of its table it has.
        self.__dict__["_roundings"] = {}

    def create_slots(self, variables: Sequence[Any]) -> None:
        """Makes the slots of all variables; to be overridden."""
        raise NotImplementedError

    def slots_of_rule(self, variable: Any) -> dict[str, Any]:
        """Returns what `create_slots` has made for a variable; to be overridden."""
        raise NotImplementedError

    def slots(self, variable: Any) -> dict[str, Any]:
        """Returns the slots of a variable with which the optimizer was built.

        Args:
            variable: a model variable.

        Returns:
            The slots by name. With `stochastic_rounding` a half or bfloat16 variable
            has one more, "rounding_count".
        """
        slots = self.slots_of_rule(variable)
        found = self.__dict__["_roundings"].get(self.slot_index(variable))
        return slots if found is None else {**slots, ROUNDING_COUNT: found.count}

    def add_slot(
        self, variable: Any, name: str, shape: Any, dtype: tf.DType, value: float
    ) -> Any:
        """Adds an optimizer variable on the device of a model variable.

        `value`: the initial value of each element. If it is 0 and the variable is a
        part of tables that grow, rows take memory only once they are used.
        """
        grows = (
            value == 0
            and is_part(compat.native(variable), DynamicTables)
            and shape[0] == variable.shape[0]
        )

        # `initializers.Constant` would go through float32.
        def fill(shape, dtype):
            return tf.fill(shape, tf.constant(value, dtype))

        return self.add_filled_slot(
            variable, name, shape, dtype, table_ops.table_zeros if grows else fill
        )

    def create_rounding_counts(self, variables: Sequence[Any]) -> None:
        """Makes a count of updates beside each variable that is rounded at random."""
        if not self.stochastic_rounding:
            return
        counts, seeds = [], {}
        for variable, place in zip(variables, places_of(variables), strict=True):
            # The seed is that of the whole table, however many parts it has.
            whole = variable if place is None else place.slab
            seed = seeds.setdefault(id(whole), len(seeds))
            if tf.as_dtype(variable.dtype) not in (tf.half, tf.bfloat16):
                continue
            count = self.add_slot(variable, ROUNDING_COUNT, [1], tf.int64, 0)
            counts.append(count)
            part = (0, 1) if place is None else (place.number, place.slab.num_parts)
            self.__dict__["_roundings"][self.slot_index(variable)] = StochasticRounding(
                count, seed, *part
            )
        if counts:
            self._rounding_counts = counts

    def rounding_of(self, variable: Any) -> StochasticRounding | None:
        """Returns how a variable is rounded; None for rounding to nearest."""
        if not self.__dict__["_roundings"]:
            return None
        found = self.__dict__["_roundings"].get(self.slot_index(variable))
        return found and found._replace(count=found.count.handle)

    def update_variable(
        self, gradient: Any, variable: tf.Variable, learning_rate: Any
    ) -> None:
        """Updates one variable where it is; to be overridden."""
        raise NotImplementedError

    def save_own_variables(self, store: Any) -> None:
        """Saves slots of tables by table, all else by number; called by Keras."""
        if not slots.save(self, store):
            super().save_own_variables(store)

    def load_own_variables(self, store: Any) -> None:
        """Loads what was saved, whatever parts tables have now; called by Keras."""
        if not slots.load(self, store):
            super().load_own_variables(store)

    def get_config(self) -> dict[str, Any]:
        """Returns the configuration; `from_config` makes an equal optimizer of it."""
        config = {k: as_python(x) for k, x in super().get_config().items()}
        return {**config, "stochastic_rounding": self.stochastic_rounding}


def is_beyond_kernels(variable: tf.Variable, on_gpu: bool = False) -> bool:
    """Returns whether an update of the variable has to be made by TensorFlow's own ops.

    `on_gpu`: whether the update has GPU kernels, if the library has any.
    """
    device = tf.DeviceSpec.from_string(variable.device).device_type or "CPU"
    has_kernels = op_library.has_kernels_for(device) if on_gpu else device == "CPU"
    return not has_kernels or compat.compiled_by_xla()
