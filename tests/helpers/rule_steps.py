"""Steps of AdamAsync and of every rule, by their ops and by their float64 twins."""

import re
from collections.abc import Callable
from typing import Any

import adam_async_reference
import devices
import numpy as np
import pytest
import rule_reference
import tensorflow as tf
from rule_numbers import NUMBERS

import tf_syncrep as tfs
from tf_syncrep.python.ops import rule_ops

DTYPES = (tf.float16, tf.bfloat16, tf.float32, tf.float64)
TOLERANCE = {tf.float16: 2e-3, tf.bfloat16: 1.6e-2, tf.float32: 5e-6, tf.float64: 1e-12}
# How an op runs: eagerly, in a tf.function, in a session on resource variables, or in a
# session on reference variables.
MODES = ("eager", "function", "session", "reference")

# By whether variables are resources, and whether the gradient is sparse.
RULE_OPS = {
    (False, False): tfs.ops.apply_rule,
    (False, True): tfs.ops.sparse_apply_rule,
    (True, False): tfs.ops.resource_apply_rule,
    (True, True): tfs.ops.resource_sparse_apply_rule,
}
ADAM_ASYNC_OPS = {
    (False, False): tfs.ops.apply_adam_async,
    (False, True): tfs.ops.sparse_apply_adam_async,
    (True, False): tfs.ops.resource_apply_adam_async,
    (True, True): tfs.ops.resource_sparse_apply_adam_async,
}

Values = dict[str, np.ndarray]


def slot_dtype(dtype: tf.DType) -> tf.DType:
    """The dtype of slots and numbers beside a variable of `dtype`."""
    return tf.float64 if dtype == tf.float64 else tf.float32


def random_array(seed: int, shape: Any, dtype: tf.DType) -> np.ndarray:
    """Numbers around zero, none of them so small that tolerances fail."""
    random = np.random.default_rng(seed)
    signs = random.choice([-1.0, 1.0], size=shape)
    numbers = np.asarray(signs * random.uniform(0.25, 2.0, size=shape))
    return numbers.astype(dtype.as_numpy_dtype)


class State:
    """Values of a variable and its slots, by name, and steps that begin with them."""

    OPS: Any = RULE_OPS

    def __init__(self, rule: str, shape: Any, dtype: tf.DType = tf.float32):
        self.rule = rule
        self.numbers = self._numbers()
        self.values: Values = {"var": random_array(1, shape, dtype)}
        self.values.update(self._slots(shape, slot_dtype(dtype)))

    def _numbers(self) -> dict[str, Any]:
        return NUMBERS[self.rule]

    def _slots(self, shape: Any, dtype: tf.DType) -> Values:
        shape = rule_reference.slot_shape(self.rule, shape)
        return {
            name: np.abs(random_array(seed, shape, dtype))
            for seed, name in enumerate(rule_ops.RULES[self.rule].slots, 2)
        }

    def _place(self) -> Any:
        """Where variables are: rules have no kernels for GPUs."""
        return tf.device("CPU:0")

    @property
    def slots(self) -> Values:
        return {name: x for name, x in self.values.items() if name != "var"}

    def make(self, use_resource: bool = True) -> dict[str, Any]:
        """Variables with these values, in the current graph or eagerly."""
        with self._place():
            return {
                name: tf.compat.v1.Variable(
                    tf.constant(x), use_resource=use_resource, name=name
                )
                for name, x in self.values.items()
            }

    def apply(self, variables: Any, grad: Any, indices: Any = None, **options: Any):
        """Calls the op: dense without indices, sparse with them."""
        var, *slots = variables.values()
        op = self.OPS[hasattr(var, "handle"), indices is not None]
        gradient = [grad] if indices is None else [grad, indices]
        return self._call(op, var, slots, gradient, **options)

    def _call(self, op: Any, var: Any, slots: Any, gradient: list[Any], **options: Any):
        named = dict(zip(self.slots, slots, strict=True))
        return op(self.rule, var, named, self.numbers, *gradient, **options)

    def expected(self, grad: Any, indices: Any = None) -> Values:
        """The values after a step by the twin."""
        var, slots = rule_reference.apply(
            self.rule, self.values["var"], self.slots, self.numbers, grad, indices
        )
        return {"var": var, **slots}

    def step(
        self, grad: Any, indices: Any = None, mode: str = "eager", **options: Any
    ) -> Values:
        """The values after a step."""
        if mode in ("session", "reference"):
            with tf.Graph().as_default(), tf.compat.v1.Session() as session:
                variables = self.make(use_resource=mode == "session")
                op = self.apply(variables, tf.constant(grad), indices, **options)
                session.run(tf.compat.v1.global_variables_initializer())
                session.run(op)
                return session.run(variables)
        variables = self.make()

        def run():
            self.apply(variables, tf.constant(grad), indices, **options)

        run = tf.function(run) if mode == "function" else run
        run()
        return {name: x.numpy() for name, x in variables.items()}

    def check(
        self,
        after: Values,
        grad: Any,
        indices: Any = None,
        tolerance: float | None = None,
    ):
        """Compares the values after a step with the twin's, and their dtypes."""
        expected = self.expected(grad, indices)
        for name, got in after.items():
            error = tolerance or TOLERANCE[tf.as_dtype(got.dtype)]
            np.testing.assert_allclose(
                got.astype(np.float64), expected[name], error, error, err_msg=name
            )
            assert got.dtype == self.values[name].dtype, name

    def is_unchanged(self, after: Values):
        assert_same_bits(after, self.values)

    def expect_error(
        self,
        message: str,
        grad: Any,
        indices: Any = None,
        change: Callable[[Any], None] = lambda variables: None,
        **options: Any,
    ):
        """A step fails with this message, and writes nothing."""
        variables = self.make()
        change(variables)
        before = {name: x.numpy() for name, x in variables.items()}
        with pytest.raises(tf.errors.InvalidArgumentError, match=re.escape(message)):
            self.apply(variables, grad, indices, **options)
        assert_same_bits({name: x.numpy() for name, x in variables.items()}, before)


class AdamAsync(State):
    """The same of AdamAsync, whose ops have names and options of their own."""

    OPS: Any = ADAM_ASYNC_OPS
    NAMES = ("lr", "beta1", "beta2", "epsilon")

    def _numbers(self) -> dict[str, Any]:
        return {"lr": 0.05, "beta1": 0.9, "beta2": 0.99, "epsilon": 1e-8}

    def _slots(self, shape: Any, dtype: tf.DType) -> Values:
        """As after four steps."""
        return {
            "m": random_array(2, shape, dtype),
            "v": np.square(random_array(3, shape, dtype)),
            "beta1_power": np.array(0.9**5, dtype.as_numpy_dtype),
            "beta2_power": np.array(0.99**5, dtype.as_numpy_dtype),
        }

    def _place(self) -> Any:
        return devices.scope()

    def _call(self, op: Any, var: Any, slots: Any, gradient: list[Any], **options: Any):
        numbers = [self.numbers[name] for name in self.NAMES]
        options = {**self._options(len(gradient) == 2), **options}
        return op(var, *slots, *numbers, *gradient, **options)

    def _options(self, is_sparse: bool) -> dict[str, Any]:
        options = ADAM_ASYNC[self.rule]
        return options if is_sparse or "use_nesterov" in options else {}

    def expected(self, grad: Any, indices: Any = None) -> Values:
        inputs = {**self.values, **self.numbers, "grad": grad}
        options = self._options(indices is not None)
        if indices is None:
            after = adam_async_reference.adam_async_dense(**inputs, **options)
        else:
            after = adam_async_reference.adam_async_sparse(
                **inputs, indices=indices, **options
            )
        return after._asdict()


# Dense steps have no RMSProp: there, its case is Adam.
ADAM_ASYNC = {
    "adam_async": {},
    "adam_async_nesterov": {"use_nesterov": True},
    "adam_async_rmsprop": {"apply_sparse_rmsprop": True},
    "adam_async_no_momentum": {"apply_sparse_rmsprop": True, "rmsprop_momentum": 0.0},
    "adam_async_momentum": {"apply_sparse_rmsprop": True, "rmsprop_momentum": 0.5},
}
CASES = ("adam_async", "adam_async_nesterov", "adam_async_rmsprop", *NUMBERS)


def state_of(case: str, shape: Any, dtype: tf.DType = tf.float32) -> State:
    return (AdamAsync if case in ADAM_ASYNC else State)(case, shape, dtype)


def assert_same_bits(actual: Values, expected: Values):
    assert actual.keys() == expected.keys()
    for name, got in actual.items():
        want = expected[name]
        assert got.dtype == want.dtype, name
        np.testing.assert_array_equal(got, want, err_msg=name)
        assert got.tobytes() == want.tobytes(), name
