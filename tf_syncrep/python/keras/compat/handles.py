"""Variables that stand for others for a while."""

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import tensorflow as tf

# With this name each call of VarHandleOp makes a variable of its own, which lives as
# long as the handle.
#
# Private: it is `ResourceHandle::ANONYMOUS_NAME` of TensorFlow's C++, which Python uses
# in eager calls alone (checked with TensorFlow 2.21.0).
ANONYMOUS_NAME = "cd2c89b7-88b7-44c8-ad83-06c2a9158347"


@contextlib.contextmanager
def standing_for(
    variables: Sequence[Any], handles: Sequence[tf.Tensor]
) -> Iterator[None]:
    """Makes reads and writes of these variables go to other variables.

    So the code of a metric can work, unchanged, on state that is somewhere else.

    Private: all methods of a `tf.Variable` take the resource from `_handle`, which
    nothing public can set. The variables of ParameterServerStrategy have such a
    variable in `_v` (checked with TensorFlow 2.15.1 and 2.22.0rc0).
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
