"""English text that every CPython carries: the pages behind `help("topics")`.

`load` turns them into integer word ids; `skip_gram_batches` makes the endless
stream of (centre word, context word) batches that word vectors are trained on.
"""

from __future__ import annotations

import collections
import dataclasses
import re
from pydoc_data import topics

import numpy as np
import tensorflow as tf

_WORD = re.compile(r"[a-z_]{2,}")
_PARAGRAPH_BREAK = re.compile(r"\n\s*\n")


@dataclasses.dataclass(frozen=True)
class Corpus:
    """A text as word ids.

    The most frequent word is the first, and a word's id is its index: this order is
    what `tf.random.log_uniform_candidate_sampler` expects.
    """

    words: list[str]
    tokens: np.ndarray  # int32 `[length]`, the text as word ids
    paragraphs: np.ndarray  # int32 `[length]`, the number of each token's paragraph
    counts: np.ndarray  # int64 `[len(words)]`, how often each word occurs


def load(min_count: int = 8) -> Corpus:
    """Reads the help topics of the running Python, without its rarest words."""
    pages = (topics.topics[name] for name in sorted(topics.topics))
    paragraphs = [
        _WORD.findall(paragraph.lower())
        for page in pages
        for paragraph in _PARAGRAPH_BREAK.split(page)
    ]
    counter = collections.Counter(word for words in paragraphs for word in words)
    frequent = [(w, n) for w, n in counter.most_common() if n >= min_count]
    word_id = {word: i for i, (word, _) in enumerate(frequent)}
    ids = [
        (word_id[word], number)
        for number, words in enumerate(paragraphs)
        for word in words
        if word in word_id
    ]
    tokens, numbers = np.array(ids, np.int32).T
    return Corpus(
        words=list(word_id),
        tokens=np.ascontiguousarray(tokens),
        paragraphs=np.ascontiguousarray(numbers),
        counts=np.array([n for _, n in frequent], np.int64),
    )


def skip_gram_batches(
    corpus: Corpus,
    batch_size: int,
    seed: int | tf.Tensor,
    window: int = 5,
    subsample: float = 1e-3,
) -> tf.data.Dataset:
    """Returns an endless dataset of skip-gram pairs, shuffled anew in each pass.

    Frequent words are thinned out and each centre word draws its own window, as
    in Mikolov et al., "Distributed Representations of Words and Phrases and
    their Compositionality" (2013), section 2.3: the largest distance of a centre from
    its context is `window`, and words of a relative frequency above `subsample` are
    frequent. No pair crosses a paragraph. The seed determines the whole stream.

    Returns a dataset of `(centres, contexts)`, each int32 `[batch_size]`.
    """
    frequency = corpus.counts / corpus.counts.sum()
    keep_probability = np.minimum(1.0, np.sqrt(subsample / frequency))
    token_keep_probability = keep_probability[corpus.tokens].astype(np.float32)

    def batches_of_one_pass(number: tf.Tensor) -> tf.data.Dataset:
        seeds = tf.random.split(tf.stack([tf.cast(seed, tf.int64), number]), 3)
        draws = tf.random.stateless_uniform([len(corpus.tokens)], seeds[0])
        kept = tf.where(draws < token_keep_probability)[:, 0]
        tokens = tf.gather(corpus.tokens, kept)
        paragraphs = tf.gather(corpus.paragraphs, kept)
        reach = tf.random.stateless_uniform(
            tf.shape(tokens), seeds[1], minval=1, maxval=window + 1, dtype=tf.int32
        )

        pairs = []
        for distance in range(1, window + 1):
            left, right = tokens[:-distance], tokens[distance:]
            together = paragraphs[:-distance] == paragraphs[distance:]
            from_left = together & (reach[:-distance] >= distance)
            from_right = together & (reach[distance:] >= distance)
            pairs.append(tf.boolean_mask(tf.stack([left, right], 1), from_left))
            pairs.append(tf.boolean_mask(tf.stack([right, left], 1), from_right))
        shuffled = tf.random.experimental.stateless_shuffle(
            tf.concat(pairs, 0), seeds[2]
        )
        count = tf.shape(shuffled)[0] // batch_size
        batches = tf.reshape(shuffled[: count * batch_size], [count, batch_size, 2])
        return tf.data.Dataset.from_tensor_slices((batches[:, :, 0], batches[:, :, 1]))

    return tf.data.Dataset.counter().flat_map(batches_of_one_pass)
