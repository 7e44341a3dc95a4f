"""Hops that wait for one another are counted, and no others."""

import importlib
import pathlib

import pytest
import tensorflow as tf

BENCHMARKS = pathlib.Path(__file__).parents[2] / "benchmarks"
FIRST, SECOND = "/job:ps/task:0", "/job:ps/replica:0/task:1/device:CPU:0"


@pytest.fixture
def count(monkeypatch):
    monkeypatch.syspath_prepend(BENCHMARKS)
    hops = importlib.import_module("harness.hops")

    def count_in(function):
        concrete = tf.function(function).get_concrete_function(tf.TensorSpec([]))
        return hops.count(concrete)

    return count_in


def add(x, device):
    with tf.device(device):
        return x + 1


def test_what_stays_at_home_needs_none(count):
    assert count(lambda x: x + 1) == 0


def test_there_and_back(count):
    assert count(lambda x: add(x, FIRST) + 1) == 2


def test_an_effect_that_nothing_waits_for_has_to_end_all_the_same(count):
    def function(x):
        with tf.device(FIRST):
            tf.print(x)
        return x

    assert count(function) == 2


def test_side_by_side_counts_once(count):
    assert count(lambda x: add(x, FIRST) + add(x, SECOND)) == 2


def test_from_server_to_server(count):
    assert count(lambda x: add(add(x, FIRST), SECOND)) == 3


def test_one_after_the_other(count):
    assert count(lambda x: add(add(x, FIRST) + 1, SECOND)) == 4


def test_a_control_dependency_is_a_hop(count):
    def function(x):
        with tf.control_dependencies([add(x, FIRST)]):
            return add(x, SECOND)

    assert count(function) == 3


def test_a_branch_waits_for_its_condition(count):
    def function(x):
        return tf.cond(add(x, FIRST) > 0, lambda: add(x, SECOND), lambda: x)

    assert count(function) == 4


def test_what_is_in_a_function_counts(count):
    inner = tf.function(lambda x: add(x, SECOND))
    assert count(lambda x: inner(add(x, FIRST) + 1)) == 4
