"""tf_slim's training loop, which asks for an instance of TensorFlow's class."""

import pathlib

import programs
import pytest

pytest.importorskip("tf_slim", reason="needs tf-slim")

PROGRAM = pathlib.Path(__file__).with_name("slim_program.py")


def test_slims_training_loop_trains_to_its_last_step(tmp_path):
    loss = programs.run(PROGRAM, str(tmp_path))
    # It is 25, and each step leaves a quarter of it.
    assert 0 < loss <= 25 / 4**4
    # The folder is the given one: the last step's checkpoint is in it.
    assert (tmp_path / "model.ckpt-6.index").exists()
