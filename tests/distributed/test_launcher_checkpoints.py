"""`tf-syncrep launch --on-ps-failure restart`: a lost server is an interruption."""

import os
import pathlib
import random
import re
import signal

import checkpoint_models as models
import checkpoint_steps
import commands
import programs
import pytest

from tf_syncrep.python.checkpoint.directory import Directory

SCRIPT = pathlib.Path(__file__).with_name("checkpoint_script.py")
GOES_ON = (
    r"Training goes on from \S+/ckpt-(\d+), in epoch \d/4 after \d+ of its \d+ steps: "
    r"at most \d+ steps(?:, of about \d+ s,)? are lost\."
)
OPTIONS = ("--workers", 2, "--ps", 2, "--on-ps-failure", "restart")


@pytest.mark.ci
@pytest.mark.one_version
@pytest.mark.parametrize(
    ("kills", "updates"),
    [
        (1, 40),
        pytest.param(2, 40, marks=pytest.mark.slow),
        pytest.param(10, 200, marks=pytest.mark.soak),
    ],
)
def test_weights_are_those_of_a_training_that_nobody_disturbed(
    tmp_path, kills, updates
):
    """Servers are killed at random moments of a synchronous training."""
    draw = random.Random(0)
    folder = tmp_path / "checkpoints"
    command = (*OPTIONS, "--max-restarts", kills, SCRIPT, folder, tmp_path, updates)
    with commands.Command("launch", *command, env=programs.environment()) as launched:
        launched.wait_for_line("a checkpoint is there")
        steps = 0
        for kill in range(kills):
            # Or it is sooner, if lines came in between, even before servers answer.
            steps += draw.randint(1, updates // (kills + 1))
            launched.wait_for_line(r"chief +\| step \d+", occurrence=steps)
            ps = f"ps-{draw.randrange(2)}"
            os.kill(launched.pid_of(ps, kill + 1), signal.SIGKILL)
            launched.wait_for_line(rf"restart {kill + 1} of {kills} of all tasks")
        assert launched.wait_for_all() == 0, launched.output
    assert re.search(GOES_ON, launched.output)
    models.assert_trained(tmp_path / "result.npz", updates)


@pytest.mark.slow
@pytest.mark.one_version
@pytest.mark.parametrize(
    "steps",
    [
        ("one server done",),
        pytest.param(checkpoint_steps.STEPS, marks=pytest.mark.soak),
    ],
)
def test_server_killed_while_it_writes_leaves_the_last_checkpoint(tmp_path, steps):
    folder, updates = tmp_path / "checkpoints", 200 * (1 + len(steps))
    directory = Directory(folder)
    # A full checkpoint, as the first after each restart is, takes a second.
    script = (SCRIPT, folder, tmp_path, updates, 4e7)
    command = (*OPTIONS, "--max-restarts", len(steps), *script)
    with commands.Command("launch", *command, env=programs.environment()) as launched:
        launched.wait_for_line("a checkpoint is there")
        for kill, step in enumerate(steps, start=1):
            last = checkpoint_steps.await_step(directory, step)
            os.kill(launched.pid_of(f"ps-{kill % 2}", kill), signal.SIGKILL)
            number = int(launched.wait_for_line(GOES_ON, occurrence=kill)[1])
            assert number in (last, last + 1)
        assert launched.wait() == 0, launched.output
    models.assert_trained(tmp_path / "result.npz", updates)


@pytest.mark.slow
@pytest.mark.one_version
def test_run_ends_when_servers_die_too_often(script):
    path = script("import time; print('waiting', flush=True); time.sleep(1000)")
    with commands.Command("launch", *OPTIONS, "--max-restarts", 1, path) as launched:
        for begin in (1, 2):
            launched.wait_for_line("waiting", occurrence=begin)
            os.kill(launched.pid_of("ps-0", begin), signal.SIGKILL)
        assert launched.wait_for_all() == 1
    assert re.search(
        r"ps-0 \(pid \d+\) was killed by SIGKILL; its variables are lost, after 1 "
        "restarts, ending the run",
        launched.output,
    )
