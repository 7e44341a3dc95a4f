"""Several steps in one graph, without a cluster."""

import pytest
import tensorflow as tf

from tf_syncrep.python.keras.fit.data import WorkersBatches
from tf_syncrep.python.keras.fit.execution import Execution
from tf_syncrep.python.keras.fit.metrics import NO_METRICS


class Drawing:
    """A step that returns the numbers of random ops with their own seeds."""

    def __call__(self, number, handles, batch):
        sampled, _, _ = tf.random.log_uniform_candidate_sampler(
            [[tf.cast(batch, tf.int64)]], 1, 4, unique=True, range_max=10**6, seed=1
        )
        return tf.concat(
            [tf.random.uniform([4], seed=1), tf.cast(sampled, tf.float32)], axis=0
        )

    def of_all(self, results):
        return tf.stack(results)


@pytest.mark.parametrize("size", [2, 5])
def test_each_step_draws_other_numbers(size):
    """Functions of single steps, with which an epoch may end, are included."""
    data = iter(tf.data.Dataset.range(1000))
    drawn = []
    for some in (1, size):
        execution = Execution(Drawing(), NO_METRICS, WorkersBatches(data, 1), some)
        for number in range(3):
            result = execution.function(tf.constant(number, tf.int64), data)
            drawn += map(tuple, execution.take(result).numpy())
    assert len(drawn) == 3 * (1 + size)
    for part in (slice(0, 4), slice(4, 8)):
        assert len({step[part] for step in drawn}) == len(drawn)
