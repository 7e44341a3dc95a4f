"""Errors of a step that the gate has told to begin anew, in the company of others."""

import pytest
import tensorflow as tf

from tf_syncrep.python.train import session_errors

# As seen when a chief was killed and came back; cut.
BOTH = """Graph execution error:

=====================
CANCELLED: From /job:worker/replica:0/task:1:
RecvFromRemoteAsync is cancelled.
\t [[{{node sync_replicas/concat_6_S77}}]]
ABORTED: From /job:ps/replica:0/task:1:
A new generation of the gate was opened: begin anew.
\t [[{{node sync_replicas/Syncrep>SyncGateAcquire_2}}]]
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
            tf.errors.CancelledError(None, None, BOTH.replace("SyncGate", "Other")),
            tf.errors.CancelledError,
        ),
        (
            tf.errors.CancelledError(None, None, "Session was closed."),
            tf.errors.CancelledError,
        ),
        (tf.errors.OutOfRangeError(None, None, BOTH), tf.errors.OutOfRangeError),
    ],
)
def test_what_sessions_recover_from_is_raised_if_the_gate_said_so(error, raised):
    session = Session(error)
    session_errors.recover_from_a_new_generation(session)
    with pytest.raises(raised) as caught:
        session.run("train_op", {"x": 1})
    assert caught.value.message == error.message
    if raised is not type(error):
        assert caught.value.__cause__ is error
