"""The only module of this folder that uses private names of TensorFlow.

Checked on TensorFlow 2.15.1 and 2.22.0rc0.
"""

from typing import Any

# Private: when a variable is read by its methods, these tell the gradient tapes. An op
# that reads a variable by its handle has to tell them itself, and nothing public does
# that without reading the variable.
from tensorflow.python.ops import resource_variable_ops  # pyright: ignore


def tell_tapes(variable: Any) -> None:
    """Tells gradient tapes that a variable is read."""
    resource_variable_ops.variable_accessed(variable)
