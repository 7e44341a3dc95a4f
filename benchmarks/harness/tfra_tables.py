"""Tables of TensorFlow Recommenders Addons (TFRA), beside those of `dynamic_table`.

    PYTHON tfra_tables.py KEYS WIDTH ROUNDS FOUND TRAINED

Runs by an interpreter that has TFRA, each of whose wheels is for one version of
TensorFlow, and imports nothing of tf_syncrep. Two things are timed, in turns and on one
thread: FOUND keys are found and their vectors read; TRAINED keys are found, read, and
moved by `DynamicEmbeddingOptimizer` around Adam of tf_keras. Vectors that are found are
checked, and how far Adam moves them.

The last line of the output is a list as JSON: for each of the two, the seconds of its
calls, and the seconds of processor time.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import time

os.environ.update(
    {
        "CUDA_VISIBLE_DEVICES": "-1",
        "TF_CPP_MIN_LOG_LEVEL": "2",
        "TF_USE_LEGACY_KERAS": "1",
    }
)

import numpy as np
import tensorflow as tf

_RATE = 1e-3
_BATCHES = 8
_LOOKUP = "lookup"


def main(num: int, width: int, rounds: int, found: int, trained: int) -> None:
    """Measures, and prints."""
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    tfra = importlib.import_module("tensorflow_recommenders_addons").dynamic_embedding
    draw = np.random.default_rng(7)
    keys = draw.permutation(np.unique(draw.integers(-(1 << 62), 1 << 62, num + 1000)))
    keys = keys[:num]
    vectors = np.sin(np.arange(num)[:, None] + np.arange(width)).astype(np.float32)
    table = tfra.get_variable(
        "items",
        key_dtype=tf.int64,
        value_dtype=tf.float32,
        dim=width,
        initializer=0.0,
        devices=["/CPU:0"],
        init_size=num,
    )
    table.upsert(tf.constant(keys), tf.constant(vectors))
    optimizer = tfra.DynamicEmbeddingOptimizer(tf.keras.optimizers.Adam(_RATE))

    @tf.function
    def find(asked):
        return table.lookup(asked)

    @tf.function
    def train(asked, gradient):
        with tf.GradientTape() as tape:
            rows = tfra.embedding_lookup(table, asked, name=_LOOKUP)
            trainable = table.get_trainable_by_name(_LOOKUP)
            loss = tf.reduce_sum(rows * gradient)
        gradients = tape.gradient(loss, [trainable])
        optimizer.apply_gradients(zip(gradients, [trainable], strict=True))

    def batches(size):
        picked = [
            draw.choice(num, min(size, num // 2), replace=False)
            for _ in range(_BATCHES)
        ]
        return [(p, tf.constant(keys[p])) for p in picked]

    to_find, to_train = batches(found), batches(trained)
    for picked, asked in to_find:
        np.testing.assert_array_equal(find(asked), vectors[picked])
    picked, asked = to_train[0]
    gradient = tf.constant(draw.uniform(1, 2, [len(picked), width]).astype(np.float32))
    train(asked, gradient)
    # The first step of Adam is one learning rate long, whatever the gradient.
    np.testing.assert_allclose(find(asked), vectors[picked] - _RATE, atol=1e-5)

    calls = (
        lambda i: find(to_find[i % _BATCHES][1]),
        lambda i: train(to_train[i % _BATCHES][1], gradient),
    )
    wall, cpu = ([[] for _ in calls] for _ in range(2))
    for i in range(rounds):
        for number, call in enumerate(calls):
            begin_cpu, begin = time.process_time(), time.perf_counter()
            call(i)
            wall[number].append(time.perf_counter() - begin)
            cpu[number].append(time.process_time() - begin_cpu)
    print(json.dumps(list(zip(wall, cpu, strict=True))))


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
