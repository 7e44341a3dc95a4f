"""Sparse gradients that come from a GPU are summed in the host's memory.

The GPU is an emulated one: TensorFlow places ops on it, and copies what they read.
"""

import pathlib

import numpy as np
import programs
import pytest
import shared_libraries

pytestmark = [pytest.mark.ci, pytest.mark.one_version]

SOURCE = pathlib.Path(__file__).with_name("emulated_gpu.cc")
ROWS, WIDTH, NUM_GRADIENTS = 9, 2, 3


def gradients():
    random = np.random.default_rng(0)
    for _ in range(NUM_GRADIENTS):
        ids = random.integers(0, ROWS, 5)
        yield ids, random.normal(size=[len(ids), WIDTH]).astype(np.float32)


def flags_of_tensorflow():
    import tensorflow as tf

    flags = [*tf.sysconfig.get_compile_flags(), *tf.sysconfig.get_link_flags()]
    return [*flags, "-l:libtensorflow_cc.so.2"]


def mean_of_gradients(library, in_function):
    import ctypes

    import tensorflow as tf

    num_copies_to_host = ctypes.CDLL(library).NumCopiesToHost
    import tf_syncrep as tfs

    def mean():
        with tf.device("GPU:0"):
            accumulator = tfs.ops.sparse_accumulator(
                tf.float32, [ROWS, WIDTH], counted=True
            )
            accepted = []
            for ids, values in gradients():
                arguments = tf.identity(tf.constant(ids)), tf.identity(values)
                assert all(x.device.endswith("GPU:0") for x in arguments)
                with tf.control_dependencies(accepted):
                    accepted = [
                        tfs.ops.accumulator_apply_sparse(accumulator, 0, *arguments)
                    ]
            with tf.control_dependencies(accepted):
                found = tfs.ops.accumulator_take_sparse(
                    accumulator, NUM_GRADIENTS, tf.float32
                )
        return tf.identity(found.indices), tf.identity(found.values)

    found = (tf.function(mean, autograph=False) if in_function else mean)()
    return [x.numpy().tolist() for x in found], num_copies_to_host()


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    path = tmp_path_factory.mktemp("emulated_gpu") / "libemulated_gpu.so"
    flags = programs.call(flags_of_tensorflow)
    return shared_libraries.build(path, "-w", SOURCE, *flags)


@pytest.mark.parametrize("in_function", [True, False], ids=["function", "eager"])
def test_sparse_gradients_of_a_gpu_are_summed_on_the_host(library, in_function):
    sums, counts = np.zeros([ROWS, WIDTH]), np.zeros([ROWS, 1])
    for ids, values in gradients():
        np.add.at(sums, ids, values)
        counts[np.unique(ids)] += 1
    (indices, means), num_copies = programs.call(
        mean_of_gradients, library, in_function
    )
    np.testing.assert_array_equal(indices, np.flatnonzero(counts))
    np.testing.assert_allclose(means, (sums / np.maximum(counts, 1))[indices], 1e-6)
    assert num_copies >= 2 * NUM_GRADIENTS  # of ids and values
