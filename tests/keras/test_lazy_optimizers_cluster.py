"""Optimizers with rules, asynchronously, on a cluster of real processes."""

import pathlib

import clusters
import numpy as np
import programs
import pytest
import rule_reference

PROGRAM = pathlib.Path(__file__).with_name("lazy_optimizers_program.py")
STEPS, DIM = 100, 4

RULES = {
    "sgd": ("sgd", {}, {}),
    "adagrad": ("adagrad", {"epsilon": 1e-7}, {"accumulator": 0.1}),
    "rowwise_adagrad": ("rowwise_adagrad", {"epsilon": 1e-8}, {"accumulator": 0.0}),
    "ftrl": (
        "ftrl",
        {"lr_power": -0.5, "l1": 0.0, "l2": 0.0, "l2_shrinkage": 0.0, "beta": 0.0},
        {"accumulator": 0.1, "linear": 0.0},
    ),
    "momentum": ("momentum", {"momentum": 0.5}, {"momentum": 0.0}),
    "nesterov": ("nesterov", {"momentum": 0.5}, {"momentum": 0.0}),
}


@pytest.fixture(scope="module")
def training():
    with clusters.Cluster(num_workers=2, num_ps=2) as cluster:
        yield programs.run(PROGRAM, STEPS, env=cluster.environment())


@pytest.mark.parametrize("name", RULES)
def test_no_update_of_any_worker_is_lost(training, name):
    """All gradients are equal, so that the order of the updates does not matter."""
    rule, numbers, initial = RULES[name]
    result = training[name]
    assert result["iterations"] == STEPS
    for variable in result["variables"]:
        var = np.array(variable["start"])
        slots = {
            key: np.full(rule_reference.slot_shape(rule, var.shape), value)
            for key, value in initial.items()
        }
        is_table = var.shape[-1] == DIM
        gradient = (np.ones([3, DIM]), [0, 1, 0]) if is_table else (np.ones_like(var),)
        for _ in range(STEPS):
            var, slots = rule_reference.apply(
                rule, var, slots, {"lr": 0.25, **numbers}, *gradient
            )
        np.testing.assert_allclose(variable["value"], var, rtol=1e-3, atol=1e-3)
        for key, slot in slots.items():
            np.testing.assert_allclose(variable["slots"][key], slot, rtol=1e-3)


def test_rounded_updates_of_all_workers_are_counted_and_right_on_average(training):
    for variable in training["rounded"]["variables"]:
        assert variable["slots"] == {"rounding_count": [-STEPS]}
        moved = np.array(variable["start"]) - np.array(variable["value"])
        # The first row of a table's part occurs twice, and the second once.
        is_table = moved.shape[-1] == DIM
        wanted = np.full(moved.shape, STEPS * 0.001)
        if is_table:
            wanted[0], wanted[2:] = 2 * wanted[0], 0
        # Kernels are up to 2, where half of the last place is 2^-8.
        deviation = 2.0**-8 * np.sqrt(STEPS)
        np.testing.assert_allclose(moved, wanted, atol=5 * deviation)
        np.testing.assert_allclose(moved.mean(), wanted.mean(), atol=0.02)


@pytest.mark.parametrize("name", RULES)
def test_slots_are_beside_their_variables(training, name):
    devices = [variable["devices"] for variable in training[name]["variables"]]
    assert all(len(of_variable) == 1 for of_variable in devices)
    assert len({of_variable[0] for of_variable in devices}) == 2
