"""Attributes of an optimizer that are those of the one in it."""

from typing import Any


class OfInner:
    """An attribute that is read from, and set in, `inner_optimizer`.

    Before there is one, while the base class's constructor runs, it is like any other.
    """

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, optimizer: Any, owner: type | None = None) -> Any:
        if optimizer is None:
            return self
        attributes = vars(optimizer)
        if "inner_optimizer" in attributes:
            return getattr(attributes["inner_optimizer"], self._name)
        try:
            return attributes[self._name]
        except KeyError:
            raise AttributeError(self._name) from None

    def __set__(self, optimizer: Any, value: Any) -> None:
        attributes = vars(optimizer)
        if "inner_optimizer" in attributes:
            setattr(attributes["inner_optimizer"], self._name, value)
        else:
            attributes[self._name] = value
