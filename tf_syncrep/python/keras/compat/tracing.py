"""What functions are while they are traced, and what they use then."""

import contextlib
import functools
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import tensorflow as tf

# Private: TensorFlow itself looks up the function in this module.
from tensorflow.python.eager.polymorphic_function import (  # pyright: ignore
    function_context,
)

# Private: no public function says which seed an op gets that has a seed of its own.
from tensorflow.python.framework import random_seed  # pyright: ignore

# Private: while a function is traced, nothing public tells whether it has
# `jit_compile=True`.
from tensorflow.python.ops import control_flow_util  # pyright: ignore

from tf_syncrep.python.keras.compat.native import IS_KERAS_3

# What is replaced may belong to the whole process, and so one thread traces steps at a
# time. It is no lock of `replaced` itself, since TensorFlow runs replicas in threads of
# their own, of which the tracing one waits.
TRACING = threading.RLock()

_NOTHING = object()


@contextlib.contextmanager
def replaced(owner: Any, name: str, function: Callable[..., Any]) -> Iterator[None]:
    """Within this context, the present graph finds a function as an attribute.

    What is called elsewhere, as by the threads that prepare data, finds what was there
    before.
    """
    traced = tf.compat.v1.get_default_graph()
    stock = getattr(owner, name)
    own = vars(owner).get(name, _NOTHING)

    # AutoGraph would convert the function within; one that it is to convert, is. And
    # Keras looks at signatures, and at marks of functions.
    @tf.autograph.experimental.do_not_convert
    @functools.wraps(function)
    def call(*args, **kwargs):
        return (function if _is_within(traced) else stock)(*args, **kwargs)

    _set(owner, name, call)
    try:
        yield
    finally:
        _set(owner, name, own)


def _is_within(traced: Any) -> bool:
    """Returns whether the present graph is this one, or in a function of it."""
    graph: Any = tf.compat.v1.get_default_graph()
    while graph is not None and graph is not traced:
        graph = getattr(graph, "outer_graph", None)
    return graph is traced


def _set(owner: Any, name: str, value: Any) -> None:
    """Sets or removes what an owner itself has by a name."""
    if isinstance(owner, type):
        delattr(owner, name) if value is _NOTHING else setattr(owner, name, value)
    elif value is _NOTHING:
        del vars(owner)[name]
    else:
        # Keras would track an assigned attribute.
        vars(owner)[name] = value


def traced_by(function: Any) -> Callable[..., Any]:
    """Returns what a `tf.function` traces: its Python function, after AutoGraph.

    Private: nothing public tells whether a function was made with `autograph=False`.
    """
    plain = function.python_function
    return converted(plain) if function._autograph else plain


def as_keras_traces(function: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a step as `Model.fit` traces it: in Keras 2, after AutoGraph.

    Steps, layers and losses may then branch on tensors.
    """
    return function if IS_KERAS_3 else converted(function)


def converted(function: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a function after AutoGraph, which holds for what it calls as well."""

    # AutoGraph takes what a function calls as it is, and says so, if it has no source
    # text, for example. It does not do so with the function that it is given.
    def call(*args, **kwargs):
        return function(*args, **kwargs)

    try:
        return tf.autograph.to_graph(call)
    except Exception:  # In a frozen program this file has no source text either.
        return function


def value_at_call(
    name: str, value: Callable[[], Any], spec: tf.TensorSpec
) -> tf.Tensor:
    """Returns a tensor that has the value of a Python function at each call.

    Private: with public functions, each argument has to be there before it is known
    whether what is traced uses it; and TensorFlow sends unused arguments, too.
    """
    graph: Any = tf.compat.v1.get_default_graph()
    return graph.capture_call_time_value(value, spec, key=f"tf_syncrep/{name}")


def captured_tensors(function: Any) -> list[tf.Tensor]:
    """Returns the eager tensors that a concrete function uses.

    Private: the public `captured_inputs` computes all values of `value_at_call`.
    """
    return [tensor for tensor, _ in function.graph.captures]


# With this name each call of VarHandleOp makes a variable of its own, which lives as
# long as the handle.
#
# Private: it is `ResourceHandle::ANONYMOUS_NAME` of TensorFlow's C++, which Python uses
# in eager calls alone.
ANONYMOUS_NAME = "cd2c89b7-88b7-44c8-ad83-06c2a9158347"


@contextlib.contextmanager
def standing_for(
    variables: Sequence[Any], handles: Sequence[tf.Tensor]
) -> Iterator[None]:
    """Makes reads and writes of these variables go to other variables.

    So the code of a metric can work, unchanged, on state that is somewhere else.

    Private: all methods of a `tf.Variable` take the resource from `_handle`, which
    nothing public can set. The variables of ParameterServerStrategy have such a
    variable in `_v`.
    """
    variables = [getattr(variable, "_v", variable) for variable in variables]
    own = [variable._handle for variable in variables]
    try:
        for variable, handle in zip(variables, handles, strict=True):
            variable._handle = handle
        yield
    finally:
        for variable, handle in zip(variables, own, strict=True):
            variable._handle = handle


def outside_of_functions(make_variables: Callable[[], None]) -> None:
    """Makes variables as if they were made before the first step.

    The first step is often traced: in a function that a ClusterCoordinator schedules,
    in a replica of a MirroredStrategy, or under control dependencies. Variables that
    are made there would belong to that function, and their initial values would be
    computed in it, by ops that cannot be placed or lifted. So this leaves all of these
    contexts, and the replica too.

    `make_variables`: makes them; called once, in the strategy's scope, even if replicas
    call this function together.
    """
    if not tf.distribute.has_strategy():
        with tf.init_scope():
            make_variables()
    elif tf.distribute.in_cross_replica_context():
        _make_in_scope(tf.distribute.get_strategy(), make_variables)
    else:
        # An argument would become one for each replica.
        tf.distribute.get_replica_context().merge_call(
            lambda strategy: _make_in_scope(strategy, make_variables)
        )


def _make_in_scope(strategy: Any, make_variables: Callable[[], None]) -> None:
    # Outside the function there may be no strategy any more.
    with tf.init_scope(), contextlib.ExitStack() as scope:
        if not tf.distribute.has_strategy():
            scope.enter_context(strategy.scope())
        make_variables()


def scratch_graph() -> Any:
    """Returns a context for building ops that nobody runs.

    Private: while a `tf.function` is traced, it takes all new variables for its own,
    even if they are made outside its graph.
    """
    return tf.__internal__.FuncGraph("tf_syncrep_scratch").as_default()


_LARGEST_SEED = 2**31 - 1
# This is far from the numbers that people use as seeds.
_STRIDE = 100_003


@contextlib.contextmanager
def seeds_of_copy(number: int) -> Iterator[None]:
    """Makes random ops traced inside draw other numbers than those of other copies.

    Each op in a graph draws its own sequence, which depends on its seed. So all copies
    of an op with a seed would draw the same numbers.

    `number`: the number of the copy; 0 leaves seeds as they are.
    """
    stock = random_seed.get_seed

    def get_seed(op_seed):
        if op_seed is None:
            return stock(None)
        return stock((int(op_seed) + number * _STRIDE) % _LARGEST_SEED)

    if not number:
        yield
        return
    with replaced(random_seed, "get_seed", get_seed):
        yield


@contextlib.contextmanager
def traced_anew() -> Iterator[None]:
    """Within this context, `tf.function`s that a graph calls are traced for it.

    A trace of theirs for another graph may have captured tensors of that one, or
    variables for which others stand now (`standing_for`).

    Private: no public function says which trace of a function a call takes.
    """
    key, stock = object(), function_context.make_function_context

    def make_function_context(*args, **kwargs):
        return stock(*args, **kwargs), key

    with replaced(function_context, "make_function_context", make_function_context):
        yield


def compiled_by_xla() -> bool:
    """Returns whether XLA will compile the ops made now.

    XLA does not support custom ops. It compiles a `tf.function` with
    `jit_compile=True`, and the functions that are traced from there.
    """
    if tf.executing_eagerly():
        return False
    graph = tf.compat.v1.get_default_graph()
    return control_flow_util.GraphOrParentsInXlaContext(graph)


@contextlib.contextmanager
def as_scheduled(strategy: Any) -> Iterator[None]:
    """Within this context, a strategy runs replicas as if a coordinator scheduled them.

    A function that a coordinator schedules may be traced later, by the thread of a
    worker, and one that only builds a model is not scheduled at all. In both cases
    TensorFlow would warn, in each first training, that steps run on the coordinator.

    Private: nothing public says that a step is only traced. Other strategies do not
    read this attribute.
    """
    extended = strategy.extended
    before = getattr(extended, "_allow_run_without_coordinator", False)
    extended._allow_run_without_coordinator = True
    try:
        yield
    finally:
        extended._allow_run_without_coordinator = before
