"""What is scheduled on workers, and reused: by a coordinator without a cluster."""

import types
from typing import Any

import keras_variants
import numpy as np
import pytest
import tensorflow as tf

from tf_syncrep.python.keras import cluster, compat
from tf_syncrep.python.keras.compat.coordinator import as_worker
from tf_syncrep.python.keras.fit import inputs, loop
from tf_syncrep.python.keras.fit.batches import WorkersBatches
from tf_syncrep.python.keras.fit.scheduling import ScheduledSteps
from tf_syncrep.python.keras.sync_replicas.rounds import Rounds


class Here:
    """Calls functions in this process, at once."""

    def __init__(self, strategy):
        del strategy
        self.called = []
        self._cluster = self.closure_queue = self._cancellation_mgr = self
        self.is_cancelled = False

    def get_cancelable_function(self, function):
        self.called.append(function)
        return function

    def schedule(self, function, args, kwargs):
        del kwargs
        with as_worker(0):
            function(*args)

    def done(self):
        return True

    def join(self):
        return


@pytest.fixture(autouse=True)
def num_workers(monkeypatch, request):
    number = getattr(request, "param", 2)
    monkeypatch.setattr(tf.distribute.coordinator, "ClusterCoordinator", Here)
    monkeypatch.setattr(compat, "isolate_workers", lambda: None)
    monkeypatch.setattr(cluster, "num_tasks", lambda job: number)
    return number


def done(kind, model, data):
    """Evaluates, or predicts, as `tfs.keras.evaluate` and `predict` do."""
    steps = ScheduledSteps(model)
    callbacks = tf.keras.callbacks.CallbackList([], model=model)
    if not hasattr(data, "executions"):
        data = inputs.evaluation_batches(data, None, None, None, None)
    if kind == "predict":
        return loop.predict(steps, model, data, callbacks)
    with steps.counting():
        return loop.test(steps, model, data, callbacks)


class Scaling(tf.keras.Model):
    """Has a factor that `compile` sets, and a metric."""

    def __init__(self):
        super().__init__()
        self.total = tf.keras.metrics.Sum(name="total")

    def compile(self, factor=1.0, **options):
        super().compile(**options)
        self.factor = factor

    def call(self, x):
        return x * self.factor

    def test_step(self, data: Any):
        self.total.update_state(data)
        size = tf.TensorShape(data.shape)[0] + 0.0 * self.total.result()
        return {"size": size, "scaled": self.factor}


@pytest.mark.parametrize("kind", ["test", "predict"])
def test_what_compile_sets_is_used_from_then_on(kind):
    model, optimizer = Scaling(), tf.keras.optimizers.SGD()
    seen = []
    for factor in (2.0, 3.0):
        model.compile(factor, optimizer=optimizer)
        result = done(kind, model, tf.data.Dataset.from_tensors(tf.ones([1])))
        seen.append(float(result["scaled"] if kind == "test" else result[0]))
    assert seen == [2.0, 3.0]


def test_data_of_other_specs_that_workers_read_has_results_of_its_own():
    model = Scaling()
    model.compile()
    for size in (4, 2):
        data = tf.data.Dataset.from_tensors(tf.ones([size])).repeat()
        datasets: Any = types.SimpleNamespace(
            iterator=iter(data), element_spec=data.element_spec
        )
        batches = WorkersBatches(datasets, 3)
        assert done("test", model, batches)["size"] == size


def test_functions_are_traced_once_and_not_looked_for_by_each_call():
    traced = []

    class Noting(Scaling):
        def test_step(self, data):
            traced.append(data)
            return super().test_step(data)

    model = Noting()
    model.compile()
    steps = ScheduledSteps(model)
    batches = inputs.evaluation_batches(
        tf.data.Dataset.from_tensors(tf.ones([1])).repeat(4), None, None, None, None
    )
    with steps.counting():
        loop.test(steps, model, batches, tf.keras.callbacks.CallbackList([]))
    first, *others = steps.coordinator.called
    assert len(traced) == 1
    assert len(others) == 3
    assert all(function is first for function in others)


@pytest.mark.parametrize("dtype", ["int8", "int32", "int64", "uint64", "float16"])
def test_scalars_of_steps_keep_their_values_and_predictions_their_dtype(dtype):
    largest = tf.constant(tf.dtypes.as_dtype(dtype).max, dtype)

    class Returning(tf.keras.Model):
        def call(self, x):
            return tf.identity(largest)

        def test_step(self, data):
            return {"largest": self(data)}

    data = tf.data.Dataset.from_tensors(tf.ones([1])).repeat(2)
    results = []
    for kind in ("test", "predict"):
        model = Returning()
        model.compile()
        results.append(done(kind, model, data))
    assert results[0]["largest"] == largest.numpy()
    assert type(results[0]["largest"]) in (int, float)
    np.testing.assert_array_equal(results[1], 2 * [largest.numpy()])
    assert results[1].dtype == dtype


@pytest.mark.skipif(
    not keras_variants.IS_KERAS_3, reason="Keras 2 has no generators of seeds"
)
@pytest.mark.parametrize("kind", ["test", "predict"])
@pytest.mark.parametrize("num_workers", [1, 2], indirect=True)
def test_workers_that_find_the_same_seed_draw_other_numbers(kind, num_workers):
    class Drawing(tf.keras.Model):
        def __init__(self):
            super().__init__()
            self.generator = tf.keras.random.SeedGenerator(3)

        def call(self, x):
            return x * tf.keras.random.uniform((1,), seed=self.generator)

        def test_step(self, data):
            return {"drawn": self(data)[0]}

    model = Drawing()
    model.compile()
    begin = model.generator.state.numpy()
    drawn = []
    for _ in range(2):
        # Another worker may have read this before the first one has counted on.
        model.generator.state.assign(begin)
        result = done(kind, model, tf.data.Dataset.from_tensors(tf.ones([1])))
        drawn.append(float(result["drawn"] if kind == "test" else result[0]))
    assert (drawn[0] != drawn[1]) == (num_workers > 1)
    assert model.generator.state.numpy()[1] == 1


@pytest.mark.skipif(
    keras_variants.IS_KERAS_3, reason="Keras 3 refuses it in one process, too"
)
@pytest.mark.parametrize("kind", ["test", "predict"])
def test_models_of_keras_2_may_branch_on_tensors(kind):
    class Branching(tf.keras.Model):
        def call(self, x):
            if tf.reduce_sum(x) > 0:
                x = 2 * x
            return x

        def test_step(self, data):
            return {"drawn": self(data)[0]}

    model = Branching()
    model.compile()
    result = done(kind, model, tf.data.Dataset.from_tensors(tf.ones([1])))
    assert float(result["drawn"] if kind == "test" else result[0]) == 2.0


class Kinds(tf.keras.Model):
    """Returns outputs whose sizes, except of one, follow those of the batch."""

    def call(self, x):
        x = tf.cast(x, tf.float32)
        return {
            "length": x,
            "inner": tf.tile(x[:, :, None], [1, 1, 2]),
            "outer": tf.tile(x[:, None], [1, 2, 1]),
            "fixed": tf.reduce_sum(x, axis=1, keepdims=True),
            "ragged": tf.RaggedTensor.from_tensor(x, padding=0.0),
            "sparse": tf.sparse.from_dense(x[:, :1]),
        }


def listed(x):
    if isinstance(x, tf.SparseTensor):
        x = tf.sparse.to_dense(x).numpy()
    return x.to_list() if isinstance(x, tf.RaggedTensor) else x.tolist()


@pytest.mark.parametrize("per_execution", [1, 3])
def test_predictions_of_other_sizes_are_joined_as_keras_joins_them(per_execution):
    rows = tf.data.Dataset.range(1, 8).map(tf.range)
    data = rows.padded_batch(2)
    model = Kinds()
    model.compile()
    expected = model.predict(data, verbose=0)
    model.compile(steps_per_execution=per_execution)
    actual = done("predict", model, data)
    assert isinstance(actual["fixed"], np.ndarray)
    for name, value in expected.items():
        assert type(actual[name]) is type(value), name
        assert tuple(actual[name].shape) == tuple(value.shape), name
        assert listed(actual[name]) == listed(value), name


class Ends(Rounds):
    """Notes how it is ended."""

    def __init__(self):
        self.flushes = []

    def finish(self, *, flush):
        self.flushes.append(flush)
        return 0


@pytest.mark.parametrize(
    ("hook", "flushes"),
    [
        # Once before the last epoch's validation, and at the very end.
        ("on_train_batch_end", [False, False]),
        ("on_epoch_end", [False]),
        (None, [True, True]),
    ],
)
def test_round_that_is_left_belongs_to_no_weights_set_at_the_end(
    hook, flushes, monkeypatch
):
    rounds, model = Ends(), keras_variants.small_model()
    monkeypatch.setattr(loop, "rounds_of", lambda optimizer: rounds)
    model.compile("sgd", "mse")
    model.optimizer.build(model.trainable_variables)
    stop = tf.keras.callbacks.Callback()
    if hook:
        setattr(stop, hook, lambda *_, **__: setattr(model, "stop_training", True))
    callbacks = tf.keras.callbacks.CallbackList([stop], model=model)
    steps = ScheduledSteps(model)
    data, _ = inputs.training_batches(
        None, *keras_variants.small_data(4), None, 4, False, None, None, 1
    )
    options = {"initial_epoch": 0, "epochs": 2, "validate": lambda epoch: {}}
    with steps.counting():
        loop.train(steps, model, data, callbacks, **options)
    assert rounds.flushes == flushes
