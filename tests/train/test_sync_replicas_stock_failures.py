"""Where training with TensorFlow's own class goes wrong between two replicas.

Each test says what the same scenario gave when it was run on TensorFlow 2.21's class.
"""

import dataclasses
import threading
import time

import pytest
import tensorflow as tf

import tf_syncrep as tfs
from tf_syncrep.python.distribute import local_cluster

tf1 = tf.compat.v1

DEADLINE_SECS = 60.0


@pytest.fixture
def servers():
    """The cluster, and targets of two workers; a parameter server; all in here."""
    ports = local_cluster.LocalCluster(2, 1, False)
    spec = tf1.train.ClusterSpec(ports.tasks[0].config.cluster)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TF_GRPC_REUSE_PORT", "true")  # They are reserved until closed.
        running = [
            tf1.train.Server(spec, job, index)
            for job, index in (("ps", 0), ("worker", 0), ("worker", 1))
        ]
    yield spec, [server.target for server in running[1:]]
    ports.close()


@dataclasses.dataclass
class Replica:
    """What one of two replicas does in a thread of its own.

    Batch number b has the gradient b + 1, and the learning rate is 1: ten exact steps
    leave the weight at -55.
    """

    servers: tuple
    index: int
    batches: int
    cls: type = tfs.train.SyncReplicasOptimizer
    weight: float = 0.0
    step: int = 0
    close_secs: float = 0.0

    def __post_init__(self):
        """Starts the thread; a worker's session begins when the chief's has begun."""
        self.begun = threading.Event()
        self.thread = threading.Thread(target=self._run, daemon=True)

    def _run(self):
        spec, targets = self.servers
        device = f"/job:worker/task:{self.index}"
        with tf.Graph().as_default(), tf1.variable_scope("", use_resource=False):
            setter = tf1.train.replica_device_setter(cluster=spec, worker_device=device)
            with tf1.device(setter):
                step = tf1.train.get_or_create_global_step()
                weight = tf1.get_variable("w", initializer=0.0)
                slope = tf1.placeholder(tf.float32, [])
                optimizer = self.cls(tf1.train.GradientDescentOptimizer(1.0), 2, 2)
                train_op = optimizer.minimize(weight * slope, global_step=step)
            hook = optimizer.make_session_run_hook(self.index == 0)
            with tf1.train.MonitoredTrainingSession(
                targets[self.index],
                is_chief=self.index == 0,
                hooks=[hook],
                config=tf1.ConfigProto(device_filters=["/job:ps", device]),
            ) as session:
                self.begun.set()
                closing = time.monotonic()
                for number in range(self.batches):
                    session.run(train_op, {slope: number + 1})
                self.weight, self.step = session.run([weight, step])
                closing = time.monotonic()
            self.close_secs = time.monotonic() - closing


def train(*replicas):
    """Runs them to their end, the first as the chief."""
    for replica in replicas:
        replica.thread.start()
        assert replica.begun.wait(DEADLINE_SECS)
    for replica in reversed(replicas):
        replica.thread.join(DEADLINE_SECS)
        assert not replica.thread.is_alive(), f"replica {replica.index} hangs"


def test_default_tokens_are_exact_and_the_chief_closes_at_once(servers):
    # TensorFlow's class, two runs of two: 4 updates, -21. What is computed on a token
    # of an old step is dropped. Across processes the chief then takes 120 s to close.
    chief, worker = Replica(servers, 0, 10), Replica(servers, 1, 10)
    train(chief, worker)
    assert (chief.step, chief.weight) == (10, -55.0)
    assert chief.close_secs < 10


def test_replica_with_more_batches_does_not_wait_for_one_that_has_none_left(servers):
    # TensorFlow's class: 3 updates, -12.5 here; across processes the chief waits for
    # ever.
    chief, worker = Replica(servers, 0, 8), Replica(servers, 1, 4)
    train(chief, worker)
    # Four steps of both, then two of the chief's gradients a step: 5 and 6, 7 and 8.
    assert (chief.step, chief.weight) == (6, -10.0 - 5.5 - 7.5)
