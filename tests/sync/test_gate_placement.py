"""The gate is placed on the task that holds most of what is trained."""

import dataclasses
import itertools

import pytest
import tensorflow as tf

from tf_syncrep.python.sync.gate_placement import gate_device, on_same_task

tf1 = tf.compat.v1

PS = ["/job:ps/task:0", "/job:ps/task:1", "/job:ps/task:2"]
CPU_1 = f"{PS[1]}/device:CPU:0"


@dataclasses.dataclass
class Variable:
    """The attributes of a variable that are used: `device`, `shape` and `dtype`."""

    device: str
    shape: tf.TensorShape
    dtype: tf.DType = tf.float32


def _gate(fallback, *variables):
    """The gate's device for variables with these numbers of elements, or shapes."""
    return gate_device(
        [
            Variable(device, tf.TensorShape([x] if isinstance(x, int) else x), *dtype)
            for device, x, *dtype in variables
        ],
        fallback,
    )


@pytest.mark.parametrize(
    "variables",
    [
        [(PS[0], 9), (PS[1], 10)],
        [(PS[0], 9), (PS[1], 19), (PS[2], 9)],
        # All variables of a task count together, not only the largest.
        [(PS[1], 6), (PS[0], 9), (PS[1], 6)],
        # Bytes count, not elements.
        [(PS[0], 9), (PS[1], 6, tf.float64)],
    ],
)
def test_task_with_more_than_half_of_the_bytes_gets_the_gate(variables):
    for order in itertools.permutations(variables):
        assert _gate(PS[0], *order) == CPU_1


@pytest.mark.parametrize(
    "variables",
    [
        [],
        [(PS[0], 0)],
        [(PS[0], 10), (PS[1], 10)],
        [(PS[0], 10), (PS[2], 10)],
        # The largest task does not have more than both of the others.
        [(PS[0], 10), (PS[1], 5), (PS[2], 5)],
    ],
)
def test_gate_stays_where_no_task_has_more_than_half(variables):
    assert _gate(PS[1], *variables) == CPU_1


@pytest.mark.parametrize(
    ("device", "expected"),
    [
        (PS[1], CPU_1),
        ("/job:ps/task:1/cpu:0", CPU_1),
        ("/job:ps/task:1/device:GPU:2", CPU_1),
        (
            "/job:ps/replica:0/task:1/device:GPU:0",
            "/job:ps/replica:0/task:1/device:CPU:0",
        ),
    ],
)
def test_answer_is_a_cpu_in_the_words_of_the_variable(device, expected):
    assert _gate(PS[0], (device, 1)) == expected
    assert _gate(device) == expected


def test_one_task_may_be_spelt_in_several_ways():
    full = "/job:ps/replica:0/task:1/device:CPU:0"
    ways = [(PS[1], 5), (full, 5), ("/job:ps/task:1/device:GPU:0", 1)]
    assert _gate(PS[0], (PS[0], 10), *ways) == CPU_1
    assert _gate(full, (PS[0], 10), *ways) == full


@pytest.mark.parametrize("device", ["/job:ps/replica:0/task:1/cpu:0", PS[1]])
def test_devices_of_one_task_are_told_from_others(device):
    assert on_same_task(device, "/job:ps/task:1/device:GPU:0")
    assert on_same_task("/job:ps/task:1/device:GPU:0", device)
    for other in (PS[0], "/job:worker/task:1", "/job:ps/replica:1/task:1", "/job:ps"):
        assert not on_same_task(device, other)
    for nowhere in ("", "/device:CPU:0", "/job:ps"):
        assert not on_same_task(nowhere, nowhere)


@pytest.mark.parametrize("device", ["", "/device:GPU:0", "/job:ps"])
def test_device_that_names_no_task_counts_for_none(device):
    assert _gate(PS[1], (device, 1000)) == CPU_1
    assert _gate(PS[0], (device, 1000), (PS[1], 1)) == CPU_1
    assert _gate("", (device, 1000)) == ""
    assert _gate("", (device, 1000), (PS[1], 1)) == CPU_1


@pytest.mark.parametrize("shape", [None, [None, 1000]])
def test_size_that_is_not_known_counts_for_none(shape):
    assert _gate(PS[1], (PS[0], shape)) == CPU_1
    assert _gate(PS[0], (PS[0], shape), (PS[1], 1)) == CPU_1


@pytest.mark.parametrize("use_resource", [False, True], ids=["ref", "resource"])
def test_variables_of_a_graph_and_slices_of_partitioned_ones(use_resource):
    setter = tf1.train.replica_device_setter(ps_tasks=3)
    with (
        tf.Graph().as_default(),
        tf1.variable_scope("", use_resource=use_resource),
        tf1.device(setter),
    ):
        step = tf1.train.get_or_create_global_step()
        table = tf1.get_variable(
            "table", [4, 5], partitioner=tf1.fixed_size_partitioner(2)
        )
        dense = tf1.get_variable("dense", [3])
        scalar = tf1.get_variable("scalar", [])
    slices = list(table)
    assert [one.device for one in [step, *slices, dense]] == [*PS, PS[0]]
    assert gate_device([slices[0], dense], step.device) == f"{PS[1]}/device:CPU:0"
    assert gate_device([slices[1], dense], step.device) == f"{PS[2]}/device:CPU:0"
    assert gate_device([*slices, dense], step.device) == f"{PS[0]}/device:CPU:0"
    assert gate_device([dense, scalar], step.device) == f"{PS[0]}/device:CPU:0"


@pytest.mark.eager
def test_eager_variables_of_one_process_share_their_task():
    variables = [tf.Variable(tf.zeros([size])) for size in (3, 5)]
    fallback = tf.Variable(0, dtype=tf.int64).device
    expected = tf.DeviceSpec.from_string(fallback).replace(
        device_type="CPU", device_index=0
    )
    assert gate_device(variables, fallback) == expected.to_string()
