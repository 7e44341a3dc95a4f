"""Values that are packed into one tensor arrive unchanged, bit for bit."""

import numpy as np
import pytest
import tensorflow as tf

from tf_syncrep.python.base import messages

NUMBERS = {
    "a_scalar": np.int64(-3),
    "a_vector": np.array([1 << 62, -1]),
    "nothing": np.zeros([0, 3], np.float32),
    "a_matrix": np.array([[1.5, -0.0], [np.inf, 1e-45]], np.float32),
    "half": np.array([[[65504.0]], [[6e-8]]], np.float16),
    "bfloat16": np.array([3e38, -1.0], tf.bfloat16.as_numpy_dtype),
    "double": np.array([5e-324, np.pi]),
    "byte": np.array([[200], [3]], np.uint8),
    "signed_byte": np.array([-128, 127], np.int8),
    "truth": np.array([[True, False]]),
    # It has a payload, which an operation might lose.
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


def test_tensors_come_back_by_themselves_and_together():
    texts = [b"", b"\0x\0", bytes(range(256)), "größer".encode()]
    for value in (*NUMBERS.values(), *texts):
        _assert_come_back([value])
    _assert_come_back(list(NUMBERS.values()))
    for text in texts:
        _assert_come_back([NUMBERS["half"], text, NUMBERS["a_vector"]])


@pytest.mark.parametrize("lengths", [(0, 0, 0), (1, 0, 5), (3, 1, 0), (2, 10**5, 7)])
def test_vectors_of_any_length_come_back(lengths):
    longs, ints, halves = lengths
    # Each length is given if it is known beforehand.
    values_and_lengths = [
        (np.arange(longs) - 1, None),
        (np.array([5e-324, np.pi]), 2),
        (np.arange(ints, dtype=np.int32), None),
        (np.arange(halves, dtype=np.float16), None),
        (np.array([1, 2, 3], np.int32), 3),
    ]
    values = [tf.constant(value) for value, _ in values_and_lengths]
    like = [
        tf.TensorSpec([length], value.dtype)
        for value, (_, length) in zip(values, values_and_lengths, strict=True)
    ]
    values.insert(2, tf.constant(b"between"))
    like.insert(2, tf.TensorSpec([], tf.string))

    @tf.function(input_signature=like)
    def there_and_back(*tensors):
        unpacked = messages.unpack(messages.pack(tensors), like)
        assert [one.shape.rank for one in unpacked] == [1, 1, 0, 1, 1, 1]
        return unpacked

    unpacked = there_and_back(*values)
    assert list(map(_bits, unpacked)) == list(map(_bits, values))


def test_shapes_are_known_where_a_message_is_taken_apart():
    shapes = ([2, 3], tf.float16), ([], tf.string), ([], tf.int64)
    like = [tf.TensorSpec(*one) for one in shapes]
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
    # Otherwise everything after it would be wrong.
    @tf.function
    def pack():
        tensor = tf.numpy_function(lambda: np.ones(size, np.float32), [], tf.float32)
        tensor.set_shape([2])
        return messages.pack([tensor])

    with pytest.raises(tf.errors.InvalidArgumentError):
        pack()
