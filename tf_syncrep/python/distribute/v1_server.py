"""TensorFlow's server for scripts that start their own, with a wire."""

import os
from typing import Any

import tensorflow as tf

from tf_syncrep.python.distribute import wire


class Server(tf.distribute.Server):
    """`tf.distribute.Server`, whose tasks talk to each other with less work.

    Takes its place in scripts that start their servers themselves, as those with
    `tf.compat.v1.train.MonitoredTrainingSession` do. Tasks that have such a server send
    tensors and the calls of a step to each other by a protocol of tf_syncrep's; with
    all others they talk by gRPC, as TensorFlow's server does. For others to dial this
    one, its process must run below `tf-syncrep launch` or `tf-syncrep task`; it can
    dial others anyway. `target` is that of TensorFlow's server.

    Args:
        server_or_cluster_def: a `tf.train.ClusterSpec`, or what
            `tf.distribute.Server` takes in its place.
        job_name: the job of this task.
        task_index: its index in the job.
        protocol: "grpc+tfs", or "grpc" for TensorFlow's alone; by default what the
            environment variable TF_SYNCREP_RPC_LAYER says, and "grpc+tfs" without it.
            Where tf_syncrep's protocol does not load, a line says so, and it is "grpc".
        config: a `tf.compat.v1.ConfigProto`.
        start: whether to start the server at once.

    Example:
    ```python
    cluster = tf.train.ClusterSpec({"ps": ["localhost:2222"], "worker": [...]})
    server = tfs.distribute.Server(cluster, job_name="worker", task_index=0)
    with tf.compat.v1.train.MonitoredTrainingSession(master=server.target) as session:
        ...
    ```
    """

    def __init__(
        self,
        server_or_cluster_def: Any,
        job_name: str | None = None,
        task_index: int | None = None,
        protocol: str | None = None,
        config: Any = None,
        start: bool = True,
    ):
        if protocol is None:
            protocol = wire.asked_for(os.environ)
        super().__init__(
            server_or_cluster_def,
            job_name=job_name,
            task_index=task_index,
            protocol=wire.usable(protocol),
            config=config,
            start=start,
        )
