"""Workers of v1 clusters, whose sessions do not wait for TensorFlow's polling."""

import json
import os

import tensorflow.compat.v1 as tf

import tf_syncrep as tfs

# How often a worker checks whether the chief has made the model ready. It is every 30 s
# in a MonitoredTrainingSession.
_READY_POLL_SECS = 0.1


class Worker:
    """This process as a worker of TF_CONFIG; the first one is the chief."""

    def __init__(self, target: str | None = None):
        """Starts the task's server, unless there is another target."""
        tf.disable_v2_behavior()
        config = json.loads(os.environ["TF_CONFIG"])
        cluster = tf.train.ClusterSpec(config["cluster"])
        self.index = config["task"]["index"]
        self.is_chief = self.index == 0
        self.device = f"/job:worker/task:{self.index}"
        if target is None:
            self._server = tfs.distribute.Server(
                cluster, job_name="worker", task_index=self.index
            )
            target = self._server.target
        self.target = target
        # A worker needs no other one, and its session must not wait for others.
        self.config = tf.ConfigProto(device_filters=["/job:ps", self.device])
        self.setter = tf.train.replica_device_setter(
            cluster=cluster, worker_device=self.device
        )

    def session_creator(
        self, checkpoint_dir: str | None = None
    ) -> tf.train.SessionCreator:
        """For a MonitoredSession, in which the chief restores from the folder."""
        if self.is_chief:
            return tf.train.ChiefSessionCreator(
                master=self.target, config=self.config, checkpoint_dir=checkpoint_dir
            )
        return _WorkerSessionCreator(self.target, self.config)


class _WorkerSessionCreator(tf.train.SessionCreator):
    """TensorFlow's own class, which checks more often whether the model is ready."""

    def __init__(self, target, config):
        self._target = target
        self._config = config
        self._scaffold = tf.train.Scaffold()

    def create_session(self):
        self._scaffold.finalize()
        manager = tf.train.SessionManager(
            local_init_op=self._scaffold.local_init_op,
            ready_op=self._scaffold.ready_op,
            ready_for_local_init_op=self._scaffold.ready_for_local_init_op,
            recovery_wait_secs=_READY_POLL_SECS,
        )
        return manager.wait_for_session(self._target, config=self._config)
