"""Metrics, step counters and seeds that lose nothing when workers step at once.

Keras adds to a variable by reading it, adding, and assigning the sum. If workers share
it on a parameter server, what another one adds in between is lost. While a train step
is traced in `exact_state`, one op adds instead.
"""

import contextlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import tensorflow as tf

from tf_syncrep.python.keras import compat
from tf_syncrep.python.keras.compat import trainer

_NO_SUM = (
    "Metric {} is no sum: a batch adds something else to its variables the second "
    'time. Make them with add_variable(..., aggregation="mean"), so that they are left '
    "alone"
)


@contextlib.contextmanager
def exact_state(
    model: Any, execution: tf.Tensor | None = None, check: tf.Tensor | None = None
) -> Iterator[None]:
    """While in it, steps of a Keras 3 model are traced so that no addition is lost.

    It concerns the metrics, whose state must be sums (that is what Keras asks of
    metrics under any strategy: the aggregation of their variables is "sum"; those with
    another one are left alone), the optimizer's `iterations`, and the seeds of layers.

    Args:
        model: the compiled model, metrics built.
        execution: int64 scalar that differs between steps run at once. It is folded
            into the seeds of layers, so that no two workers draw the same numbers; if
            None, these are the numbers that one process would draw.
        check: boolean scalar, whether to test in this step that metrics are sums; the
            step fails if one is not. None for never.
    """
    if not compat.IS_KERAS_3:  # whose variables are added to by one op
        yield
        return
    with contextlib.ExitStack() as stack:

        def replace(target: Any, name: str, function: Callable[..., Any]) -> None:
            stack.enter_context(_replaced(target, name, function))

        for metric in _unique(model.metrics):
            if all(_is_sum(variable) for variable in metric.variables):
                replace(metric, "update_state", _update_by_difference(metric, check))
        for optimizer in optimizers_of(model):
            replace(
                optimizer.iterations, "assign_add", _atomic_add(optimizer.iterations)
            )
        for generator in _unique(trainer.seed_generators(model)):
            replace(generator, "next", _next_seed(generator, execution))
        yield


def _update_by_difference(metric: Any, check: tf.Tensor | None) -> Callable[..., None]:
    """A metric's `update_state` that adds what a batch changes to the variables."""
    update_state = metric.update_state
    variables = _unique(metric.variables)
    shared = [variable.value for variable in variables]
    names = _names_of_owners(metric, variables)

    def updated(state: list[tf.Tensor], args: Any, kwargs: Any) -> list[tf.Tensor]:
        """The state after a batch, without a change to variables."""
        mapping = list(zip(variables, state, strict=True))
        with tf.keras.StatelessScope(state_mapping=mapping) as scope:
            update_state(*args, **kwargs)
        return [
            tf.convert_to_tensor(scope.get_current_value(variable))
            for variable in variables
        ]

    def update(*args: Any, **kwargs: Any) -> None:
        once = updated([tf.zeros(x.shape, x.dtype) for x in variables], args, kwargs)
        checks = []
        if check is not None:
            answers = tf.cond(
                check,
                lambda: _are_doubled(once, updated(once, args, kwargs)),
                lambda: tf.ones([len(variables)], tf.bool),
            )
            checks = [
                tf.debugging.Assert(answer, [_NO_SUM.format(name)])
                for answer, name in zip(tf.unstack(answers), names, strict=True)
            ]
        with tf.control_dependencies(checks):
            for destination, difference in zip(shared, once, strict=True):
                destination.assign_add(tf.cast(difference, destination.dtype))

    return update


def _names_of_owners(metric: Any, variables: list[Any]) -> list[str]:
    """The name of the metric that each variable belongs to.

    Those that a model is compiled with are parts of one.
    """
    owners = {
        id(variable): part.name
        for part in getattr(metric, "metrics", ())
        for variable in part.variables
    }
    return [owners.get(id(variable), metric.name) for variable in variables]


def _are_doubled(once: list[tf.Tensor], twice: list[tf.Tensor]) -> tf.Tensor:
    """For each variable whether a batch has added the same again, to rounding.

    Values that are not finite, as after a loss of NaN, prove nothing.
    """
    answers = [tf.zeros([0], tf.bool)]
    for first, second in zip(once, twice, strict=True):
        first, second = tf.cast(first, tf.float64), tf.cast(second, tf.float64)
        size = tf.maximum(tf.abs(first), tf.abs(second))
        near = tf.abs(second - 2 * first) <= 1e-2 * size
        answer = tf.reduce_all(near | ~tf.math.is_finite(second))
        answers.append(tf.reshape(answer, [1]))
    return tf.concat(answers, axis=0)


def _atomic_add(variable: Any) -> Callable[[Any], Any]:
    """A Keras variable's `assign_add` as one op."""
    shared = variable.value

    def assign_add(value: Any) -> Any:
        shared.assign_add(tf.cast(value, shared.dtype))
        return shared

    return assign_add


def _next_seed(generator: Any, execution: tf.Tensor | None) -> Callable[..., Any]:
    """A seed generator's `next` that counts by one op."""
    next_seed = generator.next
    shared = generator.state.value

    def next(ordered: bool = True) -> Any:
        if not ordered:
            return next_seed(ordered=ordered)
        seed = tf.identity(shared)
        with tf.control_dependencies([seed]):
            shared.assign_add(tf.constant([0, 1], shared.dtype))
        if execution is not None:
            # The first number is the same for all steps, and the second may be the
            # same for several workers.
            seed += tf.stack([tf.cast(execution, seed.dtype), tf.zeros([], seed.dtype)])
        return seed

    return next


@contextlib.contextmanager
def _replaced(target: Any, name: str, function: Callable[..., Any]) -> Iterator[None]:
    """Puts a function in front of a method of one object, and takes it away again."""
    own = vars(target).get(name)
    setattr(target, name, function)
    try:
        yield
    finally:
        delattr(target, name)
        if own is not None:
            setattr(target, name, own)


def _is_sum(variable: Any) -> bool:
    """Whether what the replicas have of a metric's variable is to be added up."""
    return getattr(variable, "aggregation", "sum") == "sum"


def optimizers_of(model: Any) -> Iterator[Any]:
    """All optimizers of a model, each once, and those that they wrap.

    Besides the one that it was compiled with, a model with a train step of its own may
    have some in attributes.
    """
    found = [getattr(model, "optimizer", None), *vars(model).values()]
    kind = tf.keras.optimizers.Optimizer
    for optimizer in _unique(x for x in found if isinstance(x, kind)):
        while optimizer is not None:
            yield optimizer
            optimizer = getattr(optimizer, "inner_optimizer", None)


def _unique(objects: Iterable[Any]) -> list[Any]:
    return list({id(x): x for x in objects}.values())
