"""What the tests of clusters share."""

import fork_server
import pytest

pytest.register_assert_rewrite("sync_replicas_cluster")


@pytest.fixture(scope="session")
def forks():
    """Where processes come from that are to have imported TensorFlow already."""
    server = fork_server.ForkServer(
        "tensorflow.compat.v1", "tf_syncrep", "tf_syncrep.python.cli"
    )
    yield server
    server.close()
