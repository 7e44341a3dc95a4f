"""Sessions of v1 clusters whose tests do not wait for TensorFlow's polling."""

import tensorflow.compat.v1 as tf

# How often a worker checks whether the chief has made the model ready. It is every 30 s
# in a MonitoredTrainingSession.
_READY_POLL_SECS = 0.1


class WorkerSessionCreator(tf.train.SessionCreator):
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
