"""Replays what the fuzzers have found worth keeping, under sanitizers.

It needs CMake and a C++ compiler, and no fuzzer. See docs/simulator.md.
"""

import pathlib

import native_builds
import pytest

# The build counts as part of the first test.
pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]

CORPUS = pathlib.Path(__file__).parent / "corpus"


@pytest.mark.parametrize("topic", ["gate", "accumulator", "table"])
def test_corpus_has_no_errors(topic: str):
    programs = native_builds.build(
        "fuzz_replay",
        "-DTF_SYNCREP_FUZZ_REPLAY=ON",
        "-DTF_SYNCREP_SANITIZER=address,undefined",
    )
    replay = programs / "fuzz" / f"replay_{topic}"
    assert "inputs" in native_builds.run(replay, CORPUS / f"{topic}.corpus")
