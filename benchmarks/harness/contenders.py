"""All kinds of Adam and AdamAsync, each as a contender.

Each function takes the initial values of the variables and, for each batch, their
gradients, and returns a contender that has not made a step yet.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

import tf_syncrep as tfs

from . import adam, native
from .gradients import Gradient
from .timing import Contender

Variables = Sequence[np.ndarray]
Batches = Sequence[Sequence[Gradient]]

KERAS = f"Keras {'3' if getattr(tf.keras, '__version__', '').startswith('3') else '2'}"
RAW_OP = "tfs.ops"
BESIDE_A_READER = "tfs.ops beside a reader"
KERAS_ADAM_ASYNC = "tfs.keras.AdamAsync"
V1_ADAM_ASYNC = "tfs.train.AdamAsyncOptimizer"
KERAS_3_ADAM = "Keras 3 Adam"
TF_KERAS_ADAM = "tf_keras Adam"
V1_ADAM = "tf.compat.v1 Adam"
RESOURCE_APPLY_ADAM = "ResourceApplyAdam"
TORCH_SPARSE_ADAM = "PyTorch SparseAdam"
FLOOR = "plain two-thread loop"

_KERAS_HYPER: dict[str, Any] = {
    "learning_rate": adam.LEARNING_RATE,
    "beta_1": adam.BETA1,
    "beta_2": adam.BETA2,
    "epsilon": adam.EPSILON,
}
_V1_HYPER: dict[str, Any] = {
    "learning_rate": adam.LEARNING_RATE,
    "beta1": adam.BETA1,
    "beta2": adam.BETA2,
    "epsilon": adam.EPSILON,
}


def keras_adam_async(variables: Variables, batches: Batches) -> Contender:
    """`tfs.keras.AdamAsync` in the Keras that `tf.keras` is, in a `tf.function`."""
    optimizer = tfs.keras.AdamAsync(**_KERAS_HYPER)
    return in_keras(KERAS_ADAM_ASYNC, tf.keras, optimizer, variables, batches)


def stock_keras_adams(variables: Variables, batches: Batches) -> list[Contender]:
    """`stock_keras_adam` of each Keras that is installed."""
    return [stock_keras_adam(name, variables, batches) for name in installed_kerases()]


def stock_keras_adam(name: str, variables: Variables, batches: Batches) -> Contender:
    """The Adam of a Keras, by its name in `installed_kerases`, in a `tf.function`."""
    keras = installed_kerases()[name]
    optimizer = keras.optimizers.Adam(**_KERAS_HYPER)
    return in_keras(name, keras, optimizer, variables, batches)


def v1_adam_async(variables: Variables, batches: Batches) -> Contender:
    """`tfs.train.AdamAsyncOptimizer` in a session."""
    optimizer = tfs.train.AdamAsyncOptimizer(**_V1_HYPER)
    return _session(V1_ADAM_ASYNC, optimizer, variables, batches)


def v1_adam(variables: Variables, batches: Batches) -> Contender:
    """`tf.compat.v1.train.AdamOptimizer` in a session."""
    optimizer = tf.compat.v1.train.AdamOptimizer(**_V1_HYPER)
    return _session(V1_ADAM, optimizer, variables, batches)


def raw_op(variables: Variables, batches: Batches, is_read: bool = False) -> Contender:
    """The op itself, called eagerly, a call for each variable."""
    hyper = [
        tf.constant(x)
        for x in (adam.LEARNING_RATE, adam.BETA1, adam.BETA2, adam.EPSILON)
    ]
    tables = [tf.Variable(tf.constant(x)) for x in variables]
    states = [
        [
            table.handle,
            tf.Variable(tf.zeros_like(table)),
            tf.Variable(tf.zeros_like(table)),
            tf.Variable(tf.constant(adam.BETA1)),
            tf.Variable(tf.constant(adam.BETA2)),
        ]
        for table in tables
    ]
    handles = [[state[0], *(slot.handle for slot in state[1:])] for state in states]
    feeds = [[tensors_of(gradient) for gradient in batch] for batch in batches]
    held: list[tf.Tensor] = []

    def read_before(i: int) -> None:
        del i
        held[:] = [table.read_value() for table in tables]

    def step(i: int) -> None:
        for state, gradient in zip(handles, feeds[i % len(feeds)], strict=True):
            if len(gradient) == 2:
                tfs.ops.resource_sparse_apply_adam_async(*state, *hyper, *gradient)
            else:
                tfs.ops.resource_apply_adam_async(*state, *hyper, *gradient)

    def read() -> list[np.ndarray]:
        # The slots are variables that nothing else keeps alive.
        assert len(states) == len(tables)
        return [table.numpy() for table in tables]

    if is_read:
        return Contender(BESIDE_A_READER, step, read, prepare=read_before)
    return Contender(RAW_OP, step, read)


def resource_apply_adam(variables: Variables, batches: Batches) -> Contender:
    """TensorFlow's own dense op, called eagerly, with powers that advance."""
    hyper = [
        tf.constant(x)
        for x in (adam.LEARNING_RATE, adam.BETA1, adam.BETA2, adam.EPSILON)
    ]
    tables = [tf.Variable(tf.constant(x)) for x in variables]
    slots = [[tf.Variable(tf.zeros_like(t)) for _ in range(2)] for t in tables]
    feeds = [[tensors_of(gradient) for gradient in batch] for batch in batches]
    steps_made = 0

    def step(i: int) -> None:
        nonlocal steps_made
        steps_made += 1
        lr, beta1, beta2, epsilon = hyper
        for table, (m, v), (gradient,) in zip(
            tables, slots, feeds[i % len(feeds)], strict=True
        ):
            tf.raw_ops.ResourceApplyAdam(
                var=table.handle,
                m=m.handle,
                v=v.handle,
                beta1_power=adam.BETA1**steps_made,
                beta2_power=adam.BETA2**steps_made,
                lr=lr,
                beta1=beta1,
                beta2=beta2,
                epsilon=epsilon,
                grad=gradient,
            )

    return Contender(
        RESOURCE_APPLY_ADAM, step, lambda: [table.numpy() for table in tables]
    )


def torch_sparse_adam(variables: Variables, batches: Batches) -> Contender:
    """PyTorch's `SparseAdam`, which moves only touched rows, as AdamAsync does.

    Raises ModuleNotFoundError: if PyTorch is not installed.
    """
    torch = importlib.import_module("torch")
    tables = [torch.nn.Parameter(torch.from_numpy(x.copy())) for x in variables]
    optimizer = torch.optim.SparseAdam(
        tables,
        lr=adam.LEARNING_RATE,
        betas=(adam.BETA1, adam.BETA2),
        eps=adam.EPSILON,
    )
    feeds = [
        [
            torch.sparse_coo_tensor(
                torch.from_numpy(gradient.indices)[None],
                torch.from_numpy(gradient.values),
                table.shape,
                check_invariants=False,
            )
            for gradient, table in zip(batch, tables, strict=True)
        ]
        for batch in batches
    ]

    def step(i: int) -> None:
        for table, gradient in zip(tables, feeds[i % len(feeds)], strict=True):
            table.grad = gradient
        optimizer.step()

    return Contender(
        TORCH_SPARSE_ADAM, step, lambda: [table.detach().numpy() for table in tables]
    )


def floor(variables: Variables, batches: Batches) -> Contender:
    """The loops of floor.cc, which are right if no row occurs twice in a batch."""
    states = []
    for initial in variables:
        table, m, v = (native.Memory(initial.shape) for _ in range(3))
        table.array[...] = initial
        states.append((table, m, v))
    library = native.library()
    steps_made = 0

    def step(i: int) -> None:
        nonlocal steps_made
        steps_made += 1
        alpha = adam.step_size(steps_made)
        hyper = (alpha, adam.BETA1, adam.BETA2, adam.EPSILON)
        for state, gradient in zip(states, batches[i % len(batches)], strict=True):
            pointers = [memory.pointer for memory in state]
            values = gradient.values.ctypes.data
            if gradient.indices is None:
                library.floor_dense_adam(
                    *pointers, values, gradient.values.size, *hyper
                )
            else:
                count, width = gradient.values.shape
                indices = gradient.indices.ctypes.data
                library.floor_sparse_adam(
                    *pointers, values, indices, count, width, *hyper
                )

    return Contender(FLOOR, step, lambda: [table.array for table, _, _ in states])


@functools.cache
def has_torch() -> bool:
    """Whether PyTorch is installed; says once if it is not."""
    found = importlib.util.find_spec("torch") is not None
    if not found:
        print("PyTorch is not installed: its SparseAdam is left out.", flush=True)
    return found


@functools.cache
def installed_kerases() -> dict[str, Any]:
    """The modules of all Kerases that are installed, by the name of their Adam."""
    found = {}
    if importlib.util.find_spec("tf_keras"):
        found[TF_KERAS_ADAM] = importlib.import_module("tf_keras")
    keras = importlib.import_module("keras")
    if keras.__version__.startswith("3"):
        found[KERAS_3_ADAM] = keras
    else:
        found[TF_KERAS_ADAM] = tf.keras
    return found


def in_keras(name, keras, optimizer, variables, batches) -> Contender:
    """A Keras optimizer in a `tf.function`."""
    if getattr(keras, "__version__", "").startswith("3"):
        tables = [keras.Variable(x) for x in variables]
    else:
        tables = [tf.Variable(tf.constant(x)) for x in variables]
    optimizer.build(tables)
    feeds = [_flat_tensors(batch) for batch in batches]

    @tf.function
    def apply(*flat):
        gradients = _gradients(flat, batches[0], variables)
        optimizer.apply_gradients(zip(gradients, tables, strict=True))

    concrete = apply.get_concrete_function(*map(tf.TensorSpec.from_tensor, feeds[0]))

    def step(i: int) -> None:
        concrete(*feeds[i % len(feeds)])

    return Contender(name, step, lambda: [np.array(table) for table in tables])


def _session(name, optimizer, variables, batches) -> Contender:
    """A v1 optimizer in a session, on resource variables."""
    feeds = [[x for gradient in b for x in gradient.arrays] for b in batches]
    with tf.Graph().as_default() as graph:
        initial_values = [tf.compat.v1.placeholder(x.dtype, x.shape) for x in variables]
        tables = [tf.compat.v1.Variable(x, use_resource=True) for x in initial_values]
        inputs = [tf.compat.v1.placeholder(x.dtype, x.shape) for x in feeds[0]]
        gradients = _gradients(inputs, batches[0], variables)
        train_op = optimizer.apply_gradients(zip(gradients, tables, strict=True))
        initialize = tf.compat.v1.global_variables_initializer()
    session = tf.compat.v1.Session(graph=graph)
    session.run(initialize, dict(zip(initial_values, variables, strict=True)))
    apply = session.make_callable(train_op, feed_list=inputs)

    def step(i: int) -> None:
        apply(*feeds[i % len(feeds)])

    return Contender(name, step, lambda: session.run(tables))


def tensors_of(gradient: Gradient) -> list[tf.Tensor]:
    """The values of a gradient, and the indices of one that is sparse."""
    return [tf.constant(array) for array in gradient.arrays]


def _flat_tensors(batch: Sequence[Gradient]) -> list[tf.Tensor]:
    return [tensor for gradient in batch for tensor in tensors_of(gradient)]


def _gradients(flat: Sequence[Any], batch: Sequence[Gradient], variables) -> list[Any]:
    """The gradients, from the flat list of their tensors."""
    tensors = iter(flat)
    return [
        next(tensors)
        if gradient.indices is None
        else tf.IndexedSlices(next(tensors), next(tensors), tf.constant(variable.shape))
        for gradient, variable in zip(batch, variables, strict=True)
    ]
