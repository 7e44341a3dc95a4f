"""Counters and seeds that lose nothing when several workers step at once.

Keras 3 adds to a variable by reading it, adding, and assigning the sum. If workers
share the variable on a parameter server, what another worker adds in between is lost.
While a step is traced in `exact_state`, one op adds instead.
"""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf

from tf_syncrep.python.keras import compat
from tf_syncrep.python.keras.compat.tracing import replaced


@contextlib.contextmanager
def exact_state(execution: Callable[[], tf.Tensor] | None = None) -> Iterator[None]:
    """Within this context, steps of a Keras 3 model are traced to lose no addition.

    This concerns additions by `assign_add` and `assign_sub`, such as the `iterations`
    of every optimizer, and seed generators, such as those of layers.

    `execution`: returns an int64 scalar that differs between steps that run at once. It
    is folded into the seeds, so that no two workers draw the same numbers; if None, a
    worker draws the numbers that one process would draw. It is called only if there are
    seeds.
    """
    if not compat.IS_KERAS_3:  # Keras 2 adds by one op.
        yield
        return
    variables, seeds = tf.keras.Variable, tf.keras.random.SeedGenerator
    with (
        replaced(variables, "assign_add", _by_one_op(variables.assign_add)),
        replaced(variables, "assign_sub", _by_one_op(variables.assign_sub)),
        replaced(seeds, "next", _next_seed(seeds.next, execution)),
    ):
        yield


def _by_one_op(stock: Callable[..., Any]) -> Callable[..., Any]:
    """Makes a Keras variable's `assign_add` or `assign_sub` one op."""

    def assign(variable: Any, value: Any) -> Any:
        if compat.in_stateless_scope():
            return stock(variable, value)
        shared = compat.native(variable)
        value = tf.cast(tf.convert_to_tensor(value), shared.dtype)
        if value.shape != shared.shape:
            value = tf.broadcast_to(value, shared.shape)
        getattr(shared, stock.__name__)(value)
        return shared

    return assign


def _next_seed(
    stock: Callable[..., Any], execution: Callable[[], tf.Tensor] | None
) -> Callable[..., Any]:
    """Makes a seed generator's `next` count by one op."""

    def next(generator: Any, ordered: bool = True) -> Any:
        if not ordered or compat.in_stateless_scope():
            return stock(generator, ordered=ordered)
        shared = compat.native(generator.state)
        seed = tf.identity(shared)
        with tf.control_dependencies([seed]):
            shared.assign_add(tf.constant([0, 1], shared.dtype))
        if execution is not None:
            # The first number is the same for all steps, and the second may be the
            # same for several workers.
            number = tf.cast(execution(), seed.dtype)
            seed += tf.stack([number, tf.zeros([], seed.dtype)])
        return seed

    return next
