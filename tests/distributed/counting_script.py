"""A coordinator: lets workers count on a server, says what they counted, and ends."""

import sys

import tensorflow as tf

import tf_syncrep as tfs  # noqa: F401  Its ops are for all tasks.


def main(stays: bool) -> None:
    """Counts; then, if it `stays`, waits for the end of its standard input."""
    strategy = tf.distribute.ParameterServerStrategy(
        tf.distribute.cluster_resolver.TFConfigClusterResolver()
    )
    with strategy.scope():
        counter = tf.Variable(0)
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
    for _ in range(6):
        coordinator.schedule(tf.function(lambda: counter.assign_add(1)))
    coordinator.join()
    print("counted", counter.numpy(), "on", counter.device, flush=True)
    if stays:
        sys.stdin.read()


if __name__ == "__main__":
    main("stays" in sys.argv)
