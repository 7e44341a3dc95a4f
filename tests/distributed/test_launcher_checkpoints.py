"""`tf-syncrep launch --on-ps-failure restart`: a lost server is an interruption."""

import os
import pathlib
import random
import re
import signal

import checkpoint_models as models
import commands
import programs
import pytest

SCRIPT = pathlib.Path(__file__).with_name("checkpoint_script.py")
OPTIONS = ("--workers", 2, "--ps", 2, "--on-ps-failure", "restart")


@pytest.mark.parametrize(
    ("kills", "updates"),
    [(2, 40), pytest.param(10, 200, marks=pytest.mark.soak)],
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
            # Or sooner, where lines came on between: also before servers answer.
            steps += draw.randint(1, updates // (kills + 1))
            launched.wait_for_line(r"chief +\| step \d+", occurrence=steps)
            ps = f"ps-{draw.randrange(2)}"
            pid = launched.wait_for_line(
                rf"{ps} starts at \S+ \(pid (\d+)\)", occurrence=kill + 1
            )[1]
            os.kill(int(pid), signal.SIGKILL)
            launched.wait_for_line(rf"restart {kill + 1} of {kills} of all tasks")
        assert launched.wait() == 0, launched.output
        assert launched.pids() == []
    goes_on = re.findall(r"Training goes on from .*ckpt-\d+, at step", launched.output)
    assert len(goes_on) >= 1
    models.assert_trained(tmp_path / "result.npz", updates)


def test_run_ends_when_servers_die_too_often(tmp_path):
    script = tmp_path / "script.py"
    script.write_text("import time; print('waiting', flush=True); time.sleep(1000)")
    with commands.Command("launch", *OPTIONS, "--max-restarts", 1, script) as launched:
        for begin in (1, 2):
            launched.wait_for_line("waiting", occurrence=begin)
            pid = launched.wait_for_line(
                r"ps-0 starts at \S+ \(pid (\d+)\)", occurrence=begin
            )[1]
            os.kill(int(pid), signal.SIGKILL)
        assert launched.wait() == 1
        assert launched.pids() == []
    assert re.search(
        r"ps-0 \(pid \d+\) was killed by SIGKILL; its variables are lost, after 1 "
        "restarts, ending the run",
        launched.output,
    )
