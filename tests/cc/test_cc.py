"""Builds the C++ tests of tf_syncrep/cc/lib and runs each program as one test.

They need CMake, a C++ compiler and GoogleTest, and no TensorFlow. Where one of these
is missing they are skipped, and the reason names what to install.
TF_SYNCREP_SANITIZER=thread (or address,undefined) builds them with sanitizers, and
those that draw calls go on drawing for TF_SYNCREP_FUZZ_SECS.
"""

import os
import pathlib

import native_builds
import pytest

pytestmark = pytest.mark.slow

PROGRAMS = sorted(
    path.stem for path in pathlib.Path(__file__).parent.rglob("*_test.cc")
)
SANITIZER = os.environ.get("TF_SYNCREP_SANITIZER", "")
# Without a sanitizer, every passing test takes less than a tenth of this.
PROGRAM_SECS = 900


@pytest.mark.parametrize("program", PROGRAMS)
def test_program_passes(program: str):
    programs = native_builds.build(
        "_".join(["cc_tests", *SANITIZER.split(",")]).rstrip("_"),
        "-DTF_SYNCREP_CC_TESTS=ON",
        f"-DTF_SYNCREP_SANITIZER={SANITIZER}",
    )
    command = (programs / "cc" / program, "--gtest_brief=1")
    print(native_builds.run(*command, timeout_secs=PROGRAM_SECS))
