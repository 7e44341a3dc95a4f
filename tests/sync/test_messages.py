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
    value = np.asarray(tensor)
    return value.shape, value.dtype, value.tobytes()


def _assert_come_back(text, numbers):
    tensors = [tf.constant(one) for one in numbers]
    message = messages.pack(tf.constant(text), tensors)
    assert (message.shape.rank, message.dtype) == (1, tf.uint8)
    like = [tf.TensorSpec(tensor.shape, tensor.dtype) for tensor in tensors]
    for description in (tensors, like):
        text_there, unpacked = messages.unpack(message, description)
        assert text_there.numpy() == text
        assert [_bits(one) for one in unpacked] == [_bits(one) for one in numbers]


@pytest.mark.parametrize("name", NUMBERS)
def test_a_tensor_comes_back(name):
    _assert_come_back(b"/job:worker/replica:0/task:7", [NUMBERS[name]])


def test_tensors_of_several_dtypes_come_back():
    _assert_come_back(b"several", list(NUMBERS.values()))


@pytest.mark.parametrize("text", [b"", b"\0x\0", bytes(range(256)), "größer".encode()])
def test_any_text_comes_back(text):
    _assert_come_back(text, [NUMBERS["a_vector"]])


def test_shapes_are_known_where_a_message_is_taken_apart():
    with tf.Graph().as_default():
        message = tf.compat.v1.placeholder(tf.uint8, [None])
        like = [tf.TensorSpec([2, 3], tf.float16), tf.TensorSpec([], tf.int64)]
        text, unpacked = messages.unpack(message, like)
        assert (text.shape, text.dtype) == ([], tf.string)
        assert [(one.shape, one.dtype) for one in unpacked] == [
            ([2, 3], tf.float16),
            ([], tf.int64),
        ]


def test_a_message_that_is_too_short_is_an_error():
    message = messages.pack(tf.constant("x"), [tf.constant(1.0)])
    with pytest.raises(tf.errors.InvalidArgumentError):
        messages.unpack(message, [tf.TensorSpec([2], tf.float32)])


@pytest.mark.parametrize("size", [1, 3])
def test_a_tensor_of_another_size_than_it_was_said_to_have_is_an_error(size):
    # Behind it everything would be something else over there.
    @tf.function
    def pack():
        tensor = tf.numpy_function(lambda: np.ones(size, np.float32), [], tf.float32)
        tensor.set_shape([2])
        return messages.pack(tf.constant("x"), [tensor])

    with pytest.raises(tf.errors.InvalidArgumentError):
        pack()
