"""How many steps an execution of `fit` has, and after which ones callbacks run."""

import pytest
import tensorflow as tf

from tf_syncrep.python.keras.fit.sizes import (
    LARGEST_EXECUTION,
    AutoSizes,
    Calls,
    Sizes,
    hear_of_batches,
)


def sizes_of(per_call, num_steps):
    sizes, made = Sizes(per_call), []
    while sum(made) < num_steps:
        made.append(sizes.next(num_steps - sum(made)))
    return made


@pytest.mark.parametrize("per_call", [1, 2, 7, 16, 17, 19, 20, 31, 47, 100, 1000])
def test_callbacks_are_due_at_ends_of_executions_of_two_sizes(per_call):
    made = sizes_of(per_call, 3 * per_call + per_call // 2)
    assert sum(made) == 3 * per_call + per_call // 2
    assert {*made} <= {1, Sizes(per_call).largest}
    assert max(made) <= LARGEST_EXECUTION
    ends = {sum(made[: i + 1]) for i in range(len(made))}
    assert {per_call, 2 * per_call, 3 * per_call} <= ends


@pytest.mark.parametrize(
    ("per_call", "executions", "expected"),
    [
        (1, [1, 1], ["0", "end 0", "1", "end 1"]),
        (4, [4, 4, 1, 1], ["0", "end 3", "4", "end 7", "8", "end 9"]),
        # This is the order in which several workers have made them.
        (17, [8, 8, 8, 1, 8, 1], ["0", "end 16", "17", "end 33"]),
        # Workers come to the ends of their data here.
        (4, [3, 4, 2, 4], ["0", "end 3", "4", "end 7", "8", "end 11", "12", "end 12"]),
    ],
)
def test_callbacks_are_told_the_numbers_of_keras(per_call, executions, expected):
    told = []
    calls = Calls(
        lambda first: told.append(str(first)),
        lambda last, logs: told.append(f"end {last}"),
        Sizes(per_call),
    )
    for number in executions:
        calls.begin()
        calls.end(number, {})
    calls.finish({})
    assert told == expected


@pytest.mark.parametrize(
    ("secs", "num_steps", "expected"),
    [(0.001, None, 16), (0.1, None, 4), (1.0, None, 1), (0.001, 100, 4), (0.1, 9, 1)],
)
def test_auto_is_what_can_be_done_in_half_a_second(secs, num_steps, expected):
    """Two workers take given times for a step, and longer for the first steps."""
    now = 0.0
    sizes = AutoSizes(2, num_steps, lambda: now)
    for taken in range(100):
        now += 10.0 if taken < 4 else secs / 2
        sizes.note_taken()
        assert sizes.largest in (1, expected)
    assert sizes.per_call == sizes.largest == sizes.next() == expected


class Own(tf.keras.callbacks.Callback):
    def on_test_batch_end(self, batch, logs=None):
        pass


@pytest.mark.parametrize(
    ("callback", "kinds"),
    [
        (tf.keras.callbacks.TerminateOnNaN(), []),
        (tf.keras.callbacks.LambdaCallback(on_epoch_end=lambda *_: None), []),
        (
            tf.keras.callbacks.LambdaCallback(on_train_batch_end=lambda *_: None),
            ["train"],
        ),
        (Own(), ["test"]),
    ],
)
def test_callbacks_that_hear_of_batches_are_known(callback, kinds):
    heard = [k for k in ("train", "test", "predict") if hear_of_batches([callback], k)]
    assert heard == kinds
