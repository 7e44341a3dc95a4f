"""CheckpointSaverHook in sessions of one process: contents and times of checkpoints."""

import contextlib
import json
import shutil
import signal
import threading

import numpy as np
import pytest
import tensorflow as tf
import v1_checkpoint_models
import v1_models
import v1_optimizers
import waiting
from combinations import thinned
from v1_checkpoint_models import ROWS, WIDTH, values

import tf_syncrep as tfs
from tf_syncrep.python.base import said_waits
from tf_syncrep.python.checkpoint import directory
from tf_syncrep.python.checkpoint.notice import Notice
from tf_syncrep.python.ops import notice_ops
from tf_syncrep.python.v1.checkpoint.contents import contents_of_graph
from tf_syncrep.python.v1.checkpoint.session_calls import SessionCalls

tf1 = tf.compat.v1

OPTIMIZERS = {
    "adam_async": lambda: tfs.train.AdamAsyncOptimizer(0.01),
    "adam": lambda: tf1.train.AdamOptimizer(0.01),
}


def build(
    use_resource,
    *,
    parts=None,
    optimizer="adam_async",
    sync=False,
    averages=None,
    scope="",
):
    """The train op, made in a scope, and its optimizer."""
    loss = v1_checkpoint_models.loss(use_resource, parts)
    opt = OPTIMIZERS[optimizer]()
    if sync:
        opt = tfs.train.SyncReplicasOptimizer(
            opt,
            1,
            variable_averages=averages,
            variables_to_average=averages and tf1.trainable_variables(),
        )
    with tf1.variable_scope(scope, auxiliary_name_scope=False):
        train_op = opt.minimize(loss, global_step=tf1.train.get_global_step())
    return train_op, opt


def train(hooks, until, use_resource=True, updates_by="hook", **options):
    """Trains a new graph to a global step; returns the variables at the end.

    The options are those of `build`. A synchronous training's updates are made by the
    hook or by the chief's "queue_runner".
    """
    with tf.Graph().as_default():
        train_op, opt = build(use_resource, **options)
        if updates_by == "queue_runner":
            tf1.train.add_queue_runner(opt.get_chief_queue_runner())
        elif isinstance(opt, tfs.train.SyncReplicasOptimizer):
            hooks = [opt.make_session_run_hook(True), *hooks]
        end = tf1.train.StopAtStepHook(last_step=until)
        with tf1.train.MonitoredTrainingSession(hooks=[end, *hooks]) as session:
            while not session.should_stop():
                session.run(train_op)
                last = session.run_step_fn(
                    lambda step_context: values(step_context.session)
                )
    return last


@thinned(
    "optimizer, use_resource, parts", ["adam_async", "adam"], [False, True], [None, 3]
)
def test_training_goes_on_bit_for_bit(tmp_path, use_resource, parts, optimizer):
    def run(until, directory):
        hook = tfs.train.CheckpointSaverHook(
            directory, save_steps=2, full_every=3, keep=2
        )
        found = train([hook], until, use_resource, parts=parts, optimizer=optimizer)
        assert found["global_step"] == until
        return found, hook.restored

    expected, _ = run(12, tmp_path / "undisturbed")
    _, restored = run(5, tmp_path / "twice")
    assert restored is None
    found, restored = run(12, tmp_path / "twice")
    assert restored is not None
    for name, value in expected.items():
        np.testing.assert_array_equal(found[name], value, err_msg=name)


@thinned("use_resource, parts", [False, True], [None, 3])
def test_full_one_is_what_a_saver_of_the_graph_restores(tmp_path, use_resource, parts):
    hook = tfs.train.CheckpointSaverHook(tmp_path, save_steps=100)
    expected = train([hook], 3, use_resource, parts=parts)
    path = tf.train.latest_checkpoint(tmp_path)
    reader = tf.train.load_checkpoint(path)
    assert reader.get_tensor("table").shape == (ROWS, WIDTH)
    assert reader.get_tensor("table/AdamAsync").shape == (ROWS, WIDTH)
    assert reader.get_tensor("global_step") == 3
    with tf.Graph().as_default():
        build(use_resource, parts=parts)
        saver = tf1.train.Saver()
        with tf1.Session() as session:
            saver.restore(session, path)
            found = values(session)
    for name, value in expected.items():
        np.testing.assert_array_equal(found[name], value, err_msg=name)


class Begins(tf1.train.SessionRunHook):
    """Keeps the values with which a session begins."""

    def after_create_session(self, session, coord):
        self.values = values(session)


@thinned(
    "name, saved, restored, use_resource",
    v1_optimizers.CASES,
    [2, 3, None, 1],
    [3, None, 2],
    [False, True],
)
def test_it_restores_into_any_number_of_parts(
    tmp_path, monkeypatch, name, saved, restored, use_resource
):
    make = v1_optimizers.CASES[name].make
    monkeypatch.setitem(OPTIMIZERS, name, lambda: make(0.01))
    expected, begins = {}, Begins()
    for until, parts, seen in ((3, saved, []), (4, restored, [begins])):
        hooks = [tfs.train.CheckpointSaverHook(tmp_path), *seen]
        last = train(hooks, until, use_resource, parts=parts, optimizer=name)
        expected = expected or v1_models.whole(last)
    found = v1_models.whole(begins.values)
    assert sorted(found) == sorted(expected)
    for variable, value in expected.items():
        np.testing.assert_array_equal(found[variable], value, err_msg=variable)


class Ruin(tf1.train.SessionRunHook):
    """Sets a variable, or its first part, to NaN after a step."""

    def __init__(self, name, at):
        self.name, self.at = name, at

    def begin(self):
        (variable, *_) = (x for x in tf1.trainable_variables() if self.name in x.name)
        self.ruin = variable.assign(tf.fill(variable.shape, np.nan)).op
        self.step = tf1.train.get_global_step()

    def after_run(self, run_context, run_values):
        if run_context.session.run(self.step) >= self.at:
            run_context.session.run(self.ruin)


@thinned("use_resource, parts, name", [False, True], [None, 3], ["table", "bias"])
def test_session_goes_on_from_the_last_one_with_finite_weights(
    tmp_path, caplog, use_resource, parts, name
):
    def hook():
        return tfs.train.CheckpointSaverHook(tmp_path, save_steps=2)

    train([hook(), Ruin(name, 4)], 6, use_resource, parts=parts)
    again = hook()
    last = train([again], 6, use_resource, parts=parts)
    assert f"{name} is not finite" in caplog.text
    # That of step 4 may have been written before it was ruined.
    assert again.restored in {str(tmp_path / f"ckpt-{number}") for number in (1, 2)}
    for variable, value in v1_models.whole(last).items():
        assert np.all(np.isfinite(value)), variable


class Savings(tf1.train.SessionRunHook):
    """Collects the checkpoints that another hook has begun."""

    def __init__(self, hook):
        self.hook = hook
        self.all = set()

    def after_run(self, run_context, run_values):
        self.all.add(self.hook.saving)


@pytest.mark.parametrize(
    ("optimizer", "has_averages", "keeps_all"),
    [("adam_async", False, False), ("adam_async", True, True), ("adam", False, True)],
)
def test_an_update_keeps_all_rows_that_it_will_write(
    optimizer, has_averages, keeps_all
):
    """Adam decays the slots of all rows, and averages move towards all of them."""
    averages = tf.train.ExponentialMovingAverage(0.5) if has_averages else None
    with tf.Graph().as_default() as graph:
        build(True, optimizer=optimizer, sync=True, averages=averages)
        keeps = [x for x in graph.get_operations() if x.type.endswith("CheckpointKeep")]
    assert [op.get_attr("all") for op in keeps] == [keeps_all]


def saved_together(variables, scope, sync, averages=None):
    """The groups and the wholes of a new graph's checkpoint, by name.

    An optimizer in a scope of its own trains the variables, of these names and dtypes.
    """
    with tf.Graph().as_default():
        step = tf1.train.get_or_create_global_step()
        made = [
            tf1.get_variable(name, [ROWS, WIDTH], dtype)
            for name, dtype in variables.items()
        ]
        opt = tfs.train.MomentumOptimizer(0.01, 0.9)
        if sync:
            opt = tfs.train.SyncReplicasOptimizer(
                opt, 1, variable_averages=averages, variables_to_average=made
            )
        with tf1.variable_scope(scope):
            opt.apply_gradients([(tf.ones_like(v), v) for v in made], step)
        contents, _ = contents_of_graph()
    (share,) = contents.shares
    names = [[v.op.name for v in group.variables] for group in share.groups]
    return names, share.wholes.keys() - {"global_step"}


@pytest.mark.parametrize("sync", [False, True], ids=["alone", "sync"])
@pytest.mark.parametrize("scope", ["", "optimizer", "optimizer/of/tables"])
def test_slots_are_read_with_their_table(scope, sync):
    """Also if it was in some scope that the optimizer made them."""
    slots = f"{scope}/table" if scope else "table"
    averages = tf.train.ExponentialMovingAverage(0.5) if sync else None
    groups, wholes = saved_together({"table": tf.float32}, scope, sync, averages)
    kinds = ["Momentum", "ExponentialMovingAverage"] if sync else ["Momentum"]
    assert groups == [["table", *(f"{slots}/{kind}" for kind in kinds)]]
    assert not wholes
    # The slots have twice the bytes of these weights, which are copied at once.
    groups, wholes = saved_together({"table": tf.half}, scope, sync)
    assert not groups
    assert wholes == {"table", f"{slots}/Momentum"}


def test_names_within_names_do_not_confuse_tables_and_slots():
    names = ("table", "a/table", "table/deep")
    groups, _ = saved_together(dict.fromkeys(names, tf.float32), "a", sync=True)
    assert groups == [[name, f"a/{name}/Momentum"] for name in names]


@pytest.mark.ci
@thinned(
    "use_resource, optimizer, scope, updates_by",
    [False, True],
    ["adam_async", "adam"],
    ["", "optimizer"],
    ["hook", "queue_runner"],
)
def test_it_is_of_one_moment_between_two_updates(
    tmp_path, use_resource, optimizer, scope, updates_by
):
    """Every checkpoint has exactly the variables after its number of updates."""
    # It is slow enough for updates to be made meanwhile.
    hook = tfs.train.CheckpointSaverHook(
        tmp_path, save_steps=5, keep=50, max_bytes_per_sec=20e6
    )
    savings = Savings(hook)
    train(
        [hook, savings],
        120,
        use_resource,
        updates_by,
        sync=True,
        optimizer=optimizer,
        scope=scope,
    )
    assert max(saving.kept_bytes for saving in savings.all if saving) > 0
    saved = [
        json.loads(path.read_text())["checkpoint"]
        for path in tmp_path.glob("ckpt-*.json")
    ]
    steps = {one["state"]["global_step"] for one in saved}
    assert len(steps) > 2
    make = OPTIMIZERS[optimizer]
    twin = v1_checkpoint_models.trained_alone(make, steps, use_resource, scope=scope)
    for one in saved:
        step = one["state"]["global_step"]
        reader = tf.train.load_checkpoint(str(tmp_path / f"ckpt-{one['number']}"))
        for name, value in twin[step].items():
            np.testing.assert_array_equal(
                reader.get_tensor(name), value, err_msg=f"{name} of step {step}"
            )


def test_work_queue_goes_on_where_it_was(tmp_path):
    def read(until, key="q"):
        with tf.Graph().as_default():
            train_op, _ = build(True)
            queue = tfs.data.WorkQueue(12, num_epochs=1, name=f"q{until}")
            dataset = queue.dataset()
            iterator = tf1.data.make_initializable_iterator(dataset)
            tf1.add_to_collection(
                tf1.GraphKeys.TABLE_INITIALIZERS, iterator.initializer
            )
            item = iterator.get_next()
            hook = tfs.train.CheckpointSaverHook(
                tmp_path, save_steps=1000, work_queues={key: queue}
            )
            items = []
            stop = tf1.train.StopAtStepHook(last_step=until)
            with tf1.train.MonitoredTrainingSession(hooks=[stop, hook]) as session:
                while not session.should_stop():
                    items.append(int(session.run([item, train_op])[0]))
            return items

    assert read(5) == [0, 1, 2, 3, 4]
    # The last one was not read to its end, since nobody had asked for the next.
    assert read(100) == [4, 5, 6, 7, 8, 9, 10, 11]
    with pytest.raises(ValueError, match=r"`work_queues` .*: \['q'\]. Received: 'r'"):
        read(101, "r")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"save_secs": 0}, "save_secs"),
        ({"save_steps": 0}, "save_steps"),
        ({"keep": 0}, "keep"),
        ({"full_every": 1.5}, "full_every"),
        ({"max_kept_bytes": -1}, "max_kept_bytes"),
        ({"max_bytes_per_sec": float("nan")}, "max_bytes_per_sec"),
        ({"save_secs": 5, "save_steps": 9}, "must not both.*save_secs=5, save_steps=9"),
        ({"checkpoint_dir": b""}, "`checkpoint_dir` must be the path of a folder"),
        ({"checkpoint_dir": __file__}, "`checkpoint_dir` must be a folder.*is a file"),
    ],
)
def test_bad_arguments_are_named(tmp_path, arguments, message):
    with pytest.raises(ValueError, match=message):
        tfs.train.CheckpointSaverHook(**{"checkpoint_dir": tmp_path, **arguments})


def test_chief_does_not_begin_where_no_checkpoint_could_be_written():
    with tf.Graph().as_default():
        tf1.train.get_or_create_global_step()
        hook = tfs.train.CheckpointSaverHook("/proc/checkpoints")
        message = "can be written to.*checkpoint_dir='/proc/checkpoints'"
        with pytest.raises(ValueError, match=message):
            hook.begin()
    with tf.Graph().as_default():
        tf1.train.get_or_create_global_step()
        tfs.train.CheckpointSaverHook("/proc/checkpoints", is_chief=False).begin()


def test_scope_that_reuses_and_divides_variables_does_not_matter(tmp_path):
    with tf.Graph().as_default():
        tf1.train.get_or_create_global_step()
        hook = tfs.train.CheckpointSaverHook(tmp_path)
        with tf1.variable_scope("model", partitioner=tf1.fixed_size_partitioner(2)):
            tf1.get_variable_scope().reuse_variables()
            hook.begin()
        with tf1.Session() as session:
            session.run(tf1.global_variables_initializer())
            coord = tf1.train.Coordinator()
            hook.after_create_session(session, coord)
            assert hook._is_marked(session)
            coord.request_stop()


@pytest.mark.parametrize("sync", [False, True], ids=["alone", "sync"])
@pytest.mark.parametrize("use_resource", [False, True], ids=["ref", "resource"])
def test_variable_of_unknown_shape_is_saved_at_once(tmp_path, use_resource, sync):
    def train(until):
        with tf.Graph().as_default():
            step = tf1.train.get_or_create_global_step()
            first = tf1.placeholder_with_default(tf.ones([2, 3]), None)
            variable = tf1.Variable(
                first, validate_shape=False, use_resource=use_resource, name="w"
            )
            opt = tfs.train.MomentumOptimizer(0.5, 0.5)
            hooks = [
                tf1.train.StopAtStepHook(last_step=until),
                tfs.train.CheckpointSaverHook(tmp_path),
            ]
            if sync:
                opt = tfs.train.SyncReplicasOptimizer(opt, 1)
                hooks.append(opt.make_session_run_hook(True))
            train_op = opt.apply_gradients([(tf.ones([2, 3]), variable)], step)
            with tf1.train.MonitoredTrainingSession(hooks=hooks) as session:
                while not session.should_stop():
                    session.run(train_op)
        reader = tf.train.load_checkpoint(tf.train.latest_checkpoint(tmp_path))
        return reader.get_tensor("w"), reader.get_tensor("w/Momentum")

    train(1)
    for found, expected in zip(train(2), (1 - 0.5 - 0.75, 1.5), strict=True):
        np.testing.assert_array_equal(found, np.full([2, 3], expected))


@pytest.mark.parametrize("is_chief", [True, False])
def test_second_one_in_a_graph_is_refused(tmp_path, is_chief):
    with tf.Graph().as_default():
        tf1.train.get_or_create_global_step()
        first, second = (
            tfs.train.CheckpointSaverHook(tmp_path / name, is_chief=is_chief)
            for name in ("one", "two")
        )
        first.begin()
        message = (
            "takes one CheckpointSaverHook.*/one'.*another.*checkpoint_dir='.*/two'"
        )
        with pytest.raises(ValueError, match=message):
            second.begin()


def test_graphs_that_cannot_be_saved_are_refused(tmp_path):
    hook = tfs.train.CheckpointSaverHook(tmp_path)
    with tf.Graph().as_default(), pytest.raises(ValueError, match="global step"):
        hook.begin()
    with tf.Graph().as_default():
        tf1.train.get_or_create_global_step()
        columns = tf1.fixed_size_partitioner(2, axis=1)
        tf1.get_variable("wide", [4, 8], partitioner=columns)
        with pytest.raises(ValueError, match=r"ranges of rows.*wide"):
            hook.begin()


def test_checkpoint_of_another_graph_is_refused(tmp_path, monkeypatch):
    train([tfs.train.CheckpointSaverHook(tmp_path)], 2)
    with pytest.raises(ValueError, match="does not have"):
        train([tfs.train.CheckpointSaverHook(tmp_path)], 3, optimizer="adam")
    monkeypatch.setattr(v1_checkpoint_models, "ROWS", ROWS + 1)
    message = rf"ckpt-1 does not fit the model: table is float.* of {ROWS + 1} rows of"
    with pytest.raises(ValueError, match=message):
        train([tfs.train.CheckpointSaverHook(tmp_path)], 3)


def test_server_that_does_not_share_the_folder_ends_the_session(tmp_path, monkeypatch):
    monkeypatch.setattr(directory, "_TRIAL_SECS", 0.1)
    monkeypatch.setattr(SessionCalls, "write", lambda *_: None)
    hook = tfs.train.CheckpointSaverHook(tmp_path, 600)
    with pytest.raises(ValueError, match="`checkpoint_dir` must be a folder that"):
        train([hook], 1)


@pytest.mark.parametrize("raise_at_end", [False, True])
def test_session_whose_end_is_in_no_checkpoint_says_so(tmp_path, caplog, raise_at_end):
    folder = tmp_path / "checkpoints"

    class Lose(tf1.train.SessionRunHook):
        def end(self, session):
            waiting.until(self.has_lost)

        def has_lost(self):
            # A thread that notes how far training got may make the folder again.
            shutil.rmtree(folder, ignore_errors=True)
            with contextlib.suppress(IsADirectoryError):
                return folder.write_text("no folder")

    hook = tfs.train.CheckpointSaverHook(
        folder, save_secs=600, raise_at_end=raise_at_end
    )
    raises = pytest.raises(tf.errors.OpError, match=str(folder))
    with raises if raise_at_end else contextlib.nullcontext():
        train([Lose(), hook], 2)
    assert "The end of this training is in no checkpoint: 0 of 1 " in caplog.text


@pytest.mark.ci
def test_chief_with_another_folder_frees_what_a_lost_one_has_left(tmp_path):
    """Servers outlive a chief, and so do its writers there, with 8 bytes a row."""
    server = tf1.train.Server.create_local_server()

    def live(folder):
        with tf.Graph().as_default():
            train_op, _ = build(False)
            hook = tfs.train.CheckpointSaverHook(folder, save_steps=1, full_every=100)
            hook.end = lambda session: None  # as if it had been killed
            with tf1.train.MonitoredTrainingSession(
                server.target, hooks=[hook]
            ) as session:
                while hook.saving is None:
                    session.run(train_op)
                hook.saving.wait()
        return hook

    lives = [(live(tmp_path / "lost"), False), (live(tmp_path / "next"), True)]
    for hook, knows in lives:
        calls, token = hook._calls, hook.saving.manifest.token
        calls.session = tf1.Session(server.target, calls._begin_op.graph)
        if knows:
            calls.begin([str(tmp_path / "more")], "more", token)
        else:
            with pytest.raises(tf.errors.FailedPreconditionError, match="last one"):
                calls.begin([str(tmp_path / "more")], "more", token)
        calls.cancel()


def test_replica_says_that_it_waits_for_the_chief_to_restore(
    tmp_path, monkeypatch, caplog
):
    monkeypatch.setattr(said_waits, "_FIRST_SECS", 0.0)
    monkeypatch.setattr(said_waits, "_SECS", 0.05)

    class Coordinator(tf1.train.Coordinator):
        def should_stop(self):
            return caplog.text.count("waits for the chief's hook") > 1

    hook = tfs.train.CheckpointSaverHook(tmp_path, is_chief=False)
    coord = Coordinator()
    with tf.Graph().as_default(), tf1.Session() as session:
        build(True)
        hook.begin()
        hook.after_create_session(session, coord)
    coord.request_stop()
    assert f"restores the newest checkpoint in {tmp_path}" in caplog.text


def test_restore_is_told_where_v1_tells_everything(tmp_path, caplog):
    # The first line by absl's logger gives Python's root logger a handler, beside that
    # of TensorFlow's logger, and from then on TensorFlow's lines are printed twice.
    for until in (2, 4):
        train([tfs.train.CheckpointSaverHook(str(tmp_path), save_steps=1)], until)
    told = [x for x in caplog.records if "goes on from" in x.getMessage()]
    assert [x.name for x in told] == ["tensorflow"]


class Terminated(tf1.train.SessionRunHook):
    """Sends this process SIGTERM after a run."""

    def __init__(self, runs):
        self._left = runs

    def after_run(self, run_context, run_values):
        del run_context, run_values
        self._left -= 1
        if self._left == 0:
            signal.raise_signal(signal.SIGTERM)


@pytest.mark.parametrize("sync", [False, True])
def test_sigterm_is_a_checkpoint_after_the_step_and_the_programs_end(tmp_path, sync):
    hook = tfs.train.CheckpointSaverHook(tmp_path, save_steps=100)
    with pytest.raises(SystemExit) as end:
        train([Terminated(7), hook], until=20, sync=sync)
    assert end.value.code == 143
    (found,) = directory.Directory(tmp_path).manifests()
    assert found.state["global_step"] == 7
    # Who listens no more leaves the signal as it was.
    assert not notice_ops.is_given()
    again = tfs.train.CheckpointSaverHook(tmp_path, save_steps=100)
    train([again], until=20, sync=sync)
    assert again.restored == directory.Directory(tmp_path).prefix(found.number)


def test_sigterm_is_not_forgotten_when_a_session_takes_the_place_of_a_lost_one(
    tmp_path,
):
    class Lost(Terminated):
        def after_run(self, run_context, run_values):
            super().after_run(run_context, run_values)
            if self._left == 0:
                raise tf.errors.UnavailableError(None, None, "lost")

    hook = tfs.train.CheckpointSaverHook(tmp_path, save_steps=1)
    with pytest.raises(SystemExit) as end:
        train([hook, Lost(7)], until=20)
    assert end.value.code == 143
    assert directory.Directory(tmp_path).manifests()[-1].state["global_step"] < 20


def test_a_hook_that_is_used_again_ends_a_step_that_hangs(tmp_path, monkeypatch):
    class Hanging(Terminated):
        def after_run(self, run_context, run_values):
            super().after_run(run_context, run_values)
            if self._left == 0:
                assert is_ended.wait(30)

    is_ended = threading.Event()
    hook = tfs.train.CheckpointSaverHook(tmp_path, save_steps=100)
    train([hook], until=2)
    monkeypatch.setenv(notice_ops.GRACE_VARIABLE, "0.3")
    monkeypatch.setattr(Notice, "end_process", lambda _: is_ended.set())
    with pytest.raises(SystemExit):
        train([Hanging(2), hook], until=20)


def test_no_checkpoint_is_begun_at_sigterm_that_would_take_too_long(
    tmp_path, monkeypatch, capsys
):
    monkeypatch.setenv(notice_ops.GRACE_VARIABLE, "1e-6")
    monkeypatch.setattr(Notice, "end_process", lambda _: None)
    hook = tfs.train.CheckpointSaverHook(tmp_path, save_steps=3, raise_at_end=True)
    with pytest.raises(SystemExit):
        train([Terminated(6), hook], until=20)
    folder = directory.Directory(tmp_path)
    newest = folder.manifests()[-1]
    # A run fetches the step from before it, and without resource variables its own.
    assert newest.state["global_step"] == (4 if tf1.resource_variables_enabled() else 3)
    said = capsys.readouterr().out
    assert "no checkpoint of this moment is begun" in said
    assert f"the next run goes on from {folder.prefix(newest.number)}." in said


def test_who_cannot_restore_leaves_the_signal_as_it_was(tmp_path, monkeypatch):
    def listening():
        return {x for x in threading.enumerate() if x.name == "notice"}

    def fails(session):
        raise ValueError("another graph")

    hook = tfs.train.CheckpointSaverHook(tmp_path)
    monkeypatch.setattr(hook, "_restore", fails)
    before = listening()
    with pytest.raises(ValueError, match="another graph"):
        train([hook], until=2)
    assert listening() <= before
