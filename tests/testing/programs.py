"""Programs that tests run in processes of their own, and that report as JSON."""

import json
import os
import pathlib
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

_PREFIX = "RESULT "
_DEADLINE_SECS = 200.0


def environment() -> dict[str, str]:
    """What a program's environment must add, so that it finds the tests' helpers."""
    paths = [str(pathlib.Path(__file__).parent), os.environ.get("PYTHONPATH", "")]
    return {"PYTHONPATH": os.pathsep.join(filter(None, paths))}


def report(result: Mapping[str, Any]) -> None:
    """Called by a program, once: hands its result to the test."""
    print(_PREFIX + json.dumps(result), flush=True)


def result_in(output: str) -> Any:
    """What a program whose output this is reported.

    Raises:
        AssertionError: it reported nothing.
    """
    for line in output.splitlines():
        if line.startswith(_PREFIX):
            return json.loads(line.removeprefix(_PREFIX))
    raise AssertionError(f"no result in\n{output[-5000:]}")


def last_result_in(output: str) -> Any:
    """The same of a program that was run several times."""
    return result_in("\n".join(reversed(output.splitlines())))


def run(path: pathlib.Path, *args: object, env: Mapping[str, str] = os.environ) -> Any:
    """Runs a program to its end and returns what it reported.

    Args:
        path: a Python file.
        *args: its arguments, turned to JSON.
        env: its environment, to which `environment` is added.

    Raises:
        AssertionError: it failed.
        subprocess.TimeoutExpired: it took too long; it has been killed then.
    """
    finished = subprocess.run(
        [sys.executable, str(path), *map(json.dumps, args)],
        env={**env, **environment()},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=_DEADLINE_SECS,
        check=False,
    )
    assert finished.returncode == 0, finished.stderr[-5000:]
    return result_in(finished.stdout)
