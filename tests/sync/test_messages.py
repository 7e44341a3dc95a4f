"""What is packed into one tensor comes out over there as it went in, bit for bit."""

import numpy as np
import pytest
import tensorflow as tf

from tf_syncrep.python.sync import messages

NUMBERS = {
    "a_scalar": np.int64(-3),
    "a_vector": np.array([1 << 62, -1]),
    "nothing": np.zeros([0, 3], np.float32),
    "a_matrix": np.array([[1.5, -0.0], [np.inf, 1e-45]], np.float32),
    "half": np.array([[[65504.0]], [[6e-8]]], np.float16),
    "bfloat16": np.array([3e38, -1.0], tf.bfloat16.as_numpy_dtype),
    "double": np.array([5e-324, np.pi]),
    # With a payload: an operation on it might lose that.
    "a_nan": np.array(0xFFF0000012345678, np.uint64).view(np.float64),
}


def _bits(tensor):
    value = tensor.numpy()
    if isinstance(value, bytes):
        return value
    return value.shape, value.dtype, value.tobytes()


def _assert_come_back(values):
    tensors = [tf.constant(value) for value in values]
    message = messages.pack(tensors)
    assert (message.shape.rank, message.dtype) == (1, tf.uint8)
    like = [tf.TensorSpec(tensor.shape, tensor.dtype) for tensor in tensors]
    for description in (tensors, like):
        unpacked = messages.unpack(message, description)
        assert [_bits(one) for one in unpacked] == [_bits(one) for one in tensors]


@pytest.mark.parametrize("name", NUMBERS)
def test_a_tensor_comes_back(name):
    _assert_come_back([NUMBERS[name]])


def test_tensors_of_several_dtypes_come_back():
    _assert_come_back(list(NUMBERS.values()))


@pytest.mark.parametrize("text", [b"", b"\0x\0", bytes(range(256)), "größer".encode()])
def test_any_text_comes_back(text):
    _assert_come_back([text])
    _assert_come_back([NUMBERS["half"], text, NUMBERS["a_vector"]])


@pytest.mark.parametrize("lengths", [(0, 0, 0), (1, 0, 5), (3, 1, 0), (2, 10**5, 7)])
def test_vectors_of_any_length_come_back(lengths):
    def vector(length, dtype):
        return tf.TensorSpec([length], dtype)

    like = [
        vector(None, tf.int64),
        vector(2, tf.float64),
        tf.TensorSpec([], tf.string),
        vector(None, tf.int32),
        vector(None, tf.float16),
        vector(3, tf.int32),
    ]
    longs, ints, halves = (np.arange(length) - 1 for length in lengths)
    values = [
        longs.astype(np.int64),
        np.array([5e-324, np.pi]),
        b"between",
        ints.astype(np.int32),
        halves.astype(np.float16),
        np.array([1, 2, 3], np.int32),
    ]

    @tf.function(input_signature=like)
    def there_and_back(*tensors):
        unpacked = messages.unpack(messages.pack(tensors), like)
        assert [one.shape.rank for one in unpacked] == [1, 1, 0, 1, 1, 1]
        return unpacked

    unpacked = there_and_back(*map(tf.constant, values))
    assert list(map(_bits, unpacked)) == [_bits(tf.constant(one)) for one in values]


def test_empty_vectors_come_back():
    @tf.function(input_signature=[tf.TensorSpec([None], tf.int64)] * 2)
    def there_and_back(*tensors):
        return messages.unpack(messages.pack(tensors), tensors)

    unpacked = there_and_back(*[tf.zeros([0], tf.int64)] * 2)
    assert [one.shape for one in unpacked] == [[0], [0]]


def test_shapes_are_known_where_a_message_is_taken_apart():
    like = [
        tf.TensorSpec([2, 3], tf.float16),
        tf.TensorSpec([], tf.string),
        tf.TensorSpec([], tf.int64),
    ]
    with tf.Graph().as_default():
        message = tf.compat.v1.placeholder(tf.uint8, [None])
        unpacked = messages.unpack(message, like)
        described = [tf.TensorSpec(one.shape, one.dtype) for one in unpacked]
        assert described == like


def test_a_message_that_is_too_short_is_an_error():
    message = messages.pack([tf.constant(1.0)])
    with pytest.raises(tf.errors.InvalidArgumentError):
        messages.unpack(message, [tf.TensorSpec([2], tf.float32)])


@pytest.mark.parametrize("size", [1, 3])
def test_a_tensor_of_another_size_than_it_was_said_to_have_is_an_error(size):
    # Behind it everything would be something else over there.
    @tf.function
    def pack():
        tensor = tf.numpy_function(lambda: np.ones(size, np.float32), [], tf.float32)
        tensor.set_shape([2])
        return messages.pack([tensor])

    with pytest.raises(tf.errors.InvalidArgumentError):
        pack()
