"""Private names of TensorFlow that tests use; checked on 2.15 and 2.21."""

from tensorflow.python.eager import context


def set_keep_alive(secs: int) -> None:
    """Has servers give up this process so long after they last heard of it.

    It is for a context that is not connected to a cluster yet. No public function takes
    the number, which is 600.
    """
    context._KEEP_ALIVE_SECS = secs
