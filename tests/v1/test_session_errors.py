"""Errors of a step that has lost a server, together with other errors."""

import pytest
import tensorflow as tf

from tf_syncrep.python.v1.sync_replicas import session_errors

# Errors from a run in which a parameter server was killed and came back; shortened.
BOTH = """Graph execution error:

=====================
CANCELLED: From /job:worker/replica:0/task:1:
RecvFromRemoteAsync is cancelled.
\t [[{{node dense/read_S31}}]]
ABORTED: From /job:ps/replica:0/task:0:
Session handle is not found: dffad48ce10e93cd. Possibly this worker just restarted.
=====================
"""


class Session:
    """Raises an error."""

    def __init__(self, error):
        self.error = error

    def run(self, fetches, feed_dict=None):
        assert (fetches, feed_dict) == ("train_op", {"x": 1})
        raise self.error


@pytest.mark.parametrize(
    ("error", "raised"),
    [
        (tf.errors.CancelledError(None, None, BOTH), tf.errors.AbortedError),
        (
            tf.errors.CancelledError(None, None, "Session was closed."),
            tf.errors.CancelledError,
        ),
        (tf.errors.OutOfRangeError(None, None, BOTH), tf.errors.OutOfRangeError),
    ],
)
def test_what_sessions_recover_from_is_raised_if_it_is_one_of_the_errors(error, raised):
    session = Session(error)
    session_errors.recover_from_lost_tasks(session)
    with pytest.raises(raised) as caught:
        session.run("train_op", {"x": 1})
    assert caught.value.message == error.message
    if raised is not type(error):
        assert caught.value.__cause__ is error
