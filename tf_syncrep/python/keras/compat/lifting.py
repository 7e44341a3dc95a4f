"""Makes variables of the first step as if they were made before it."""

import contextlib
from collections.abc import Callable
from typing import Any

import tensorflow as tf


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
    even if they are made outside its graph (checked with TensorFlow 2.15.1, 2.22.0rc0).
    """
    return tf.__internal__.FuncGraph("tf_syncrep_scratch").as_default()
