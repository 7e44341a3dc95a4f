"""Loads an op library by its path and runs one of its ops: run_one_op.py LIBRARY."""

import os
import sys

import numpy as np
import tensorflow as tf


def main() -> None:
    """Runs a dense AdamAsync step from zero slots: Adam's first step is -lr * sign."""
    library = tf.load_op_library(os.path.abspath(sys.argv[1]))
    var, m, v = (tf.Variable([0.0, 0.0]) for _ in range(3))
    beta1_power, beta2_power = tf.Variable([0.9]), tf.Variable([0.999])
    library.resource_apply_adam_async(
        *(x.handle for x in (var, m, v, beta1_power, beta2_power)),
        lr=0.1,
        beta1=0.9,
        beta2=0.999,
        epsilon=1e-8,
        grad=[2.0, -3.0],
    )
    np.testing.assert_allclose(var.numpy(), [-0.1, 0.1], rtol=1e-5)
    print(f"{sys.argv[1]} runs in TensorFlow {tf.__version__}")


if __name__ == "__main__":
    main()
