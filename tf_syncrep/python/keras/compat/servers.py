"""Where a ParameterServerStrategy makes variables."""

from collections.abc import Callable
from typing import Any

import numpy as np


def choose_servers(
    strategy: Any, choose: Callable[[bool], int], note: Callable[[Any, int], None]
) -> None:
    """Makes a strategy ask for the server of each variable that is beside no other.

    Private: the public `variable_creator_scope` does not decide about devices. The
    strategy takes servers in turn, by the number of variables that it has made.

    `choose`: returns the number of a server; it is told whether the variable is known
    to be a scalar. `note`: gets the variable and the number.
    """
    extended = strategy.extended
    stock = extended._create_variable_round_robin

    def create(next_creator: Any, **kwargs: Any) -> Any:
        # Of a function that makes the value, Keras 3 does not tell the shape.
        value = kwargs.get("initial_value")
        is_scalar = value is not None and not callable(value) and np.ndim(value) == 0
        server = choose(is_scalar)
        extended._variable_count = server
        variable = stock(next_creator, **kwargs)
        note(variable, server)
        return variable

    extended._create_variable_round_robin = create
