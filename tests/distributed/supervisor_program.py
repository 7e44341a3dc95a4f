"""One replica of a script in each style that has no session hook for all replicas.

Run it as a worker of TF_CONFIG with JSON arguments, which are those of `main` by name.
The gradient of the weight is always 1, so that the weight shows how many updates were
made. It prints "ran [batch, step]" after each train op, the chief prints "weight
[value, step]" when it has made its batches, and each prints "ended" when only the end
of the process is left. As the process ends it prints "still runs" if a thread is in a
session: if that returned now, the process would be aborted.

Styles:
- "managed": `Supervisor.managed_session`;
- "with": `prepare_or_wait_for_session` in a `with` block, then `stop()`;
- "unstopped": the same session, but neither it nor the Supervisor is ended;
- "oldest": the same without the optimizer's init ops, as in scripts of the oldest API;
- "chief_only_hooks": a `MonitoredSession` of which only the chief's has a hook.
"""

import atexit
import contextlib
import json
import signal
import sys
import traceback

import tensorflow.compat.v1 as tf
import v1_sessions

import tf_syncrep as tfs

LEARNING_RATE = 0.5
# It is used until the process ends.
_kept = []


def _tell_of_threads():
    for frame in sys._current_frames().values():
        files = {f.f_code.co_filename for f, _ in traceback.walk_stack(frame)}
        if any(name.endswith("python/client/session.py") for name in files):
            print("still runs", flush=True)


@contextlib.contextmanager
def _supervised(style, supervisor, worker, runner, tokens_op):
    """A session of a Supervisor, and the threads that the chief starts in it."""
    if style == "managed":
        make_session = supervisor.managed_session
    else:
        make_session = supervisor.prepare_or_wait_for_session
    session_or_context = make_session(worker.target, config=worker.config)
    with contextlib.ExitStack() as stack:
        if style in ("managed", "with"):
            session = stack.enter_context(session_or_context)
        else:
            session = session_or_context
            _kept.append(session)
        if supervisor.is_chief:
            supervisor.start_queue_runners(session, [runner])
            session.run(tokens_op)
        yield session
    if style == "with":
        supervisor.stop()


def main(
    style,
    batches,
    quorum=2,
    total=2,
    fails=False,
    stop_at=(),
    target=None,
    lease_secs=600.0,
    **optimizer,
):
    """Trains.

    `target`: a server that outlives this process; None for a server of its own.
    """
    atexit.register(_tell_of_threads)  # registered first, and so called last
    worker = v1_sessions.Worker(target)
    is_chief = worker.is_chief

    def compute(number):
        if number in stop_at:
            print(f"at {number}", flush=True)
            signal.raise_signal(signal.SIGSTOP)
        return number

    with tf.device(worker.setter):
        global_step = tf.train.get_or_create_global_step()
        weight = tf.get_variable("weight", initializer=[0.0])
        number = tf.placeholder(tf.int64, [])
        begins = [number]
        if stop_at:  # By this process, as the server of its task.
            with tf.device(worker.device + "/cpu:0"):
                begins = [tf.numpy_function(compute, [number], tf.int64)]
        with tf.control_dependencies(begins):
            one = tf.ones([1])
        loss = tf.reduce_sum(weight * one)
        sync = tfs.train.SyncReplicasOptimizer(
            tf.train.GradientDescentOptimizer(LEARNING_RATE),
            quorum,
            total,
            lease_secs=lease_secs,
            **optimizer,
        )
        train_op = sync.minimize(loss, global_step)

    if style == "chief_only_hooks":
        hooks = [sync.make_session_run_hook(True)] if is_chief else []
        session_context = tf.train.MonitoredSession(worker.session_creator(), hooks)
    else:
        starting = (sync.get_chief_queue_runner(), sync.get_init_tokens_op())
        init_ops = {}
        if style != "oldest":
            init_ops["local_init_op"] = (
                sync.chief_init_op if is_chief else sync.local_step_init_op
            )
            init_ops["ready_for_local_init_op"] = sync.ready_for_local_init_op
        supervisor = tf.train.Supervisor(
            is_chief=is_chief,
            init_op=tf.global_variables_initializer(),
            saver=None,
            summary_op=None,
            global_step=global_step,
            recovery_wait_secs=0.1,
            **init_ops,
        )
        session_context = _supervised(style, supervisor, worker, *starting)
    print("building is done", flush=True)
    with contextlib.suppress(tf.errors.OutOfRangeError), session_context as session:
        print("begun", flush=True)
        try:
            for i in range(batches):
                step = session.run(train_op, {number: i})
                print(f"ran {[i, int(step)]}", flush=True)
        except tf.errors.OutOfRangeError:
            print("end of input", flush=True)
            raise
        if is_chief:
            value, step = session.run([weight, global_step])
            print(f"weight {[float(value[0]), int(step)]}", flush=True)
            stats = {k: v for k, v in sync.stats(session).items() if k != "workers"}
            print(f"stats {json.dumps(stats)}", flush=True)
        if fails:
            raise RuntimeError("This replica fails.")
    print("ended", flush=True)


if __name__ == "__main__":
    main(**json.loads(sys.argv[1]))
