"""Checks that a class can replace TensorFlow's class in calls."""

import inspect


def assert_takes_the_arguments_of(stock: type, ours: type) -> list[str]:
    """Compares constructors and all public methods, inherited ones too; returns these.

    Our class may have more methods, and more keyword-only arguments.
    """
    methods = [
        name
        for name, _ in inspect.getmembers(stock, inspect.isfunction)
        if name == "__init__" or name[0] != "_"
    ]
    for name in methods:
        wanted = inspect.signature(getattr(stock, name)).parameters
        given = inspect.signature(getattr(ours, name)).parameters
        assert [(p.name, p.default, p.kind) for p in wanted.values()] == [
            (p.name, p.default, p.kind)
            for p in given.values()
            if p.name in wanted or p.kind != p.KEYWORD_ONLY
        ], f"{ours.__name__}.{name}"
    return methods
