"""Where the gate goes: to the task that holds most of what is trained."""

import dataclasses
import itertools

import pytest
import tensorflow as tf

from tf_syncrep.python.sync.gate_placement import gate_device, on_same_task

tf1 = tf.compat.v1

PS = ["/job:ps/task:0", "/job:ps/task:1", "/job:ps/task:2"]


@dataclasses.dataclass
class Variable:
    """What is asked of a variable: `device`, and for its bytes `shape` and `dtype`."""

    device: str
    shape: tf.TensorShape
    dtype: tf.DType = tf.float32


def _variables(*devices_and_sizes):
    return [
        Variable(device, tf.TensorShape([size])) for device, size in devices_and_sizes
    ]


def _gate(fallback, *devices_and_sizes):
    return gate_device(_variables(*devices_and_sizes), fallback)


def test_task_with_more_than_half_of_the_bytes_gets_the_gate():
    cpu = "/job:ps/task:1/device:CPU:0"
    assert _gate(PS[0], (PS[0], 9), (PS[1], 10)) == cpu
    assert _gate(PS[0], (PS[0], 9), (PS[1], 19), (PS[2], 9)) == cpu
    # Of all its variables together, not of the largest.
    assert _gate(PS[0], (PS[1], 6), (PS[0], 9), (PS[1], 6)) == cpu
    # Bytes, not elements.
    double = Variable(PS[1], tf.TensorShape([6]), tf.float64)
    assert gate_device([*_variables((PS[0], 9)), double], PS[0]) == cpu


def test_gate_stays_where_no_task_has_more_than_half():
    cpu = "/job:ps/task:1/device:CPU:0"
    assert _gate(PS[1]) == cpu
    assert _gate(PS[1], (PS[0], 0)) == cpu
    assert _gate(PS[1], (PS[0], 10), (PS[1], 10)) == cpu
    assert _gate(PS[1], (PS[0], 10), (PS[2], 10)) == cpu
    # What has the most, has not more than both of the others.
    assert _gate(PS[1], (PS[0], 10), (PS[1], 5), (PS[2], 5)) == cpu


def test_order_of_variables_does_not_matter():
    sizes = [(PS[0], 10), (PS[1], 16), (PS[2], 5)]
    for order in itertools.permutations(sizes):
        assert _gate(PS[2], *order) == "/job:ps/task:1/device:CPU:0"


@pytest.mark.parametrize(
    ("device", "expected"),
    [
        ("/job:ps/task:1", "/job:ps/task:1/device:CPU:0"),
        ("/job:ps/task:1/cpu:0", "/job:ps/task:1/device:CPU:0"),
        ("/job:ps/task:1/device:GPU:2", "/job:ps/task:1/device:CPU:0"),
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
    assert _gate(PS[0], (PS[0], 10), *ways) == "/job:ps/task:1/device:CPU:0"
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
    assert _gate(PS[0], (device, 1000)) == "/job:ps/task:0/device:CPU:0"
    assert _gate(PS[0], (device, 1000), (PS[1], 1)) == "/job:ps/task:1/device:CPU:0"
    assert _gate("", (device, 1000)) == ""
    assert _gate("", (device, 1000), (PS[1], 1)) == "/job:ps/task:1/device:CPU:0"


@pytest.mark.parametrize("shape", [None, [None, 1000]])
def test_size_that_is_not_known_counts_for_none(shape):
    unknown = Variable(PS[1], tf.TensorShape(shape))
    assert gate_device([unknown], PS[0]) == "/job:ps/task:0/device:CPU:0"
    others = _variables((PS[2], 1))
    assert gate_device([unknown, *others], PS[0]) == "/job:ps/task:2/device:CPU:0"


@pytest.mark.parametrize("use_resource", [False, True], ids=["ref", "resource"])
def test_variables_of_a_graph_and_slices_of_partitioned_ones(use_resource):
    setter = tf1.train.replica_device_setter(ps_tasks=3)
    scope = tf1.variable_scope("", use_resource=use_resource)
    with tf.Graph().as_default(), scope, tf1.device(setter):
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


def test_eager_variables_of_one_process_share_their_task():
    variables = [tf.Variable(tf.zeros([size])) for size in (3, 5)]
    fallback = tf.Variable(0, dtype=tf.int64).device
    expected = tf.DeviceSpec.from_string(fallback).replace(
        device_type="CPU", device_index=0
    )
    assert gate_device(variables, fallback) == expected.to_string()
