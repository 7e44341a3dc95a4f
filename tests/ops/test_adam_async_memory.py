"""An AdamAsync step allocates no tensor of the size of the table."""

import adam_async_steps as steps
import numpy as np
import pytest
import tensorflow as tf

ROWS, COLUMNS = 1000, 16


def allocated_bytes(session, op):
    """Runs the op; returns the bytes of all tensors that it allocated."""
    metadata = tf.compat.v1.RunMetadata()
    trace = tf.compat.v1.RunOptions(
        trace_level=tf.compat.v1.RunOptions.FULL_TRACE  # type: ignore
    )
    session.run(op, options=trace, run_metadata=metadata)
    nodes = [
        node
        for device in metadata.step_stats.dev_stats
        for node in device.node_stats
        if node.node_name == op.name
    ]
    assert nodes
    return sum(memory.total_bytes for node in nodes for memory in node.memory)


@pytest.mark.parametrize("use_locking", [False, True], ids=["rows", "locking"])
@pytest.mark.parametrize("kind", ["dense", "sparse"])
def test_a_step_copies_tables_only_from_under_their_readers(kind, use_locking):
    state = steps.random_state(1, [ROWS, COLUMNS], tf.float32)
    indices = np.arange(0, ROWS, 100) if kind == "sparse" else None
    grad = np.ones([ROWS if indices is None else len(indices), COLUMNS], np.float32)
    graph = tf.Graph()
    with graph.as_default(), tf.device("CPU:0"), tf.compat.v1.Session() as session:
        variables = steps.make_variables(state)
        op = steps.apply(variables, grad, indices, use_locking=use_locking)
        session.run(tf.compat.v1.global_variables_initializer())
        # The variables still share the buffers of the constants with which they began.
        assert allocated_bytes(session, op) >= 3 * state.var.nbytes
        assert allocated_bytes(session, op) <= state.var.nbytes / 10
        assert allocated_bytes(session, op) <= state.var.nbytes / 10
