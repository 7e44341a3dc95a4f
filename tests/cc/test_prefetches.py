"""Compiled code contains its prefetches, at every level of optimization.

Otherwise only the running time would show it, and compilers drop calls of functions
that do nothing else.
"""

import functools
import os
import pathlib
import platform
import re
import shutil
import subprocess

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.one_version]

ROOT = pathlib.Path(__file__).resolve().parents[2]
LIB = ROOT / "tf_syncrep" / "cc" / "lib"
# The least number of prefetches in each source that has any: for each type of a table,
# of its row numbers, and of what is prefetched.
AT_LEAST = {
    "accumulator_sparse.cc": 4 * 2,
    "rows/row_combine.cc": 4 * 3,
    "rows/row_gather.cc": 6 * 2,
    "rules/apply_rule.cc": 4 * 2 * 2,
    # Buckets and keys to find, and uses beside them to use and to add.
    "table/dynamic_table.cc": 2 + 3 + 3,
    "table/key_segment.cc": 1,
}
INSTRUCTION = {"x86_64": r"\tprefetch", "aarch64": r"\tprfm"}


@functools.cache
def options():
    """Returns the options with which CMake compiles."""
    cmake = (ROOT / "CMakeLists.txt").read_text()
    (options,) = re.findall(r"\nadd_compile_options\(([^)]*)\)", cmake)
    return ["-std=c++17", "-DNDEBUG", "-fPIC", "-fvisibility=hidden", *options.split()]


def test_every_source_with_prefetches_is_known():
    sources = {
        str(path.relative_to(LIB))
        for path in LIB.rglob("*.cc")
        if "Prefetch<" in path.read_text()
    }
    assert sources == set(AT_LEAST)


@pytest.mark.parametrize("level", ["-O2", "-O3"])
@pytest.mark.parametrize("source", AT_LEAST)
def test_prefetches_are_compiled(source, level):
    compiler = os.environ.get("CXX") or shutil.which("c++")
    instruction = INSTRUCTION.get(platform.machine())
    if compiler is None or instruction is None:
        pytest.skip("needs a C++ compiler for x86-64 or AArch64")
    command = [compiler, *options(), level, f"-I{ROOT}", "-S", "-o-", str(LIB / source)]
    compiled = subprocess.run(command, capture_output=True, text=True, check=True)
    assert len(re.findall(instruction, compiled.stdout)) >= AT_LEAST[source]
