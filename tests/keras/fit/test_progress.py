"""What `verbose` shows of a training, on a terminal and elsewhere."""

import io
import re

import keras_variants
import numpy as np
import pytest
import tensorflow as tf

from tf_syncrep.python.keras.fit import api, progress
from tf_syncrep.python.keras.training_clock import TrainingClock


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.mark.parametrize(
    ("verbose", "on_terminal", "elsewhere"),
    [("auto", True, False), (1, True, False), (2, True, True), (0, False, False)],
)
def test_bar_of_keras_is_for_terminals(verbose, on_terminal, elsewhere, monkeypatch):
    monkeypatch.setattr("sys.stdout", Terminal())
    assert progress.has_progress_bar(verbose) == on_terminal
    monkeypatch.setattr("sys.stdout", io.StringIO())
    assert progress.has_progress_bar(verbose) == elsewhere


def test_whoever_has_disabled_keras_bar_gets_keras_logger(monkeypatch):
    monkeypatch.setattr("sys.stdout", io.StringIO())
    tf.keras.utils.disable_interactive_logging()
    try:
        assert progress.has_progress_bar("auto")
        assert not progress.has_progress_bar(0)
    finally:
        tf.keras.utils.enable_interactive_logging()


@pytest.mark.parametrize("verbose", [1, 2])
def test_epoch_shows_its_own_number_of_batches(monkeypatch, capsys, verbose):
    """If it is not known before, as of what workers read to its end."""
    monkeypatch.setattr(api, "has_progress_bar", lambda verbose: True)
    model = keras_variants.small_model()
    model.compile("sgd", loss="mse")
    callbacks = api._callback_list(model, [], verbose, None, 3, add_history=True)
    callbacks.on_train_begin()
    for epoch, number in enumerate([5, 2, 7]):
        callbacks.on_epoch_begin(epoch)
        for batch in range(number):
            callbacks.on_train_batch_begin(batch)
            callbacks.on_train_batch_end(batch, {"loss": 1.0})
        callbacks.on_epoch_end(epoch, {"loss": 1.0})
    callbacks.on_train_end()
    shown = re.findall(r"(\d+)/(\d+)\S* ", capsys.readouterr().out)
    assert [int(n) for n, of in shown] == [int(of) for n, of in shown] == [5, 2, 7]


def test_time_of_training_is_without_what_interrupts_it(clock):
    training = TrainingClock(lambda: clock["now"])
    for _ in range(2):
        clock["now"] += 1000  # this is between epochs
        training.start()
        for hook_secs in (0.01, 30.0, 0.01, 0.01):
            clock["now"] += 0.25
            with training.hook():
                clock["now"] += hook_secs
                training.note_step()
    assert training.secs == pytest.approx(4 * 0.25 + 2 * 0.01)
    assert training.total_secs == pytest.approx(2 * training.secs)


@pytest.fixture
def clock():
    return {"now": 100.0}


@pytest.fixture
def lines(clock, monkeypatch):
    made = progress.ProgressLines(lambda: clock["now"])
    monkeypatch.setattr(
        progress, "clock_of", lambda _: TrainingClock(lambda: clock["now"])
    )
    made.set_params({"epochs": 3, "steps": 40})
    return made


def test_a_line_every_five_seconds_and_one_at_the_end(lines, clock, capsys):
    lines.on_train_begin()
    lines.on_epoch_begin(1)
    for batch in range(40):
        clock["now"] += 0.3
        lines.on_train_batch_end(batch, {"loss": 1 / (batch + 1)})
    lines.on_test_begin()
    clock["now"] += 60  # this is no time of training
    lines.on_test_batch_end(3, {"loss": 9.0})
    lines.on_test_end({"loss": 9.0})
    shown = {"loss": 0.5, "f1": np.ones(2), "val_loss": np.float32(2)}
    lines.on_epoch_end(1, {"phase": "warm-up", "best": None, **shown})
    assert capsys.readouterr().out.splitlines() == [
        "epoch 2/3: 17/40 steps, 3.3 steps/s - loss: 0.05882",
        "epoch 2/3: 34/40 steps, 3.3 steps/s - loss: 0.02941",
        "epoch 2/3: 40/40 steps, 3.3 steps/s - loss: 0.5 - val_loss: 2",
    ]


def test_evaluation_and_prediction_have_lines_of_their_own(lines, clock, capsys):
    lines.set_params({"steps": None})
    lines.on_test_begin()
    clock["now"] += 6
    lines.on_test_batch_end(11, {"loss": 0.25})
    lines.on_test_end({"loss": 0.25})
    lines.on_predict_begin()
    clock["now"] += 1
    lines.on_predict_batch_end(1, {"outputs": np.ones(3)})
    lines.on_predict_end()
    assert capsys.readouterr().out.splitlines() == [
        "evaluation: 12 steps, 2.0 steps/s - loss: 0.25",
        "evaluation: 12 steps, 2.0 steps/s - loss: 0.25",
        "prediction: 2 steps, 2.0 steps/s",
    ]
