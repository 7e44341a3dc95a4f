"""Kubernetes manifests, compared with the schemas by which clusters check them.

The schemas are in the Python clients of Kubernetes and of Kubeflow's training operator,
which are generated from them.
"""

import pathlib
import re
from collections.abc import Sequence
from typing import Any

import pytest

yaml = pytest.importorskip("yaml", reason="PyYAML reads manifests")

ROOT = pathlib.Path(__file__).parents[2]


def load(name: str) -> list[Any]:
    """The documents of a file in deploy/."""
    return list(yaml.safe_load_all((ROOT / "deploy" / name).read_text()))


def violations(
    value: Any, type_name: str, clients: Sequence[Any], where: str = "manifest"
) -> list[str]:
    """Finds entries that a value's type does not know, and required ones it lacks.

    Args:
        value: a value from YAML.
        type_name: the name of its type, as in the clients.
        clients: the modules with the classes of types.
        where: where it is, for messages.
    """
    # Older and newer clients write types differently.
    many = re.fullmatch(
        r"[lL]ist\[(.*)\]|dict\(str, (.*)\)|Dict\[str, (.*)\]", type_name
    )
    if many:
        is_list = many[1] is not None
        if not isinstance(value, list if is_list else dict):
            return [f"{where} must be a {type_name}. Received: {value!r}"]
        items = enumerate(value) if is_list else value.items()
        inner = many[1] or many[2] or many[3]
        return [
            v
            for k, x in items
            for v in violations(x, inner, clients, f"{where}[{k!r}]")
        ]
    plain = {"str": str, "int": int, "bool": bool, "object": object}
    if type_name in plain:
        if isinstance(value, plain[type_name]):
            return []
        return [f"{where} must be a {type_name}. Received: {value!r}"]
    model = next(
        getattr(client, type_name) for client in clients if hasattr(client, type_name)
    )
    names = {key: name for name, key in model.attribute_map.items()}
    found = [f"{where} has no {key!r}" for key in value if key not in names]
    attributes = {names[key]: item for key, item in value.items() if key in names}
    try:
        model(**attributes)  # raises an error if a required entry is missing
    except ValueError as error:
        found.append(f"{where}: {error}")
    for name, item in attributes.items():
        kind = model.openapi_types[name]
        found += violations(item, kind, clients, f"{where}.{name}")
    return found


def assert_runs_an_example(args: Sequence[str]) -> None:
    """Asserts that the image contains a script, and that the script has its options.

    Args:
        args: the script, its path in the image, and its arguments.
    """
    script, *options = args
    assert (ROOT / script.removeprefix("/app/")).is_file()
    source = (ROOT / script.removeprefix("/app/")).read_text()
    unknown = [x for x in options if x.startswith("--") and f'add("{x}"' not in source]
    assert unknown == []
