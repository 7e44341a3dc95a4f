"""Attributes of optimizers that their constructor alone sets."""

from typing import Any, Generic, TypeVar

_Value = TypeVar("_Value")


class Fixed(Generic[_Value]):
    """An attribute that can be set once.

    Rounds take its value when they are made, so that another one would have no effect.
    """

    def __init__(self, remedy: str = "make another optimizer"):
        """Keeps what to do instead of setting it."""
        self._remedy = remedy

    def __set_name__(self, owner: type, name: str) -> None:
        """Keeps the attribute's name."""
        self._name = name

    def __get__(self, optimizer: Any, owner: type | None = None) -> _Value:
        """Returns the value.

        Raises AttributeError: the constructor has not set it yet.
        """
        try:
            return vars(optimizer)[self._name]
        except KeyError:
            raise AttributeError(self._name) from None

    def __set__(self, optimizer: Any, value: _Value) -> None:
        """Sets the value, once.

        Raises AttributeError: it is set already.
        """
        if self._name in vars(optimizer):
            raise AttributeError(
                f"`{self._name}` of {type(optimizer).__name__} cannot be set after the "
                f"constructor: {self._remedy}. Received: {self._name}={value!r}"
            )
        vars(optimizer)[self._name] = value
