"""A call that one thread asks for, and another one makes."""

from __future__ import annotations

import concurrent.futures
from collections.abc import Callable
from typing import TypeVar

_Result = TypeVar("_Result")


class Request(concurrent.futures.Future[_Result]):
    """A function that another thread has to call; it has its result, or its error."""

    def __init__(self, function: Callable[[], _Result]):
        super().__init__()
        self._function = function

    def serve(self) -> None:
        """Calls the function."""
        try:
            self.set_result(self._function())
        except BaseException as error:
            self.set_exception(error)
