"""Fixtures for tests of commands that run scripts."""

import pytest


@pytest.fixture
def script(tmp_path):
    """A function that writes `script.py` in `tmp_path`, and returns its path."""

    def write(source):
        path = tmp_path / "script.py"
        path.write_text(source)
        return path

    return write
