"""Whether a class can be called in TensorFlow's class's place."""

import inspect
from typing import Any

_POSITIONAL = (
    inspect.Parameter.POSITIONAL_ONLY,
    inspect.Parameter.POSITIONAL_OR_KEYWORD,
    inspect.Parameter.VAR_POSITIONAL,
    inspect.Parameter.VAR_KEYWORD,
)


def assert_takes_the_arguments_of(stock: type, ours: type) -> list[str]:
    """Compares the constructors and all public methods, inherited ones included.

    Ours may have more methods, and more arguments that are given by keyword alone.

    Args:
        stock: TensorFlow's class.
        ours: the one in its place.

    Returns:
        The names of the methods that were compared.

    Raises:
        AssertionError: ours lacks a method or an argument, has another default or
            another order, or more positional arguments.
    """
    methods = [
        name
        for name, _ in inspect.getmembers(stock, inspect.isfunction)
        if name == "__init__" or name[0] != "_"
    ]
    for name in methods:
        positional, keyword_only = _arguments(getattr(ours, name))
        stock_positional, stock_keyword_only = _arguments(getattr(stock, name))
        assert positional == stock_positional, f"{ours.__name__}.{name}"
        assert keyword_only.items() >= stock_keyword_only.items(), (
            f"{ours.__name__}.{name}"
        )
    return methods


def _arguments(method: Any) -> tuple[list[tuple[str, Any]], dict[str, Any]]:
    """Names and defaults of a method's arguments, those by keyword alone apart."""
    parameters = inspect.signature(method).parameters.values()
    positional = [(p.name, p.default) for p in parameters if p.kind in _POSITIONAL]
    keyword_only = {p.name: p.default for p in parameters if p.kind not in _POSITIONAL}
    return positional, keyword_only
