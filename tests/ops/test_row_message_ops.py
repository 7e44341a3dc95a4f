"""Messages of rows and other tensors, put together and taken apart."""

import pathlib

import numpy as np
import programs
import pytest
import tensorflow as tf

from tf_syncrep.python.ops import embedding_ops, op_library, row_message_ops

raw_ops = op_library.load()
MEMORY_PROGRAM = pathlib.Path(__file__).with_name("row_message_memory_program.py")
DTYPES = [tf.half, tf.bfloat16, tf.float32, tf.float64]
OTHERS = [
    tf.constant([1.5, -2.5]),
    tf.constant(True),
    tf.constant([[1 << 40]], tf.int64),
    tf.zeros([0, 3]),
    tf.constant([1, 2, 3], tf.uint8),
    tf.cast(tf.range(70), tf.bfloat16),
]


def rows_of(num_rows, width, dtype, offset=0):
    numbers = np.arange(num_rows * width).reshape(num_rows, width) % 199
    return tf.cast(tf.constant(numbers + offset), dtype)


def parts_of(message, others, head_rows):
    return row_message_ops.row_message_parts(message, others, head_rows=head_rows)


def assert_equal(some, others):
    assert (some.dtype, some.shape) == (others.dtype, others.shape)
    np.testing.assert_array_equal(some, others)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("width", [1, 3, 16, 33])
@pytest.mark.parametrize("num_rows", [0, 1, 50])
def test_what_is_put_together_comes_out_as_it_was(dtype, width, num_rows):
    rows = rows_of(num_rows, width, dtype)
    head_rows = row_message_ops.num_head_rows(OTHERS, width, dtype)
    message = row_message_ops.row_message(rows, OTHERS, head_rows=head_rows)
    assert message.shape == (head_rows + num_rows, width)
    taken, others = parts_of(message, OTHERS, head_rows)
    assert_equal(taken, rows)
    for some, given in zip(others, OTHERS, strict=True):
        assert_equal(some, given)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("width", [1, 3, 16, 33])
def test_head_has_the_fewest_rows_that_fit_and_are_aligned(dtype, width):
    for size in (1, 16, 17, 1000):
        others = [tf.TensorSpec([size], tf.float32), tf.TensorSpec([], tf.bool)]
        count = row_message_ops.num_head_rows(others, width, dtype)
        num_bytes = (size * 4 + 63) // 64 * 64 + 64
        fitting = [
            n
            for n in range(1, 64 + num_bytes)
            if n * width * dtype.size >= num_bytes and n * width * dtype.size % 64 == 0
        ]
        assert count == fitting[0]


def look_up(table, rows, head_rows):
    """Looks rows up, with room for a head in front of them."""
    return raw_ops.syncrep_embedding_gather(
        *(table.handle, rows),
        dtype=tf.float32,
        Tout=tf.float32,
        shape=table.shape,
        head_rows=head_rows,
    )


def message_in_a_graph(rows, others, head_rows):
    """Makes a message in a function, in which rows are passed on as they are."""

    @tf.function(autograph=False)
    def run():
        made = rows()
        return row_message_ops.row_message(made, others, head_rows=head_rows)

    return run()


@pytest.mark.parametrize("room", [True, False])
def test_rows_that_are_looked_up_are_the_same_with_room_and_without(room):
    table = tf.Variable(rows_of(20, 5, tf.float32))
    head_rows = row_message_ops.num_head_rows(OTHERS, 5, tf.float32)
    message = message_in_a_graph(
        lambda: look_up(table, [3, 19, 0], head_rows if room else 0), OTHERS, head_rows
    )
    taken, others = parts_of(message, OTHERS, head_rows)
    assert_equal(taken, tf.gather(table, [3, 19, 0]))
    for some, given in zip(others, OTHERS, strict=True):
        assert_equal(some, given)


@pytest.mark.parametrize("room", [[], [16, 0], [0, 32], [16, 16]])
def test_gradients_of_rows_are_the_same_with_room_and_without(room):
    vectors = [rows_of(2, 4, tf.float32), rows_of(3, 4, tf.float32)]
    places = [tf.constant([[0, 3], [4, 4]]), tf.constant([[1], [2]])]
    gradients = [rows_of(2, 4, tf.float32, 1), rows_of(2, 4, tf.float32, 2)]
    expected = embedding_ops.embedding_combine_grad(
        gradients, vectors, places, ["mean", "sum"]
    )
    sums = raw_ops.syncrep_embedding_combine_grad(
        gradients=gradients,
        vectors=vectors,
        places=places,
        row_splits=[],
        weights=[],
        combiners=["mean", "sum"],
        is_ragged=[False, False],
        is_weighted=[False, False],
        head_rows=room,
    )
    for some, other in zip(sums, expected, strict=True):
        assert_equal(some, other)


def test_rows_that_somebody_else_holds_are_copied():
    table = tf.Variable(rows_of(20, 16, tf.float32))
    rows = look_up(table, [3, 19, 0], 4)
    others = [tf.fill([64], 7.0)]
    first = row_message_ops.row_message(rows, others, head_rows=4)
    second = row_message_ops.row_message(rows, [tf.fill([64], 8.0)], head_rows=4)
    assert parts_of(first, others, 4)[1][0].numpy().tolist() == [7.0] * 64
    assert parts_of(second, others, 4)[1][0].numpy().tolist() == [8.0] * 64
    assert_equal(rows, tf.gather(table, [3, 19, 0]))


@pytest.mark.parametrize(("has_room", "copies"), [(1, 1), (0, 2)])
def test_rows_with_room_in_front_are_not_copied(has_room, copies):
    times = programs.run(MEMORY_PROGRAM, has_room)["times"]
    assert copies - 0.3 < times < copies + 0.3


def test_head_is_nothing_but_the_other_tensors_and_zeros():
    others = [tf.constant([1], tf.uint8), tf.constant([2], tf.uint8)]
    rows = rows_of(1, 48, tf.float32)
    message = row_message_ops.row_message(rows, others, head_rows=1)
    head = np.frombuffer(message[0].numpy().tobytes(), np.uint8)
    assert head[[0, 64]].tolist() == [1, 2]
    assert np.count_nonzero(head) == 2


@pytest.mark.parametrize(
    ("rows", "others", "head_rows", "message"),
    [
        (tf.zeros([3]), [tf.zeros([1])], 16, "rows must be a matrix, but has shape"),
        (tf.zeros([2, 16]), [tf.zeros([17])], 1, "must have room for the others, 128"),
        (tf.zeros([2, 3]), [tf.zeros([1])], 17, "must take a multiple of 64 bytes"),
        (tf.zeros([2, 0]), [tf.zeros([1])], 16, "must have room for the others, 64"),
        (tf.zeros([2, 16]), [tf.zeros([1])], 1 << 31, r"head_rows must be in \[0, "),
        (tf.zeros([2, 1]), [tf.constant("x")], 16, "must be numbers or truth values"),
    ],
)
def test_what_does_not_fit_is_refused(rows, others, head_rows, message):
    with pytest.raises(tf.errors.InvalidArgumentError, match=message):
        row_message_ops.row_message(rows, others, head_rows=head_rows)


@pytest.mark.parametrize(
    ("message", "like", "head_rows", "error"),
    [
        (tf.zeros([3]), [tf.zeros([1])], 16, "message must be a matrix"),
        (tf.zeros([2, 16]), [tf.zeros([1])], 3, "must have head_rows, 3, or more"),
        (tf.zeros([2, 16]), [tf.zeros([17])], 1, "must have room for the others, 128"),
        (tf.zeros([2, 16]), [tf.TensorSpec([None])], 1, "shapes must be known"),
        (tf.zeros([2, 16]), [tf.TensorSpec([1 << 41])], 1, "of fewer than"),
        (tf.zeros([2, 0]), [tf.zeros([1])], 1, "must have room for the others, 64"),
    ],
)
def test_messages_of_another_kind_are_refused(message, like, head_rows, error):
    with pytest.raises(tf.errors.InvalidArgumentError, match=error):
        row_message_ops.row_message_parts(message, like, head_rows=head_rows)


@pytest.mark.parametrize("head_rows", [-1, 3, 1 << 31])
def test_room_that_cannot_be_is_refused(head_rows):
    table = tf.Variable(tf.zeros([4, 3]))
    with pytest.raises(tf.errors.InvalidArgumentError, match="head_rows must"):
        look_up(table, [1], head_rows)


def test_shape_that_a_graph_only_claims_is_refused():
    """Sizes that make up for one another would shift what is read behind them."""

    @tf.function(autograph=False, input_signature=[tf.TensorSpec([None])] * 2)
    def run(some, more):
        some.set_shape([2])
        more.set_shape([17])
        rows = rows_of(2, 16, tf.float32)
        message = row_message_ops.row_message(rows, [some, more], head_rows=3)
        return parts_of(message, [some, more], 3)[1]

    some, more = run(tf.fill([2], 1.0), tf.fill([17], 2.0))
    assert some.numpy().tolist() == [1.0] * 2
    assert more.numpy().tolist() == [2.0] * 17
    rule = r"others\[0\] must have the shape .* say, \[2\], but has shape \[17\]"
    with pytest.raises(tf.errors.InvalidArgumentError, match=rule):
        run(tf.fill([17], 1.0), tf.fill([2], 2.0))


@pytest.mark.parametrize(
    ("shapes", "error"),
    [
        ([[1], [1]], "shapes must be of 1 tensors, but are of 2"),
        ([None], "shapes must be known"),
    ],
)
def test_shapes_of_a_message_are_those_of_its_tensors(shapes, error):
    rows, others = tf.zeros([2, 16]), [tf.zeros([1])]
    with pytest.raises(tf.errors.InvalidArgumentError, match=error):
        raw_ops.syncrep_row_message(rows, others, shapes=shapes, head_rows=1)


def test_a_head_alone_has_no_rows():
    message = row_message_ops.row_message(
        tf.zeros([0, 16]), [tf.fill([16], 3.0)], head_rows=1
    )
    rows, (other,) = parts_of(message, [tf.zeros([16])], 1)
    assert rows.shape == (0, 16)
    assert other.numpy().tolist() == [3.0] * 16


def test_shapes_are_known_in_graphs():
    @tf.function(autograph=False)
    def run(rows):
        message = row_message_ops.row_message(rows, [tf.zeros([2, 3])], head_rows=4)
        assert message.shape.as_list() == [None, 16]
        taken, (other,) = parts_of(message, [tf.zeros([2, 3])], 4)
        assert taken.shape.as_list() == [None, 16]
        assert other.shape == (2, 3)

    run.get_concrete_function(tf.TensorSpec([None, 16]))


# A step's graph is rewritten after its gradients were built. Those of a rewritten graph
# would be missing in silence otherwise.
def test_gradient_through_a_message_is_an_error():
    with tf.Graph().as_default():
        rows = tf.compat.v1.placeholder(tf.float32, [4, 16])
        message = row_message_ops.row_message(rows, [tf.zeros([2])], head_rows=1)
        with pytest.raises(LookupError, match="No gradient defined"):
            tf.gradients(message, rows)
