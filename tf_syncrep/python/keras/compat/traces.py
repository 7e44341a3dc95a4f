"""The concrete function of a `tf.function` that has been traced.

The private name here was checked with TensorFlow 2.15.1 and 2.21.0.
"""

from typing import Any


def only_trace_of(function: Any) -> Any:
    """Returns the only concrete function of a `tf.function`, or that one itself.

    Private: `get_concrete_function` finds it by the arguments, of which those that are
    on workers have no public type; and to find it takes about as long as a call.

    Args:
        function: a `tf.function`.

    Returns:
        The concrete function; `function` if there is none, or more than one.
    """
    traces = function._list_all_concrete_functions()
    return traces[0] if len(traces) == 1 else function
