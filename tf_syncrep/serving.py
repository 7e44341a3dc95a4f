"""Serving models while they are trained; it needs TensorFlow and NumPy alone.

`import tf_syncrep.serving` and `from tf_syncrep.serving import Follower` do not load
the op library, so they run with any TensorFlow that loads what was published.
"""

from tf_syncrep.python.serving.follower import Follower
from tf_syncrep.python.serving.publications import read_delta

__all__ = ["Follower", "read_delta"]
