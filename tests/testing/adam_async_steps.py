"""Runs one AdamAsync op on given values, in each way that TensorFlow runs an op."""

from typing import Any

import adam_async_reference as reference
import devices
import numpy as np
import tensorflow as tf

import tf_syncrep as tfs

# How an op runs: eagerly, in a tf.function, in a session on resource variables, or in a
# session on reference variables.
MODES = ("eager", "function", "session", "ref")

DTYPES = (tf.float16, tf.bfloat16, tf.float32, tf.float64)

# The relative error of one step, most of which is the rounding of the result.
RELATIVE_ERROR = {
    tf.float16: 1e-3,
    tf.bfloat16: 8e-3,
    tf.float32: 2e-6,
    tf.float64: 1e-13,
}

HYPER_PARAMETERS = {"lr": 0.05, "beta1": 0.9, "beta2": 0.99, "epsilon": 1e-8}


def slot_dtype(dtype: tf.DType) -> tf.DType:
    """The dtype of slots and hyper-parameters beside a variable of `dtype`."""
    return tf.float64 if dtype == tf.float64 else tf.float32


def random_array(seed: int, shape: Any, dtype: tf.DType) -> np.ndarray:
    """Numbers around zero, none of them so small that tolerances fail."""
    random = np.random.default_rng(seed)
    signs = random.choice([-1.0, 1.0], size=shape)
    magnitudes = random.uniform(0.25, 2.0, size=shape)
    return np.asarray(signs * magnitudes).astype(dtype.as_numpy_dtype)


def random_state(seed: int, shape: Any, dtype: tf.DType) -> reference.State:
    """A state as after four steps, in the dtypes that the ops require."""
    slot = slot_dtype(dtype)
    beta1, beta2 = HYPER_PARAMETERS["beta1"], HYPER_PARAMETERS["beta2"]
    return reference.State(
        random_array(seed, shape, dtype),
        random_array(seed + 1, shape, slot),
        np.square(random_array(seed + 2, shape, slot)),
        np.array(beta1**5, slot.as_numpy_dtype),
        np.array(beta2**5, slot.as_numpy_dtype),
    )


def make_variables(state: reference.State, use_resource: bool = True) -> list[Any]:
    """One variable for each array of `state`, in the current graph or eagerly."""
    with devices.scope():
        return [
            tf.compat.v1.Variable(
                initial_value=tf.constant(array), use_resource=use_resource, name=name
            )
            for name, array in zip(state._fields, state, strict=True)
        ]


def values(variables: list[Any]) -> reference.State:
    return reference.State(*[x.numpy() for x in variables])


def apply(variables: list[Any], grad: Any, indices: Any = None, **options: Any) -> Any:
    """Calls the op for these variables: dense without indices, sparse with them."""
    scalars = dict(HYPER_PARAMETERS, **options)
    positional = [scalars.pop(name) for name in ("lr", "beta1", "beta2", "epsilon")]
    positional.append(grad)
    is_ref = not hasattr(variables[0], "handle")
    if indices is None:
        op = tfs.ops.apply_adam_async if is_ref else tfs.ops.resource_apply_adam_async
    else:
        op = (
            tfs.ops.sparse_apply_adam_async
            if is_ref
            else tfs.ops.resource_sparse_apply_adam_async
        )
        positional.append(indices)
    return op(*variables, *positional, **scalars)


def step(
    mode: str, state: reference.State, grad: Any, indices: Any = None, **options: Any
) -> reference.State:
    """One step from `state`; returns the variables' values after it."""
    if mode in ("session", "ref"):
        with tf.Graph().as_default(), tf.compat.v1.Session() as session:
            variables = make_variables(state, use_resource=mode == "session")
            op = apply(variables, tf.constant(grad), indices, **options)
            session.run(tf.compat.v1.global_variables_initializer())
            session.run(op)
            return reference.State(*session.run(variables))
    variables = make_variables(state)

    def run():
        apply(variables, tf.constant(grad), indices, **options)

    if mode == "function":
        run = tf.function(run)
    run()
    return values(variables)


def expected_step(
    state: reference.State, grad: Any, indices: Any = None, **options: Any
) -> reference.State:
    """The same step by the float64 twin."""
    options = dict(HYPER_PARAMETERS, **options)
    options.pop("use_locking", None)
    if indices is None:
        return reference.adam_async_dense(*state, **options, grad=grad)
    return reference.adam_async_sparse(*state, **options, grad=grad, indices=indices)


def assert_close(actual: reference.State, expected: reference.State) -> None:
    """Compares a state to the twin's, as closely as its dtypes allow."""
    for name, got, want in zip(actual._fields, actual, expected, strict=True):
        tolerance = RELATIVE_ERROR[tf.as_dtype(got.dtype)]
        np.testing.assert_allclose(
            got.astype(np.float64), want, rtol=tolerance, atol=tolerance, err_msg=name
        )


def assert_identical(actual: reference.State, expected: reference.State) -> None:
    for name, got, want in zip(actual._fields, actual, expected, strict=True):
        assert got.dtype == want.dtype, name
        np.testing.assert_array_equal(got, want, err_msg=name)
        assert got.tobytes() == want.tobytes(), name
