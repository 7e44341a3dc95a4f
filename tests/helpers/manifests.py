"""The Kubernetes manifests in deploy/."""

import pathlib
from typing import Any

import pytest

yaml = pytest.importorskip("yaml", reason="PyYAML reads manifests")

ROOT = pathlib.Path(__file__).parents[2]


def load(name: str) -> list[Any]:
    """The documents of a file in deploy/."""
    return list(yaml.safe_load_all((ROOT / "deploy" / name).read_text()))
