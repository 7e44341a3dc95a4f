"""Several steps in one graph, without a cluster."""

import concurrent.futures
import contextlib
import itertools
import threading

import keras_variants
import numpy as np
import pytest
import tensorflow as tf
from process_threads import resident
from waiting import in_thread

from tf_syncrep.python.keras.compat.tracing import scratch_graph
from tf_syncrep.python.keras.fit.batches import WorkersBatches
from tf_syncrep.python.keras.fit.execution import Execution
from tf_syncrep.python.keras.fit.metrics import NO_METRICS, Metrics, Results, metrics_of
from tf_syncrep.python.keras.fit.step import exact_state, number_of


class Drawing:
    """A step that returns the numbers of random ops with their own seeds."""

    metrics, prefetch_rows = NO_METRICS, False

    def __call__(self, handles, batch):
        sampled, _, _ = tf.random.log_uniform_candidate_sampler(
            [[tf.cast(batch, tf.int64)]], 1, 4, unique=True, range_max=10**6, seed=1
        )
        return tf.concat(
            [tf.random.uniform([4], seed=1), tf.cast(sampled, tf.float32)], axis=0
        )

    def of_all(self, results):
        return tf.stack(results)


class Numbered:
    """A step that asks for the number of its execution."""

    metrics, prefetch_rows = NO_METRICS, False

    def __call__(self, handles, batch):
        del handles, batch
        return number_of(self.next_number)

    def of_all(self, results):
        return tf.stack(results)


def execution_of(step, data, size):
    numbers = itertools.count(10)
    step.next_number = lambda: next(numbers)
    return Execution(step, WorkersBatches, data.element_spec, size)


def call(execution, data):
    """Calls an execution; returns what the steps returned."""
    return execution.take(execution.fetched(*execution.traced(data)))


def test_an_execution_has_a_number_if_its_steps_ask_for_it():
    data = iter(tf.data.Dataset.range(1000))
    execution = execution_of(Numbered(), data, 2)
    told = [call(execution, data) for _ in range(3)]
    np.testing.assert_array_equal(told, [[10, 10], [11, 11], [12, 12]])


@pytest.mark.skipif(
    not keras_variants.IS_KERAS_3, reason="Keras 2 has no generators of seeds"
)
def test_threads_that_prepare_data_draw_as_before_while_a_step_is_traced():
    drawn = []

    def draw():
        seed = tf.keras.random.SeedGenerator(1).next().numpy().tolist()
        with tf.Graph().as_default():
            op = tf.random.uniform([], seed=7).op
        return seed, op.get_attr("seed2")

    def draw_elsewhere():
        drawn.append(in_thread(draw).result(60))

    class DrawingElsewhere:
        """A step during whose tracing another thread draws numbers."""

        metrics, prefetch_rows = NO_METRICS, False

        def __call__(self, handles, batch):
            with exact_state(lambda: number_of(self.next_number)):
                draw_elsewhere()
            return tf.cast(batch, tf.float32)

        def of_all(self, results):
            return tf.stack(results)

    draw_elsewhere()
    data = iter(tf.data.Dataset.range(1000))
    execution_of(DrawingElsewhere(), data, 2)
    assert drawn == 3 * [([1, 0], 7)]


def test_nothing_is_sent_for_a_number_that_no_step_asks_for():
    data = iter(tf.data.Dataset.range(1000))
    inputs = [
        len(execution_of(step(), data, 2).traced.inputs) for step in (Numbered, Drawing)
    ]
    assert inputs[0] == inputs[1] + 1


@pytest.mark.parametrize("sizes", [(1, 2, 3), (1, 5)])
def test_each_step_draws_other_numbers(sizes):
    """Whether it is made alone, as at the end of an epoch, or with others."""
    data = iter(tf.data.Dataset.range(1000))
    drawn = []
    for some in sizes:
        execution = execution_of(Drawing(), data, some)
        for _ in range(3):
            drawn += map(tuple, call(execution, data))
    assert len(drawn) == 3 * sum(sizes)
    for part in (slice(0, 4), slice(4, 8)):
        assert len({step[part] for step in drawn}) == len(drawn)


def test_steps_are_traced_by_one_thread_at_a_time():
    """Methods of Keras' classes are replaced meanwhile."""
    met = threading.Barrier(2)

    class Meeting(Numbered):
        def __call__(self, handles, batch):
            with contextlib.suppress(threading.BrokenBarrierError):
                met.wait(timeout=0.5)
            return super().__call__(handles, batch)

    def trace():
        data = iter(tf.data.Dataset.range(1000))
        execution = execution_of(Meeting(), data, 1)
        return call(execution, data).tolist()

    with concurrent.futures.ThreadPoolExecutor() as pool:
        calls = [pool.submit(trace) for _ in range(2)]
        assert [call.result(timeout=60) for call in calls] == [[10], [10]]
    assert met.broken


def test_metrics_of_models_within_models_are_added_up_as_well():
    class Part(tf.keras.Model):
        def __init__(self):
            super().__init__()
            self.measured = {"all": [tf.keras.metrics.AUC(name="within")]}

    class Whole(tf.keras.Model):
        def __init__(self):
            super().__init__()
            self.parts = [Part()]

    model = Whole()
    (auc,) = model.parts[0].measured["all"]
    found = {id(x) for x in metrics_of(model, 2)._variables}
    assert found == {id(keras_variants.native(x)) for x in auc.variables}


@pytest.mark.parametrize(
    ("update", "is_sum"),
    [
        (lambda x: x.assign_add(2.0), True),
        (lambda x: x.assign_sub(2.0), True),
        (lambda x: x.assign(2.0 + x), True),
        (lambda x: x.assign(x - 2.0), True),
        (lambda x: x.assign(2.0 - x), False),
        (lambda x: x.assign(x + x), False),
        (lambda x: x.assign_add(x), False),
        (lambda x: x.assign(2.0 * x), False),
        (lambda x: x.assign(2.0), False),
        (
            lambda x: tf.cond(
                tf.constant(True), lambda: x.assign_add(2.0), lambda: 0.0
            ),
            True,
        ),
        (lambda x: tf.cond(x > 2.0, lambda: x.assign_add(2.0), lambda: 0.0), False),
    ],
)
def test_steps_do_nothing_to_metrics_but_add(update, is_sum):
    x = tf.Variable(0.0)
    metrics = Metrics({x.ref(): "own"})

    @tf.function(autograph=False)
    def step():
        handles = [tf.identity(handle) for handle in metrics.handles_of_zeros()]
        with metrics.steps_on(handles):
            update(x)
        metrics.check(handles)

    if is_sum:
        step()
    else:
        with pytest.raises(ValueError, match="metric own, whose update does"):
            step()


@pytest.mark.parametrize(
    "result",
    [
        lambda x: x + 1.0,
        lambda x: tf.cond(x > 2.0, lambda: x + 1.0, lambda: 0.0),
        lambda x: tf.while_loop(lambda i: i < x, lambda i: (i + x,), (1.0,))[0],
        lambda x: tf.function(lambda: x + 1.0)(),
    ],
    ids=["step", "branch", "loop", "function"],
)
def test_results_are_computed_from_other_variables_wherever_they_are_read(result):
    x, other = tf.Variable(0.0), tf.Variable(3.0)
    metrics = Metrics({x.ref(): "own"})

    @tf.function(autograph=False)
    def step():
        handles = [tf.identity(handle) for handle in metrics.handles_of_zeros()]
        with metrics.steps_on(handles):
            leaf = result(x)
        metrics.check(handles)
        return Results([leaf], handles).compute([tf.identity(other.handle)], [])

    assert [float(value) for value in step()] == [4.0]


def are_there(handles):
    return [bool(tf.raw_ops.VarIsInitializedOp(resource=x)) for x in handles]


def test_variables_of_metrics_live_as_long_as_an_execution():
    own = tf.Variable(tf.zeros([2**22]))  # 16 MiB

    def execute():
        metrics = Metrics({own.ref(): "own"})

        @tf.function
        def execution():
            handles = metrics.handles_of_zeros()
            with metrics.steps_on(handles):
                own[:1].assign([1.0])
            return metrics.values(handles)[0]

        assert execution() == 1.0

    execute()
    before = resident()
    for _ in range(10):
        execute()
    assert resident() - before < 5 * 4 * 2**22


def test_variables_of_metrics_here_live_as_long_as_a_training():
    own = tf.Variable([2.0, 3.0])
    metrics = Metrics({own.ref(): "own"})
    add = tf.function(metrics.add)
    for _ in range(2):  # The function was traced in the first one.
        with metrics.here():
            (handle,) = add(tf.constant([1.0, 1.0], tf.float64))
            assert are_there([handle]) == [True]
        assert are_there([handle]) == [False]
    np.testing.assert_array_equal(own, [4.0, 5.0])


def test_what_metrics_have_counted_until_an_error_is_kept():
    own = tf.Variable(2.0)
    metrics = Metrics({own.ref(): "own"})

    def train():
        with metrics.here():
            metrics.add(tf.constant([3.0], tf.float64))
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train()
    assert float(own) == 5.0


def test_functions_that_update_metrics_are_traced_for_each_execution():
    x = tf.Variable(0.0)
    add = tf.function(lambda y: [x.assign_add(tf.cast(y, x.dtype))])
    metrics = Metrics({x.ref(): "own"})

    class Adding:
        """A step that adds in a function."""

        prefetch_rows = False

        def __init__(self):
            self.metrics = metrics

        def __call__(self, handles, batch):
            with metrics.steps_on(handles):
                add(batch)
                return x.read_value()

        def of_all(self, results):
            return results[-1]

    data = tf.data.Dataset.from_tensors(tf.constant(1)).repeat()
    executions = [
        Execution(Adding(), WorkersBatches, data.element_spec, size) for size in (1, 3)
    ]
    iterator = iter(data)
    with scratch_graph():
        add(tf.constant(1))
    # What executions have added to metrics is behind their results, and before what
    # tells whether the worker has notice.
    added = [execution.traced(iterator)[0][-2] for execution in executions * 2]
    assert added == [1, 3, 1, 3]
    assert float(x) == 0
