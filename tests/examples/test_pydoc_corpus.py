"""The corpus of the word vector example: ids, pairs, order."""

import numpy as np
import pydoc_corpus
import pytest


@pytest.fixture(scope="module")
def corpus():
    return pydoc_corpus.load(min_count=8)


def take(dataset, count):
    batches = list(dataset.take(count).as_numpy_iterator())
    return np.stack(batches, axis=1)


def test_words_are_sorted_by_how_often_they_occur(corpus):
    assert len(corpus.words) == len(set(corpus.words)) > 500
    assert "tuple" in corpus.words
    np.testing.assert_array_equal(
        corpus.counts, np.bincount(corpus.tokens, minlength=len(corpus.words))
    )
    assert np.all(np.diff(corpus.counts) <= 0)
    assert corpus.counts[-1] >= 8


def test_a_seed_gives_one_order_and_another_seed_another(corpus):
    first, again, other = (
        take(pydoc_corpus.skip_gram_batches(corpus, 64, seed), 3) for seed in (1, 1, 2)
    )
    np.testing.assert_array_equal(first, again)
    assert np.mean(first == other) < 0.2


def test_each_pass_has_an_order_of_its_own():
    words = [f"w{i}" for i in range(100)]
    tokens = np.arange(100, dtype=np.int32)
    tiny = pydoc_corpus.Corpus(
        words, tokens, np.zeros(100, np.int32), np.ones(100, np.int64)
    )
    # No word is dropped, and a window of 1 leaves 198 pairs: two batches.
    batches = take(
        pydoc_corpus.skip_gram_batches(tiny, 99, seed=1, window=1, subsample=1.0), 4
    )
    pairs = [
        set(zip(*batches[:, i : i + 2].reshape(2, -1), strict=True)) for i in (0, 2)
    ]
    assert pairs[0] == pairs[1]
    assert pairs[0] == {(i, j) for i in range(100) for j in (i - 1, i + 1)} - {
        (0, -1),
        (99, 100),
    }
    assert not np.array_equal(batches[:, :2], batches[:, 2:])


def test_pairs_lie_within_the_window_and_within_a_paragraph():
    tokens = np.arange(60, dtype=np.int32)
    paragraphs = tokens // 10
    corpus = pydoc_corpus.Corpus(
        [f"w{i}" for i in range(60)], tokens, paragraphs, np.ones(60, np.int64)
    )
    centres, contexts = take(
        pydoc_corpus.skip_gram_batches(corpus, 50, seed=3, window=3, subsample=1.0), 20
    )
    distance = np.abs(centres - contexts)
    assert set(np.unique(distance)) == {1, 2, 3}
    np.testing.assert_array_equal(paragraphs[centres], paragraphs[contexts])


def test_frequent_words_are_thinned_out(corpus):
    centres, _ = take(pydoc_corpus.skip_gram_batches(corpus, 1024, seed=1), 50)
    share_of_the = np.mean(centres == corpus.words.index("the"))
    assert share_of_the < 0.5 * corpus.counts[0] / corpus.counts.sum()
