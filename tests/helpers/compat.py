"""Private names of TensorFlow that tests use; checked on 2.15 and 2.22rc0."""

from tensorflow.python.eager import context


def set_keep_alive(secs: int) -> None:
    """Makes servers give up this process when they have not heard of it for this long.

    It must be called before the context is connected to a cluster. No public function
    takes the number, which is 600 by default.
    """
    context._KEEP_ALIVE_SECS = secs
