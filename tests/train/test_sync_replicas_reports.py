"""Reports of SyncReplicasOptimizer on a training: stats, log lines, TensorBoard."""

import glob
import logging

import absl.logging
import pytest
import sync_replicas_twin as twin
import tensorflow as tf

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
