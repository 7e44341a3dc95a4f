"""How tfs.keras.fit reads the output of Keras' own data adapters."""

import itertools
import types

import fit_data
import numpy as np
import pytest
import tensorflow as tf
from compat import traced_functions

import tf_syncrep as tfs
from tf_syncrep.python.keras.compat import data_adapters
from tf_syncrep.python.keras.fit import inputs
from tf_syncrep.python.keras.fit.adapters import adapter_of
from tf_syncrep.python.keras.fit.batches import SentBatches
from tf_syncrep.python.keras.fit.sizes import Sizes


class Noting(fit_data.Batches):
    """Notes what is asked of it."""

    def __init__(self):
        super().__init__(fit_data.X, fit_data.Y)
        self.calls = []

    def __getitem__(self, index):
        self.calls.append(index)
        return super().__getitem__(index)

    def on_epoch_end(self):
        self.calls.append("end")


def firsts(batches, size=1, first_step=0):
    """The first number of each batch of an epoch, by execution."""
    return [
        [float(x[0, 0]) for x, *_ in args[0]]
        for _, args in batches.executions(Sizes(size), first_step)
    ]


EXPECTED = fit_data.X[:: fit_data.BATCH, 0].tolist()


def test_every_epoch_ends_for_the_data_and_is_read_once():
    data = Noting()
    batches = SentBatches(adapter_of(data), goes_on=False)
    batches.first()
    for _ in range(2):
        assert batches.begin_epoch(0, resume=False)
        assert [*itertools.chain(*firsts(batches, size=3))] == EXPECTED
    for call in ("end", 3):
        # Keras reads the first ones beforehand, for their specs.
        assert data.calls.count(call) == 2
    batches.end_epochs()
    assert data.calls.count("end") <= 3


def test_epoch_that_is_left_has_ended_for_the_data():
    data = Noting()
    executions = SentBatches(adapter_of(data), goes_on=False).executions(Sizes(1))
    next(executions)
    executions.close()
    assert data.calls.count("end") == 1


def test_epochs_of_given_steps_follow_one_another_and_are_cut_where_data_ends(caplog):
    adapter = adapter_of(fit_data.dataset().prefetch(1), steps=3)
    batches = SentBatches(adapter, goes_on=True)
    assert firsts(batches, size=2) == [EXPECTED[:2], EXPECTED[2:3]]
    assert firsts(batches) == [EXPECTED[3:]]
    assert [record.args for record in caplog.records] == [("x", 1, 3)]
    assert firsts(batches, first_step=1) == [[x] for x in EXPECTED[1:3]]


def test_evaluation_that_runs_out_of_data_names_the_argument(caplog):
    names = ("validation_data", "validation_steps")
    data = fit_data.dataset()
    firsts(inputs.evaluation_batches(data, None, None, None, 50, names))
    ((argument, _, steps),) = [x.args for x in caplog.records if "ran out" in x.msg]
    assert (argument, steps) == ("validation_data", 50)


def test_epoch_that_was_begun_goes_on_where_it_was():
    adapter = adapter_of(fit_data.X, fit_data.Y, batch_size=fit_data.BATCH)
    assert [
        *itertools.chain(*firsts(SentBatches(adapter, goes_on=False), first_step=2))
    ] == EXPECTED[2:]


@pytest.mark.parametrize("shuffle", [True, False])
def test_a_shuffled_epoch_that_goes_on_says_that_its_order_is_another(caplog, shuffle):
    adapter = adapter_of(fit_data.X, fit_data.Y, shuffle=shuffle, batch_size=1)
    firsts(SentBatches(adapter, goes_on=False), first_step=4)
    told = [x.args for x in caplog.records if "batches of another order" in x.msg]
    assert told == ([(4,)] if shuffle else [])


def test_data_without_batches_is_refused():
    batches = SentBatches(
        adapter_of(fit_data.dataset().filter(lambda *_: False)), goes_on=False
    )
    assert batches.begin_epoch(0, resume=False)  # it is found when the data is read
    with pytest.raises(ValueError, match="`x` must have a batch"):
        next(batches.executions(Sizes(1)))


def test_data_without_end_is_refused_by_the_names_of_evaluate_and_predict():
    message = "^`x` has no end, and so `steps` must be given. Received: steps=None$"
    with pytest.raises(ValueError, match=message):
        inputs.evaluation_batches(fit_data.dataset().repeat(), None, None, None, None)


def test_shuffling_reads_everything_in_another_order_each_epoch():
    # With a seed that a test has set, Keras 3 itself repeats the order of an epoch.
    tf.random.set_seed(None)
    numbers = np.arange(1000.0, dtype=np.float32)[:, None]
    adapter = adapter_of(numbers, numbers, batch_size=10, shuffle=True)
    batches = SentBatches(adapter, adapter.goes_on)
    epochs = [
        np.ravel([args[0][0][0] for _, args in batches.executions(Sizes(1))])
        for _ in range(2)
    ]
    assert [sorted(epoch) for epoch in epochs] == 2 * [numbers[:, 0].tolist()]
    assert not np.array_equal(*epochs)


@pytest.mark.parametrize("shuffle", [False, True])
def test_arrays_of_shapes_that_were_there_before_need_no_new_functions(shuffle):
    """Where one is traced or forgotten, a coordinator waits for every task."""
    tf.random.set_seed(None)
    read, num_traced = [], []
    for begin in (0.0, 100.0):
        numbers = np.arange(begin, begin + 60.0)
        x, y = {"a": numbers, "b": [tf.constant(numbers)]}, numbers[:, None]
        with traced_functions() as traced:
            adapter = adapter_of(x, y, batch_size=8, shuffle=shuffle)
        num_traced.append(len(traced))
        a = [x["a"].numpy() for x, _ in adapter.dataset.take(adapter.num_batches)]
        read.append(sorted(np.concatenate(a)))
        assert {x.dtype for x in a} == {np.dtype("float32")}
    assert read == [[*range(60)], [*range(100, 160)]]
    assert num_traced[0] > 0 == num_traced[1]


@pytest.mark.parametrize("seed", [3, 4])
def test_seeds_shuffle_arrays_as_in_keras(seed):
    def order(make_dataset):
        tf.keras.utils.set_random_seed(seed)
        (batch,) = make_dataset().take(1)
        return batch[0].numpy().tolist()

    numbers = np.arange(60.0, dtype=np.float32)
    options = {"batch_size": 50, "shuffle": True}
    expected = order(
        lambda: data_adapters.dataset_of(
            data_adapters.stock_adapter(
                (numbers, numbers, None), **options, class_weight=None, steps=None
            ),
            None,
        )
    )
    assert order(lambda: adapter_of(numbers, numbers, **options).dataset) == expected


@pytest.mark.parametrize("num_epochs", [2, None])
def test_steps_that_are_counted_without_a_queues_end_are_said(
    num_epochs, caplog, monkeypatch
):
    queue = tfs.data.WorkQueue(3, num_epochs)
    monkeypatch.setattr(inputs, "num_tasks", lambda job: 2)
    datasets = types.SimpleNamespace(element_spec=None, queues=[queue])
    monkeypatch.setattr(inputs, "WorkersDatasets", lambda *_: datasets)
    inputs.training_batches(
        *(None, lambda context: queue.dataset(), None, None, None, True, None),
        steps_per_epoch=7,
        chunk_size=1,
    )
    if num_epochs is None:
        assert not caplog.messages
    else:
        (line,) = caplog.messages
        assert (
            "steps_per_epoch=7 does not end where a WorkQueue of num_epochs=2" in line
        )
        assert "Make it with num_epochs=None" in line


def test_arrays_of_many_sizes_are_no_retracing(caplog):
    for size in range(8, 20):
        for _ in range(2):
            adapter_of(np.zeros([size, 2]), np.zeros([size]), batch_size=8)
    assert "retracing" not in caplog.text
