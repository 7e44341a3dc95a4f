"""Private names of TensorFlow that tests use; checked on 2.15 and 2.22rc0."""

import contextlib
from collections.abc import Iterator
from typing import Any
from unittest import mock

from tensorflow.python.eager import context


def set_keep_alive(secs: int) -> None:
    """Makes servers give up this process when they have not heard of it for this long.

    It must be called before the context is connected to a cluster. No public function
    takes the number, which is 600 by default.
    """
    context._KEEP_ALIVE_SECS = secs


@contextlib.contextmanager
def traced_functions() -> Iterator[list[Any]]:
    """While in it, the functions that are traced come into the list."""
    functions: list[Any] = []
    add = context.Context.add_c_function

    def noting(self: Any, function: Any) -> None:
        functions.append(function)
        add(self, function)

    with mock.patch.object(context.Context, "add_c_function", noting):
        yield functions
