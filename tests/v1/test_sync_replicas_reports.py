"""Reports of SyncReplicasOptimizer on a training: stats, log lines, TensorBoard."""

import glob
import logging
import threading

import absl.logging
import pytest
import sync_replicas_twin as twin
import tensorflow as tf
from waiting import in_thread

from tf_syncrep.python.base import said_waits
from tf_syncrep.python.ops import sync_gate_ops
from tf_syncrep.python.v1.sync_replicas import client

tf1 = tf.compat.v1

# Scripts of v1 set TensorFlow's verbosity, others absl's; the line is shown once.
LOGGERS = {"absl": absl.logging.get_absl_logger, "tensorflow": tf.get_logger}


@pytest.fixture
def logged(request):
    """The messages of either logger, if it shows INFO."""
    messages = []
    handler = logging.Handler()
    handler.emit = lambda record: messages.append(record.getMessage())
    loggers = {name: get() for name, get in LOGGERS.items()}
    levels = {name: logger.level for name, logger in loggers.items()}
    verbosity = absl.logging.get_verbosity()
    absl.logging.set_verbosity(absl.logging.WARNING)
    for logger in loggers.values():
        logger.addHandler(handler)
    loggers["tensorflow"].setLevel(logging.WARNING)
    if request.param == "absl":
        absl.logging.set_verbosity(absl.logging.INFO)
    else:
        tf1.logging.set_verbosity(tf1.logging.INFO)
    yield messages
    absl.logging.set_verbosity(verbosity)
    for name, logger in loggers.items():
        logger.removeHandler(handler)
        logger.setLevel(levels[name])


def _steps_in(messages):
    prefix = "SyncReplicas: step "
    return [
        int(message.removeprefix(prefix).split(":")[0])
        for message in messages
        if message.startswith(prefix)
    ]


def _scalars_in(folder):
    """The values in event files, by tag and step."""
    scalars = {}
    for path in glob.glob(f"{folder}/events.out.tfevents.*"):
        for event in tf1.train.summary_iterator(path):
            for value in event.summary.value:
                scalars[value.tag, event.step] = value.simple_value
    return scalars


def test_stats_count_what_happened():
    replica = twin.Replica(2, 1)
    with replica.graph.as_default():
        hook = replica.optimizer.make_session_run_hook(True)
        stop = tf1.train.StopAtStepHook(last_step=2)
        assert hook.stats == {}
        with tf1.train.SingularMonitoredSession([hook, stop]) as session:
            replica.train(session, twin.batches(3))
            stats = replica.optimizer.stats(session)
            replica.train(session, twin.batches(1))
            assert session.should_stop()
    assert (stats["updates"], stats["applied"], stats["pending"]) == (1, 2, 1)
    # The hook has them after the session has ended.
    stats = hook.stats
    assert stats["updates"] == stats["rounds"] == stats["step"] == 2
    assert stats["admitted"] == stats["committed"] == stats["applied"] == 4
    for name in ("pending", "late", "stale", "rejected", "voided", "expired", "voids"):
        assert stats[name] == 0, name
    (worker,) = stats["workers"].values()
    assert list(stats["workers"]) == ["/job:localhost/replica:0/task:0"]
    assert worker["contributed"] == 4
    assert worker["live"] is True
    assert worker["waited_secs"] > 0


@pytest.mark.parametrize(
    ("logged", "every"),
    [("absl", 2), ("tensorflow", 2), ("absl", None), ("tensorflow", 0)],
    indirect=["logged"],
)
def test_chief_reports_every_so_many_steps_and_at_the_end(logged, every, tmp_path):
    replica = twin.Replica()
    with replica.monitored_session(
        log_every_n_steps=every, summary_dir=str(tmp_path)
    ) as session:
        replica.train(session, twin.batches(5))
    assert _steps_in(logged) == ([2, 4, 5] if every else [])
    # TensorBoard gets the end of the training even if no line is wanted.
    steps = [2, 4, 5] if every else [5]
    scalars = _scalars_in(tmp_path)
    assert {step for _, step in scalars} == set(steps)
    for step in steps:
        assert scalars["sync/updates", step] == step
        assert scalars["sync/contributed/localhost:0", step] == step
        assert scalars["sync/late", step] == 0
    assert scalars["sync/waited_secs/localhost:0", 5] > 0


def test_scalars_are_written_outside_of_the_graphs_context_too(tmp_path):
    replica = twin.Replica()
    with replica.graph.as_default():
        hook = replica.optimizer.make_session_run_hook(
            True, log_every_n_steps=1, summary_dir=str(tmp_path)
        )
        session = tf1.train.SingularMonitoredSession([hook])
    replica.train(session, twin.batches(1))
    session.close()
    assert _scalars_in(tmp_path)["sync/updates", 1] == 1


class _Lines:
    """TensorFlow's lines from now on, of which some can be waited for."""

    def __init__(self, monkeypatch, secs):
        monkeypatch.setattr(said_waits, "_FIRST_SECS", 0.0)
        monkeypatch.setattr(said_waits, "_SECS", secs)
        self._changed = threading.Condition()
        self.all = []
        handler = logging.Handler(logging.WARNING)
        handler.emit = self._add
        monkeypatch.setattr(tf.get_logger(), "handlers", [handler])

    def _add(self, record):
        with self._changed:
            self.all.append(record.getMessage())
            self._changed.notify_all()

    def count(self, text):
        return sum(text in line for line in self.all)

    def wait_for(self, text, times=1):
        with self._changed:
            assert self._changed.wait_for(lambda: self.count(text) >= times, 60)


def _another_process(monkeypatch):
    """Makes what follows another replica for the gate, in a process of its own."""
    monkeypatch.setattr(client, "_number", client.number() + 1)


class _Replica(tf1.train.SessionRunHook):
    """A replica that trains to the end of the training."""

    def __init__(self, server, **arguments):
        self.steps, self.begins = 0, threading.Event()
        self._server, self._replica = server, twin.Replica(**arguments)

    def before_run(self, run_context):
        self.begins.set()

    def train(self):
        with self._replica.graph.as_default():
            hook = self._replica.optimizer.make_session_run_hook(False)
            with tf1.train.MonitoredTrainingSession(
                self._server.target, is_chief=False, hooks=[hook, self]
            ) as session:
                while not session.should_stop():
                    self._replica.train(session, twin.batches(1))
                    self.steps += 1


def _train_as_chief(server, **arguments):
    """Trains two steps, and ends the training."""
    replica = twin.Replica(**arguments)
    with replica.graph.as_default():
        hook = replica.optimizer.make_session_run_hook(True)
        with tf1.train.SingularMonitoredSession(
            [hook], master=server.target
        ) as session:
            replica.train(session, twin.batches(2))


def _begin_while_it_waits(server, waits, times, lines):
    """A training begins once a replica has said that it waits, and ends."""
    chief = twin.Replica()
    with chief.graph.as_default(), tf1.Session(server.target) as session:
        gate = chief.optimizer._built.gate
        begin = sync_gate_ops.sync_gate_open(gate, tf.constant(0, tf.int64))
        end = sync_gate_ops.sync_gate_close(gate, sync_gate_ops.ANY_GENERATION)
        session.run(chief.init_op)
        replica = _Replica(server)
        training = in_thread(replica.train)
        lines.wait_for(waits, times)
        session.run(begin)
        assert replica.begins.wait(60)
        session.run(end)
        training.result(60)


def test_replica_that_comes_after_the_end_says_that_it_waits_and_how_that_ends(
    monkeypatch,
):
    server = tf1.train.Server.create_local_server()
    _train_as_chief(server, start_secs=1.5)
    _another_process(monkeypatch)
    lines = _Lines(monkeypatch, secs=0.25)
    replica = _Replica(server, start_secs=1.5)
    replica.train()
    assert replica.steps == 0
    waits = "training on these parameter servers has ended, at global step 2. This "
    assert lines.count(f"{waits}replica waits for a chief that begins another one") > 1
    assert lines.count("for start_secs=1.5 at most") > 1
    assert "replica ends without having trained" in lines.all[-1]


def test_replica_that_another_chief_lets_train_says_nothing_of_an_end(monkeypatch):
    server = tf1.train.Server.create_local_server()
    _train_as_chief(server)
    _another_process(monkeypatch)
    lines = _Lines(monkeypatch, secs=600.0)
    _begin_while_it_waits(server, "waits for a chief that begins another", 1, lines)
    assert lines.count("without having trained") == 0


def test_replica_says_that_its_chief_has_not_begun(monkeypatch):
    server = tf1.train.Server.create_local_server()
    lines = _Lines(monkeypatch, secs=0.1)
    waits = "waits for its chief, which has not begun the training"
    _begin_while_it_waits(server, waits, 2, lines)
    assert lines.count("has ended") == 0
