"""The only place of this folder that uses a private name of TensorFlow.

Checked on TensorFlow 2.15.1 and 2.21.0.
"""

from typing import Any

# Private: methods of a variable that read it tell the tapes that watch what is read.
# An op that reads it by its handle has to say so itself, and nothing public does
# that without reading the variable.
from tensorflow.python.ops import resource_variable_ops  # pyright: ignore


def tell_tapes(variable: Any) -> None:
    """Tells gradient tapes that a variable is read.

    Args:
        variable: a resource variable, or that of a strategy in its replica.
    """
    resource_variable_ops.variable_accessed(variable)
