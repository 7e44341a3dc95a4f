"""Checks that pyright knows the types of all that the public modules have.

    python tools/public_types.py

asks it what it would tell users of the installed package (`--verifytypes`), and prints
what it does not know of the public names and their attributes. TensorFlow has no types,
or partial ones: that a class of its is a base is left out.
"""

import ast
import json
import os
import pathlib
import subprocess
import sys
import tempfile

_PACKAGE = pathlib.Path(__file__).resolve().parents[1] / "tf_syncrep"
_BIN = pathlib.Path(sys.executable).parent
# What is said of a class whose base is one of TensorFlow's, and of what takes or
# returns one of TensorFlow's generic ones.
_OF_TENSORFLOW = (
    "Type of metaclass unknown",
    "Type of base class",
    'Return type is partially unknown\n\xa0\xa0Return type is "Dataset[Unknown]"',
)


def public_names() -> list[str]:
    """Returns where the names of the public modules are defined."""
    return sorted(
        f"{node.module}.{alias.name}"
        for path in _PACKAGE.glob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ImportFrom)
        and (node.module or "").startswith("tf_syncrep.python.")
        for alias in node.names
    )


def unknown_types() -> list[str]:
    """Returns a line for each attribute of a public name whose type is not known."""
    with tempfile.TemporaryDirectory() as elsewhere:  # not the source, but the package
        checked = subprocess.run(
            [
                *(_BIN / "pyright", "--verifytypes", "tf_syncrep"),
                *("--ignoreexternal", "--outputjson"),
            ],
            cwd=elsewhere,
            # It looks for packages where the Python on PATH does.
            env={**os.environ, "PATH": f"{_BIN}{os.pathsep}{os.environ['PATH']}"},
            capture_output=True,
            text=True,
            check=False,
        )
    symbols = json.loads(checked.stdout)["typeCompleteness"]["symbols"]
    if not symbols:
        raise SystemExit("pyright finds no installed tf_syncrep, or one without types")
    names = public_names()
    return [
        f"{symbol['name']}: {' '.join(diagnostic['message'].split())}"
        for symbol in symbols
        if any(f"{symbol['name']}.".startswith(f"{name}.") for name in names)
        for diagnostic in symbol["diagnostics"]
        if diagnostic["severity"] == "error"
        and not diagnostic["message"].startswith(_OF_TENSORFLOW)
    ]


if __name__ == "__main__":
    found = unknown_types()
    print("\n".join(found) or "All public types are known.")
    sys.exit(bool(found))
