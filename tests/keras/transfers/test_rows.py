"""Rows that bring other tensors along, in graphs of functions that do not run."""

import graphlib

import pytest
import tensorflow as tf
import transfers_graph
from transfers_graph import SERVERS, assign, read, sent, variable

from tf_syncrep.python.keras.transfers.prefetch import read_rows_early
from tf_syncrep.python.keras.transfers.transfers import joined_transfers
from tf_syncrep.python.ops import embedding_ops

WIDTH = 3
TO, FROM = ("", SERVERS[0]), (SERVERS[0], "")


def table(server=0):
    return variable(server, (20, WIDTH))


def ids_of(x):
    """Distinct rows, as a worker finds them; their number is not known."""
    rows, places = embedding_ops.embedding_rows(
        [tf.cast(x, tf.int32)],
        num_rows=20,
        num_shards=1,
        first_rows=[0],
        vocabulary_sizes=[20],
        features=["feature"],
        tables=["table"],
    )
    return rows[0], places[0]


def look_up(handle, x):
    """What is sent for a lookup: the rows; and what the worker makes of them."""
    numbers, places = ids_of(x)
    with tf.device(handle.device):
        rows = embedding_ops.embedding_gather(
            handle, numbers, shape=[20, WIDTH], dtype=tf.float32
        )
    (vectors,) = embedding_ops.embedding_combine([rows], [places], [None])
    return rows, vectors, numbers, places


def push(handle, vectors, found):
    """Sends gradients of rows to their table."""
    rows, _, numbers, places = found
    (sums,) = embedding_ops.embedding_combine_grad([vectors], [rows], [places], [None])
    with tf.device(handle.device):
        tf.raw_ops.ResourceScatterAdd(resource=handle, indices=numbers, updates=sums)


def test_rows_bring_dense_values_and_their_gradients_the_dense_gradients():
    def build(x):
        handle, weights = table(), [variable(0), variable(0)]
        found = look_up(handle, x)
        gradient = found[1] + read(weights[0]) * read(weights[1])
        push(handle, gradient, found)
        for weight in weights:
            assign(weight, tf.reduce_sum(gradient, axis=0))

    # Row numbers, and gradients; rows.
    assert sent(build) == sorted([TO, TO, FROM])


def test_ids_that_need_a_dense_value_do_not_wait_for_the_rows():
    def build(x):
        handle, weight = table(), variable(0)
        _, vectors, *_ = look_up(handle, x + read(weight))
        tf.identity(vectors)

    assert sent(build) == sorted([FROM, TO, FROM])


def test_dense_gradients_do_not_wait_for_gradients_that_need_what_they_change():
    def build(x):
        handle, weight = table(), variable(0)
        found = look_up(handle, x)
        assign(weight, x + read(weight))
        push(handle, found[1] * read(weight), found)

    # Row numbers; rows with a weight; its new value and back; gradients.
    assert sent(build) == sorted([TO, FROM, TO, FROM, TO])


def test_one_of_two_tables_brings_the_dense_values():
    def build(x):
        tables, weight = [table(), table()], variable(0)
        vectors = [look_up(handle, x * (i + 1.0))[1] for i, handle in enumerate(tables)]
        tf.add_n([*vectors, tf.broadcast_to(read(weight), [3, WIDTH])])

    assert sent(build) == sorted([TO, TO, FROM, FROM])


def test_each_server_sends_its_own():
    def build(x):
        handles, weights = [table(0), table(1)], [variable(0), variable(1)]
        vectors = [look_up(handle, x)[1] for handle in handles]
        tf.identity(tf.add_n(vectors) * read(weights[0]) * read(weights[1]))

    other = [("", SERVERS[1]), (SERVERS[1], "")]
    assert sent(build) == sorted([TO, FROM, *other])


def test_lookups_that_may_not_wait_go_by_themselves():
    def build(x):
        handle, weight = table(), variable(0)
        found = look_up(handle, x)
        gradient = found[1] + read(weight)
        push(handle, gradient, found)
        assign(weight, tf.reduce_sum(gradient, axis=0))

    def context():
        return joined_transfers(lookups_wait=False)

    assert sent(build, context) == sorted([TO, FROM, FROM, TO])


def test_rows_that_are_used_on_their_server_as_well_go_by_themselves():
    def build(x):
        handle, weight = table(), variable(0)
        rows, vectors, *_ = look_up(handle, x)
        with tf.device(handle.device):
            assign(variable(0), tf.reduce_sum(rows, axis=0))
        tf.identity(vectors + read(weight))

    assert sent(build) == sorted([TO, FROM, FROM])


def test_gradients_that_are_passed_on_after_a_check_bring_others_as_well():
    def build(x):
        handle, weight = table(), variable(0)
        rows, vectors, numbers, places = look_up(handle, x)
        (sums,) = embedding_ops.embedding_combine_grad(
            [vectors], [rows], [places], [None]
        )
        with tf.control_dependencies([tf.debugging.assert_equal(tf.shape(sums)[1], 3)]):
            sums = tf.identity(sums)
        with tf.device(handle.device):
            tf.raw_ops.ResourceScatterAdd(
                resource=handle, indices=numbers, updates=sums
            )
        assign(weight, x + 1.0)

    assert sent(build) == sorted([TO, TO, FROM])


@pytest.mark.parametrize("steps", [1, 3])
def test_steps_keep_their_order(steps):
    """Rows are looked up after the last step's update, and before their own."""

    @tf.function(autograph=False)
    def function(x):
        handle, weight = table(), variable(0)
        for _ in range(steps):
            with joined_transfers():
                found = look_up(handle, x)
                gradient = found[1] + read(weight)
                push(handle, gradient, found)
                assign(weight, tf.reduce_sum(gradient, axis=0))

    graph = function.get_concrete_function(tf.TensorSpec([3])).graph
    ops = transfers_graph.with_inputs(graph)
    graphlib.TopologicalSorter(ops).prepare()  # it has no cycle
    before = {}
    for op in graphlib.TopologicalSorter(ops).static_order():
        before[op] = {x for source in ops[op] for x in (source, *before[source])}
    of_type = {
        name: [x for x in graph.get_operations() if x.type == name]
        for name in ("Syncrep>EmbeddingGather", "ResourceScatterAdd")
    }
    for i, lookup in enumerate(of_type["Syncrep>EmbeddingGather"]):
        earlier = before[lookup]
        assert [x in earlier for x in of_type["ResourceScatterAdd"]] == [
            j < i for j in range(steps)
        ]


@pytest.mark.parametrize("waits", [False, True])
def test_lookup_that_was_told_to_wait_for_an_update_is_not_moved_before_it(waits):
    @tf.function(autograph=False)
    def two_steps(x):
        graph = tf.compat.v1.get_default_graph()
        handle = table()
        first = look_up(handle, x)
        push(handle, first[1], first)
        update = graph.get_operations()[-1]
        begin = len(graph.get_operations())
        numbers, _ = ids_of(x)
        with tf.control_dependencies([update] if waits else []):
            rows = embedding_ops.embedding_gather(
                handle, numbers, shape=[20, WIDTH], dtype=tf.float32
            )
        ops = graph.get_operations()
        read_rows_early(graph, [ops[:begin], ops[begin:]])
        is_moved.append(rows.op in update.control_inputs)

    is_moved = []
    function = two_steps.get_concrete_function(tf.TensorSpec([3]))
    graphlib.TopologicalSorter(transfers_graph.with_inputs(function.graph)).prepare()
    assert is_moved == [not waits]
