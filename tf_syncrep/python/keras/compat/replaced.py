"""Functions that stand in the place of others while a graph is traced."""

import contextlib
import functools
import threading
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf

# What is replaced may belong to the whole process, and so one thread traces steps at a
# time. It is no lock of `replaced` itself, since TensorFlow runs replicas in threads of
# their own, of which the tracing one waits.
TRACING = threading.RLock()

_NOTHING = object()


@contextlib.contextmanager
def replaced(owner: Any, name: str, function: Callable[..., Any]) -> Iterator[None]:
    """Within this context, the present graph finds a function as an attribute.

    What is called elsewhere, as by the threads that prepare data, finds what was there
    before.
    """
    traced = tf.compat.v1.get_default_graph()
    stock = getattr(owner, name)
    own = vars(owner).get(name, _NOTHING)

    # AutoGraph would convert the function within; one that it is to convert, is. And
    # Keras looks at signatures, and at marks of functions.
    @tf.autograph.experimental.do_not_convert
    @functools.wraps(function)
    def call(*args, **kwargs):
        return (function if _is_within(traced) else stock)(*args, **kwargs)

    _set(owner, name, call)
    try:
        yield
    finally:
        _set(owner, name, own)


def _is_within(traced: Any) -> bool:
    """Returns whether the present graph is this one, or in a function of it."""
    graph: Any = tf.compat.v1.get_default_graph()
    while graph is not None and graph is not traced:
        graph = getattr(graph, "outer_graph", None)
    return graph is traced


def _set(owner: Any, name: str, value: Any) -> None:
    """Sets or removes what an owner itself has by a name."""
    if isinstance(owner, type):
        delattr(owner, name) if value is _NOTHING else setattr(owner, name, value)
    elif value is _NOTHING:
        del vars(owner)[name]
    else:
        # Keras would track an assigned attribute.
        vars(owner)[name] = value
