"""What conftest.py makes of skips."""

import os
import pathlib
import subprocess
import sys

import pytest

HERE = pathlib.Path(__file__).parent
SKIPS = """
import pytest

def test_case():
    pytest.skip("has no slots")

def test_without_a_program():
    pytest.skip("there is no openssl")
"""


@pytest.mark.parametrize(
    ("ci", "outcome"), [("", "3 skipped"), ("true", "1 failed, 1 skipped, 1 error")]
)
def test_ci_fails_for_want_of_something_that_tests_need(ci, outcome, tmp_path):
    (tmp_path / "test_skips.py").write_text(SKIPS)
    missing = "import pytest; pytest.importorskip('no_such_package')"
    (tmp_path / "test_package.py").write_text(missing)
    options = ["-p", "conftest", "-p", "no:cacheprovider", "--disable-warnings"]
    result = subprocess.run(
        [sys.executable, "-m", "pytest", *options, "--continue-on-collection-errors"],
        cwd=tmp_path,
        env=os.environ | {"CI": ci, "PYTHONPATH": f"{HERE}:{HERE / 'startup'}"},
        capture_output=True,
        text=True,
    )
    assert f" {outcome} in " in result.stdout, result.stdout + result.stderr
