"""Shared libraries that a test builds for itself."""

import pathlib
import shutil
import subprocess

import pytest


def build(path: pathlib.Path, *arguments: str | pathlib.Path, text: str = "") -> str:
    """Builds one with g++, skips the test where there is none; returns its path.

    `arguments`: more of the compiler's; "-" among them stands for the source `text`.
    """
    compiler = shutil.which("g++")
    if compiler is None:
        pytest.skip("g++ is missing, so nothing is built")
    command = [compiler, "-shared", "-fPIC", "-o", path, *arguments]
    subprocess.run(command, input=text, text=True, check=True)
    return str(path)
