"""SIGTERM to one task of a training: nothing is lost, and nothing is read twice.

The program's table counts how often each item was trained. So it shows what was lost
with weights, and what was read again.
"""

import json
import os
import pathlib
import random
import re
import signal
import time

import checkpoint_models
import commands
import programs
import pytest
import waiting

from tf_syncrep.python.ops.notice_ops import TO_BE_CONTINUED

SCRIPT = pathlib.Path(__file__).with_name("notice_program.py")
OPTIONS = ("--workers", 2, "--ps", 2, "--grace", 10)
ITEMS, BATCHES_OF_ITEM, EPOCHS, HANGS_AT = 300, 2, 2, 50
STEPS = ITEMS * BATCHES_OF_ITEM * EPOCHS
TARGETS = ("launcher", "chief", "ps-0", "ps-1", "worker-0", "worker-1")
STEP_LINE = r"\| step \d+$"

pytestmark = pytest.mark.one_version


def launch(folder, *options):
    *options, of_script = options
    numbers = (ITEMS, BATCHES_OF_ITEM, EPOCHS, HANGS_AT)
    command = ("launch", *OPTIONS, *options, SCRIPT, folder, of_script, *numbers)
    return commands.Command(*command, env=programs.environment())


def pid_of(launched, target):
    if target == "launcher":
        return launched.process.pid
    if target == "chief":
        line = launched.wait_for_line(r"chief runs the script \(pid (\d+)\)")
        return int(line[1])
    return launched.pid_of(target)


def terminate(launched, target, step):
    """Sends SIGTERM when so many steps are done; returns the time."""
    launched.wait_for_line(STEP_LINE, occurrence=step)
    os.kill(pid_of(launched, target), signal.SIGTERM)
    return time.monotonic()


def assert_each_item_was_trained_once_an_epoch(folder):
    counts = json.loads((folder / "counts.json").read_text())
    expected = EPOCHS * BATCHES_OF_ITEM
    lost = sum(max(0, expected - x) for x in counts)
    repeated = sum(max(0, x - expected) for x in counts)
    assert (len(counts), lost, repeated) == (ITEMS, 0, 0)


def interrupt(folder, target, step):
    """Trains to the end, with one SIGTERM on the way; prints how long it stood still.

    It is started again at once.
    """
    with launch(folder, "") as launched:
        sent = terminate(launched, target, step)
        goes_on = target.startswith("worker")
        if goes_on:
            launched.wait_for_line(STEP_LINE, occurrence=step + 1)
            next_step = time.monotonic()
        status = launched.wait_for_all()
        ended = time.monotonic()
        name = target.replace("-", " ")
        said = "the next run goes on from .*, written in"
        if goes_on:
            said = f"{name} had notice, and has left"
        assert re.search(said, launched.output), launched.output
        assert status == (0 if goes_on else TO_BE_CONTINUED), launched.output
    if not goes_on:
        with launch(folder, "") as launched:
            launched.wait_for_line("Training goes on from .*: nothing is lost")
            launched.wait_for_line(STEP_LINE)
            next_step = time.monotonic()
            assert launched.wait_for_all() == 0, launched.output
        print(f"{target}: {ended - sent:.1f} s to the end")
    print(f"{target}: {next_step - sent:.1f} s to the next step")
    assert_each_item_was_trained_once_an_epoch(folder)


@pytest.mark.parametrize("target", ["launcher", "ps-1", "worker-0"])
def test_nothing_is_lost_or_read_twice(tmp_path, target):
    interrupt(tmp_path, target, step=STEPS // 3)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(20))
def test_nothing_is_lost_or_read_twice_whoever_is_terminated(tmp_path, seed):
    draw = random.Random(seed)
    interrupt(tmp_path, draw.choice(TARGETS), step=draw.randrange(1, STEPS * 3 // 4))


@pytest.mark.slow
def test_synchronous_weights_are_those_of_a_training_that_nobody_disturbed(tmp_path):
    """The gradients of an open round are dropped, and their batches trained again."""
    updates, folder = 40, tmp_path / "checkpoints"
    script = SCRIPT.with_name("checkpoint_script.py")
    # Its checkpoints are large, and one is being written most of the time.
    options = (*OPTIONS, "--grace", 60)
    command = ("launch", *options, script, folder, tmp_path, updates)
    with commands.Command(*command, env=programs.environment()) as launched:
        terminate(launched, "launcher", updates // 2 + 1)
        assert launched.wait_for_all() == TO_BE_CONTINUED, launched.output
    with commands.Command(*command, env=programs.environment()) as launched:
        launched.wait_for_line("Training goes on from .*: nothing is lost")
        assert launched.wait_for_all() == 0, launched.output
    checkpoint_models.assert_trained(tmp_path / "result.npz", updates)


@pytest.mark.slow
def test_a_server_with_notice_is_only_an_interruption(tmp_path):
    with launch(tmp_path, "--on-ps-failure", "restart", "") as launched:
        terminate(launched, "ps-0", STEPS // 3)
        launched.wait_for_line("to be continued; restart 1 of 3 of all tasks")
        launched.wait_for_line("Training goes on from .*: nothing is lost")
        assert launched.wait_for_all() == 0, launched.output
    assert_each_item_was_trained_once_an_epoch(tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("option", "said", "end"),
    [
        ("in a thread", "the next run goes on from .*, written in", "exited with"),
        ("no checkpoint", "nothing is written", "was killed by SIGTERM"),
        ("hangs", "the next run goes on from .*, written in", "exited with"),
    ],
)
def test_the_coordinator_ends_and_says_what_was_written(tmp_path, option, said, end):
    with launch(tmp_path, option) as launched:
        terminate(launched, "chief", HANGS_AT)
        assert launched.wait_for_all() == TO_BE_CONTINUED, launched.output
        launched.wait_for_line(f"SIGTERM: .*{said}")
        launched.wait_for_line(rf"chief \(pid \d+\) {end}")


@pytest.mark.slow
def test_a_server_waits_for_a_slow_coordinator(tmp_path):
    with launch(tmp_path, "slow") as launched:
        terminate(launched, "ps-0", HANGS_AT)
        assert launched.wait_for_all() == TO_BE_CONTINUED, launched.output
        launched.wait_for_line("server 0: the next run goes on from .*, written in")


@pytest.mark.slow
def test_a_signal_to_all_processes_at_once_is_one(tmp_path):
    """As of `timeout`, or systemd. The coordinator's comes twice, by the launcher."""
    with launch(tmp_path, "") as launched:
        launched.wait_for_line(STEP_LINE, occurrence=STEPS // 3)
        for pid in launched.pids():
            os.kill(pid, signal.SIGTERM)
        assert launched.wait_for_all() == TO_BE_CONTINUED, launched.output
        launched.wait_for_line("the next run goes on from .*, written in")


@pytest.mark.slow
def test_a_second_signal_ends_at_once(tmp_path):
    with launch(tmp_path, "hangs") as launched:
        sent = terminate(launched, "chief", HANGS_AT)
        chief = pid_of(launched, "chief")
        # So late that it is not taken for the same.
        waiting.until(lambda: time.monotonic() - sent > 1.5)
        os.kill(chief, signal.SIGTERM)
        assert launched.wait_for_all() == TO_BE_CONTINUED
        assert "goes on from" not in launched.output
