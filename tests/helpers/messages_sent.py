"""The tensors that the tasks of a cluster send each other, as TensorFlow logs them.

A program that was started with `ENVIRONMENT` has the servers of a cluster in itself:

    log = messages_sent.Log()
    strategy = messages_sent.strategy_of_servers_here(num_ps=2)
    train()
    names = log.names_sent_since(0)

Each name is one RecvTensor: a call from the task that needs a tensor to the task that
has it. It is logged before the tensor comes.
"""

import os
import re
import tempfile
from typing import Any
from unittest import mock

import tensorflow as tf

from tf_syncrep.python.distribute import local_cluster, ports

# It is read once, when TensorFlow is imported.
ENVIRONMENT = {"TF_CPP_VMODULE": "base_rendezvous_mgr=1", "TF_CPP_MIN_LOG_LEVEL": "0"}

_RECEIVED = re.compile(
    r"RemoteRendezvous Recv \S+ /job:(\w+/replica:\d+/task:\d+)/\S+?;\w+;"
    r"/job:(\w+/replica:\d+/task:\d+)/\S+?;(?:edge_\d+_)?([^;]+);"
)
_CHIEF = "chief/replica:0/task:0"


class Log:
    """The standard error of this process, which goes to a file from now on."""

    def __init__(self):
        self._fd, path = tempfile.mkstemp()
        os.unlink(path)
        os.dup2(self._fd, 2)

    def position(self) -> int:
        """The position of the next line in the log."""
        return os.fstat(self._fd).st_size

    def names_sent_since(self, position: int) -> list[str]:
        """The tensors that one task sent to another, once for each time.

        Tensors that the coordinator has sent are left out.
        """
        size = self.position() - position
        text = os.pread(self._fd, size, position).decode()
        found = _RECEIVED.findall(text)
        return [f"{a} to {b}: {name}" for a, b, name in found if a not in (b, _CHIEF)]


def strategy_of_servers_here(num_ps: int) -> Any:
    """Starts a worker and parameter servers in this process; returns their strategy."""
    reserved = local_cluster.LocalCluster(1, num_ps, True)
    cluster = tf.train.ClusterSpec(reserved.tasks[0].cluster)
    with mock.patch.dict(os.environ, {ports.REUSE_PORT_VARIABLE: "true"}):
        for job, tasks in (("worker", 1), ("ps", num_ps)):
            for task in range(tasks):
                _servers.append(tf.distribute.Server(cluster, job, task, "grpc"))
    reserved.close()  # by now nobody else can have the ports
    resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(
        cluster, task_type="chief", task_id=0, rpc_layer="grpc"
    )
    return tf.distribute.ParameterServerStrategy(resolver)


_servers: list[Any] = []  # they live as long as there are references to them
