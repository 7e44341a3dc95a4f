"""SIGTERM to a program that trains in one process: what is written, and its end.

tests/distributed/test_notice.py does the same on a cluster.
"""

import os
import pathlib
import signal
import threading

import programs
import pytest
import tensorflow as tf
from waiting import in_thread, until

from tf_syncrep.python.checkpoint.directory import Directory
from tf_syncrep.python.checkpoint.notice import Notice, grace_secs
from tf_syncrep.python.keras.fit import notice as fit_notice
from tf_syncrep.python.ops.notice_ops import GRACE_VARIABLE, TO_BE_CONTINUED

PROGRAM = pathlib.Path(__file__).with_name("notice_program.py")
DEADLINE_SECS = 30
STEP = 7  # between two checkpoints, in the second epoch
LAST_STEP = 19


def run(folder, case, step=STEP, **env):
    arguments = (str(folder), case, str(step))
    env = {**os.environ, **programs.environment(), **env}
    return programs.run_script(PROGRAM, *arguments, env=env, secs=120)


@pytest.mark.parametrize(
    ("case", "status"),
    [
        ("", TO_BE_CONTINUED),
        ("tfs.keras.fit", TO_BE_CONTINUED),
        ("a handler", 9),
        ("a handler that returns", TO_BE_CONTINUED),
        ("in a thread", TO_BE_CONTINUED),
        ("after the last step", TO_BE_CONTINUED),
        ("within another fit", TO_BE_CONTINUED),
        ("beside another fit", TO_BE_CONTINUED),
    ],
)
def test_a_checkpoint_of_that_moment_is_written(tmp_path, case, status):
    finished = run(tmp_path, case)
    assert finished.returncode == status, finished.stderr
    assert ("handled" in finished.stdout) == (case == "a handler that returns")
    assert "trained" not in finished.stdout
    newest = Directory(tmp_path).manifests()[-1].state
    if case == "after the last step":
        assert newest["is_last"]
    else:
        assert newest["iterations"] == STEP + 1
        assert not newest["is_last"]
        assert "SIGTERM: the next run goes on from" in finished.stdout
    again = run(tmp_path, case, step=-1)
    if case != "after the last step":
        assert again.returncode == 0, again.stderr
        assert "Training goes on from" in again.stdout
        assert "in epoch 2/4" in again.stdout


@pytest.mark.parametrize(
    ("case", "step", "ends", "said"),
    [
        ("no checkpoint", STEP, True, "SIGTERM: fit has no tfs.keras.Checkpoint"),
        ("no checkpoint", LAST_STEP, True, "fit has no tfs.keras.Checkpoint"),
        ("no checkpoint, and a handler", STEP, False, "handled\ntrained 20"),
        ("an error", STEP, True, "nothing is written: ValueError('of a callback')"),
        ("ignored", STEP, False, "trained 20"),
    ],
)
def test_the_signal_does_what_it_does_where_nothing_is_saved(
    tmp_path, case, step, ends, said
):
    finished = run(tmp_path, case, step)
    assert finished.returncode == (128 + signal.SIGTERM if ends else 0)
    assert said in finished.stdout
    assert ("went on" in finished.stdout) != ends
    assert finished.stdout.count("handled") <= 1


def test_who_cannot_begin_to_listen_leaves_the_signal_as_it_was(monkeypatch):
    def fails(self):
        raise RuntimeError("can't start new thread")

    handled = []
    before = signal.signal(signal.SIGTERM, lambda *_: handled.append(1))
    monkeypatch.setattr(threading.Thread, "start", fails)
    try:
        with (
            pytest.raises(RuntimeError, match="can't start new thread"),
            fit_notice.listening(tf.keras.Sequential(), []),
        ):
            pass
        signal.raise_signal(signal.SIGTERM)
        # After work for others, as in another test, a thread passes it on.
        until(lambda: handled)
    finally:
        signal.signal(signal.SIGTERM, before)


def test_the_time_is_over_even_if_the_checkpoint_hangs(monkeypatch):
    class Hanging:
        def save_at_notice(self, notice):
            is_over.wait()

    is_over = threading.Event()
    monkeypatch.setenv(GRACE_VARIABLE, "0.3")
    monkeypatch.setattr(Notice, "end_process", lambda _: is_over.set())
    notice = fit_notice.FitNotice([Hanging()], "a strategy")
    notice.has_begun = True
    notice.give("SIGTERM to parameter server 1")
    in_thread(notice._watch)
    try:
        assert is_over.wait(DEADLINE_SECS)
    finally:
        is_over.set()


def test_a_server_that_is_to_end_before_the_first_epoch_ends_the_program(monkeypatch):
    ends = []
    monkeypatch.setattr(Notice, "end_process", lambda _: ends.append(1))
    notice = fit_notice.FitNotice([], "a strategy")
    notice.give("SIGTERM to parameter server 1")
    notice._watch()
    assert ends


def test_no_checkpoint_is_begun_that_would_take_too_long(tmp_path):
    finished = run(tmp_path, "", **{GRACE_VARIABLE: "1e-6"})
    assert finished.returncode == TO_BE_CONTINUED, finished.stderr
    assert Directory(tmp_path).manifests()[-1].state["iterations"] == 6
    again = run(tmp_path, "", step=-1)
    assert again.returncode == 0, again.stderr
    assert "are lost" in again.stdout


@pytest.mark.parametrize("secs", ["soon", "-1", "inf", "nan"])
def test_a_wrong_grace_is_refused(monkeypatch, secs):
    monkeypatch.setenv(GRACE_VARIABLE, secs)
    rule = "must be a number of seconds of at least 0. Received: "
    with pytest.raises(ValueError, match=f"^{GRACE_VARIABLE} {rule}{secs!r}$"):
        grace_secs()


def test_the_first_notice_counts_and_a_third_of_the_time_is_for_the_stop(monkeypatch):
    monkeypatch.setenv(GRACE_VARIABLE, "60")
    notice = Notice()
    assert not notice.is_given
    notice.give("SIGTERM to parameter server 1")
    notice.give("SIGTERM")
    assert notice.is_given
    assert notice.whose == "SIGTERM to parameter server 1"
    assert 50 < notice.secs_left <= 57
    assert 15 < notice.secs_to_stop <= 19
