"""How far a checkpoint has got, by its files, for tests that kill tasks on the way."""

import os
import pathlib

import waiting

from tf_syncrep.python.checkpoint.directory import Directory

# The steps in order.
STEPS = ("begun", "in part", "one server done", "merged", "whole")


def step_of(directory: Directory, number: int) -> int:
    """How many steps a checkpoint has passed."""
    prefix = pathlib.Path(directory.prefix(number))
    try:
        parts = os.listdir(directory.temporary(number))
    except FileNotFoundError:  # not there yet, or not any more
        parts = None
    if prefix.with_name(f"{prefix.name}.json").exists():
        return 5
    if prefix.with_name(f"{prefix.name}.index").exists():
        return 4
    if parts is None:
        return 0
    if any(name.endswith(".index") for name in parts):
        return 3
    return 2 if parts else 1


def await_step(directory: Directory, step: str) -> int:
    """Waits until the checkpoint after the last whole one has reached a step."""
    wanted = STEPS.index(step) + 1
    number = directory.manifests()[-1].number + 1
    if step_of(directory, number) > wanted:
        number += 1
    waiting.until(
        lambda: step_of(directory, number) >= wanted,
        lambda: f"ckpt-{number} does not come to: {step}",
        poll_secs=0.001,
    )
    return number - 1
