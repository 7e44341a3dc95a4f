"""What tf_syncrep's public names are, and the examples in their docstrings."""

from __future__ import annotations

import importlib
import inspect
import re
import types
from collections.abc import Iterator
from typing import Any

import tf_syncrep

# As users import it: `import tf_syncrep as tfs`.
ALIAS = "tfs"

_FENCED = re.compile(r"^```python\n(.*?)^```", re.DOTALL | re.MULTILINE)


def namespaces() -> dict[str, types.ModuleType]:
    """Returns the public modules, by the names under which users know them."""
    modules = {ALIAS: tf_syncrep}
    for name in tf_syncrep.__all__:
        value = getattr(tf_syncrep, name)
        if inspect.ismodule(value):
            modules[f"{ALIAS}.{name}"] = importlib.import_module(f"tf_syncrep.{name}")
    return modules


def names_of(module: types.ModuleType) -> list[str]:
    """Returns a module's public functions and classes, in order of its `__all__`."""
    return [name for name in module.__all__ if callable(getattr(module, name))]


def public_names() -> Iterator[tuple[str, Any]]:
    """Yields public functions and classes, as users write them, and what they are."""
    for prefix, module in namespaces().items():
        for name in names_of(module):
            yield f"{prefix}.{name}", getattr(module, name)


def scripts(value: Any) -> list[str]:
    """Returns the fenced examples in a docstring."""
    return _FENCED.findall(inspect.getdoc(value) or "")
