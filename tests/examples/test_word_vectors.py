"""The word vector example, run as a user runs it but for fewer steps."""

import collections
import pathlib
import re

import commands
import numpy as np
import pydoc_corpus
import pytest

pytestmark = [pytest.mark.docs, pytest.mark.one_version]

pytest.importorskip("matplotlib", reason="the example draws with matplotlib")

SCRIPT = pathlib.Path(__file__).parents[2] / "examples" / "word_vectors.py"


def fixed_phrases(corpus):
    """Pairs of words `[pairs, 2]` that follow each other far beyond chance."""
    inside = corpus.paragraphs[1:] == corpus.paragraphs[:-1]
    neighbours = np.stack([corpus.tokens[:-1], corpus.tokens[1:]], axis=1)[inside]
    counts = collections.Counter(map(tuple, neighbours))

    def lift(left, right):
        by_chance = corpus.counts[left] * corpus.counts[right] / len(neighbours)
        return counts[left, right] / by_chance

    return np.array(
        [
            pair
            for pair, count in counts.items()
            if count >= 8 and pair[0] != pair[1] and lift(*pair) >= 40
        ]
    )


def share_of_phrases_closer_than_exchanged_ones(vectors, phrases):
    """How often a phrase's words are closer than the first and another's second.

    The same words are compared throughout, so it is one half for vectors that know
    nothing, and for those that know only how frequent each word is.
    """
    unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    cosines = unit[phrases[:, 0]] @ unit[phrases[:, 1]].T
    return np.mean(np.diagonal(cosines)[:, np.newaxis] > cosines)


@pytest.mark.parametrize(
    ("steps", "options"),
    [
        pytest.param(300, [], marks=pytest.mark.slow, id="asynchronously"),
        pytest.param(600, ["--replicas-to-aggregate", 2], id="synchronously"),
    ],
)
def test_learns_on_a_cluster_and_shows_what_it_learned(steps, options, tmp_path):
    result = commands.run(
        *("launch", "--workers", 2, "--ps", 2, SCRIPT),
        *("--steps", steps, "--steps-per-epoch", steps // 3, "--batch-size", 512),
        *("--dimensions", 16, "--negatives", 16, "--output", tmp_path, *options),
        env={"TF_CPP_MIN_LOG_LEVEL": "2"},
    )
    output = result.output
    assert result.process.returncode == 0, output

    assert "2 workers, 2 parameter servers" in output
    assert len(re.findall(r"step \d+  loss \d+\.\d+", output)) == 3, output
    for task in (0, 1):
        assert re.search(rf"/job:ps/replica:0/task:{task}/.* x 16", output), output
    assert re.search(r"\| +tuple  \w+, \w+, \w+, \w+, \w+, \w+", output), output
    assert re.search(rf"{steps} steps .*: \d+ steps per second", output), output

    assert (tmp_path / "loss.png").read_bytes().startswith(b"\x89PNG")
    saved = np.load(tmp_path / "vectors.npz")
    assert saved["vectors"].shape == (len(saved["words"]), 16)
    assert np.all(np.isfinite(saved["vectors"]))
    # The losses are not compared: 300 of them are too few to tell learning from noise.
    # Untrained vectors give 0.5, give or take 0.02; these give 0.7.
    phrases = fixed_phrases(pydoc_corpus.load())
    assert len(phrases) > 100
    share = share_of_phrases_closer_than_exchanged_ones(saved["vectors"], phrases)
    assert share > 0.6, output

    if options:
        report = commands.run("report", tmp_path / "logs")
        assert re.search(r"[1-9]\d* updates .*; quorum 2 of 2 workers", report.output)
