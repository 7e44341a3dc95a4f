"""Has a worker read a large variable again and again.

Argument: the worker's process id. Tells how many new pages it needed for each read.
"""

import json
import pathlib
import sys

import programs
import tensorflow as tf
from keras_sync_replicas import make_strategy

STEPS = 40


def page_faults(pid):
    return int(
        pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[7]
    )


def main():
    strategy = make_strategy()
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
    with strategy.scope():
        variable = tf.Variable(tf.zeros([65536, 64]))

    @tf.function
    def step():
        return tf.reduce_sum(variable.read_value()[::512])

    faults = []
    for _ in range(2):
        for _ in range(STEPS):
            coordinator.schedule(step)
        coordinator.join()
        faults.append(page_faults(json.loads(sys.argv[1])))
    programs.report((faults[1] - faults[0]) / STEPS)


if __name__ == "__main__":
    main()
