"""The messages of a function's graph, which does not run."""

import graphlib

import tensorflow as tf

import tf_syncrep as tfs

SERVERS = ("/job:ps/replica:0/task:0", "/job:ps/replica:0/task:1")
DEVICE = "/device:CPU:0"
# Messages from each of them to the worker, which has no name in a function, and back.
BOTH_WAYS = sorted([*((x, "") for x in SERVERS), *(("", x) for x in SERVERS)])


def variable(server, shape=(3,), dtype=tf.float32):
    """The handle of a variable on a server, made in the function."""
    with tf.device(SERVERS[server] + DEVICE):
        return tf.raw_ops.VarHandleOp(dtype=dtype, shape=shape)


def read(handle, shape=(3,), dtype=tf.float32):
    value = tf.raw_ops.ReadVariableOp(resource=handle, dtype=dtype)
    value.set_shape(shape)
    return value


def assign(handle, value):
    tf.raw_ops.AssignVariableOp(resource=handle, value=value)


def with_inputs(graph):
    """The ops of a graph, each with those that come right before it."""
    return {
        op: [*(x.op for x in op.inputs), *op.control_inputs]
        for op in graph.get_operations()
    }


def sent(build, context=tfs.keras.few_messages):
    """The tensors that go from a task to another, as pairs of the two tasks.

    Also asserts that there is an order in which the ops can run.
    """

    @tf.function(autograph=False)
    def step(x):
        with context():
            build(x)

    ops = with_inputs(step.get_concrete_function(tf.TensorSpec([3])).graph)
    tasks = {}
    for op in graphlib.TopologicalSorter(ops).static_order():
        handles = [tasks[x.op] for x in op.inputs if x.dtype == tf.resource]
        own = op.device.removesuffix(DEVICE)
        tasks[op] = own or next(iter(handles), "")
    crossing = {
        (x.name, tasks[x.op], tasks[op])
        for op in ops
        for x in op.inputs
        if tasks[x.op] != tasks[op] and x.dtype != tf.resource
    }
    return sorted((origin, target) for _, origin, target in crossing)
