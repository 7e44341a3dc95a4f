"""NumPy's numbers, booleans and strings are accepted wherever Python's are.

Each public class and function that takes such arguments is called with both: with the
defaults of its signature, and with what stands here for arguments that have none. Of a
class with `get_config` the configurations are compared.
"""

import functools
import inspect
import json
import pathlib
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from rule_steps import state_of

import tf_syncrep as tfs

_MODULES = ("data", "distribute", "keras", "ops", "train")
# Only the package makes an Evaluation. What the others take in one process Keras takes;
# test_fit.py and test_fit_checks.py have what they take where a cluster is.
_EXEMPT = {"keras.Evaluation", "keras.fit", "keras.evaluate", "keras.predict"}
# Names of ops are passed on as they are, and `replica_id` has no effect.
_EXEMPT_ARGUMENTS = {"name", "args", "kwargs", "replica_id"}
_TAKES_ONE = re.compile(r"\b(int|float|bool|str)\b")

_cases: dict[str, tuple[Callable[..., Any], list[dict[str, Any]]]] = {}


def _case(name: str, /, *others: dict[str, Any], **first: Any) -> Callable[[Any], Any]:
    """Has a function called with these arguments beside the defaults of `name`.

    It is called with the first, and again with each of the others alone.
    """

    def keep(function):
        _cases[name] = (function, [_defaults_of(_public(name)) | first, *others])
        return function

    return keep


def _public(name: str) -> Any:
    prefix, _, public = name.partition(".")
    return getattr(getattr(tfs, prefix), public)


def _arguments_of(public: Any) -> dict[str, Any]:
    """The arguments that are numbers, booleans or strings, with their defaults."""
    return {
        name: parameter.default
        for name, parameter in inspect.signature(public).parameters.items()
        if _TAKES_ONE.search(inspect.formatannotation(parameter.annotation))
        and name not in _EXEMPT_ARGUMENTS
    }


def _defaults_of(public: Any) -> dict[str, Any]:
    """Those that are one; floats as float32 has them, in which NumPy's are given."""
    found = {}
    for name, default in _arguments_of(public).items():
        if isinstance(default, float):
            found[name] = float(np.float32(default))
        elif isinstance(default, bool | int | str):
            found[name] = default
    return found


def _as_numpy(value: Any) -> Any:
    """The same with NumPy's scalars in place of Python's."""
    match value:
        case bool():
            return np.bool_(value)
        case int():
            return np.int64(value)
        case float():
            return np.float32(value)
        case str():
            return np.str_(value)
        case list() | tuple():
            return type(value)(_as_numpy(x) for x in value)
        case dict():
            return {_as_numpy(k): _as_numpy(x) for k, x in value.items()}
    return value


_IS_KERAS_3 = hasattr(tf.keras, "ops")
_TABLE = tfs.keras.TableConfig("t", 20, 4)
_FEATURE = tfs.keras.FeatureConfig("f", _TABLE)
_IDS, _TARGETS = np.arange(24).reshape(8, 3) % 20, np.zeros((8, 12), np.float32)


def _model(**options):
    layers = tf.keras.layers
    model = tf.keras.Sequential(
        [layers.Input((3,)), tfs.keras.Embedding(20, 4), layers.Flatten()]
    )
    model.compile(**{"optimizer": "sgd", "loss": "mse", **options})
    return model


class Signs(tfs.keras.LazyOptimizer):
    def initial_slots(self):
        return {}

    def update_rows(self, rows, gradient, slots, learning_rate):
        return rows - learning_rate * tf.sign(gradient), {}


_OF_KERAS = {"learning_rate": 0.125, "weight_decay": 0.5, "ema_overwrite_frequency": 2}
for _name, _options in (
    ("AdamAsync", {"rmsprop_momentum": 0.5}),
    *((x, {}) for x in ("Adagrad", "RowwiseAdagrad", "FTRL", "SGD", "LazyOptimizer")),
):
    _case(
        f"keras.{_name}",
        {"clipvalue": 1, "learning_rate": 1},
        {"global_clipnorm": 1.0, "learning_rate": 0.5, "name": "optimizer"},
        **_OF_KERAS,
        **_options,
        use_ema=True,
        clipnorm=1.0,
    )(Signs if _name == "LazyOptimizer" else getattr(tfs.keras, _name))


@_case("keras.SyncReplicas", replicas_to_aggregate=2, total_num_replicas=3, name="sync")
def sync_replicas(**options):
    optimizer = tfs.keras.SyncReplicas("adam", **options)
    numbers = [options["replicas_to_aggregate"], options["total_num_replicas"]]
    optimizer.configure(*numbers)
    return optimizer


_case("keras.GradientAccumulation", num_batches=2, name="two")(
    functools.partial(tfs.keras.GradientAccumulation, "adam")
)
_case("keras.TableConfig", name="t", vocabulary_size=20, embedding_dim=4)(
    tfs.keras.TableConfig
)
_case(
    "keras.TableOptimizers",
    *([{"optimizer": "adam", "loss_scale_factor": 8}] if _IS_KERAS_3 else []),
    optimizer="sgd",
    global_clipnorm=0.5,
    name="several",
)(tfs.keras.TableOptimizers)


@_case("keras.MinCount", n=2)
def min_count(**options):
    return repr(tfs.keras.MinCount(**options))


def _grows(max_rows, unused_for=None):
    return tfs.keras.Dynamic(
        max_rows, tfs.keras.MinCount(1), tfs.keras.LeastRecent(), unused_for
    )


@_case("keras.Dynamic", max_rows=30, unused_for=7)
def dynamic(**options):
    return tfs.keras.Embedding(_grows(**options), 4)


@_case("keras.maintain_tables", step=9)
def maintain_tables(**options):
    layers = tf.keras.layers
    model = tf.keras.Sequential(
        [layers.Input((3,), dtype="int64"), tfs.keras.Embedding(_grows(30, 7), 4)]
    )
    model(_IDS, training=True)
    tfs.keras.maintain_tables(model, **options)
    return model.layers[-1].table_stats()


_case("keras.FeatureConfig", input_shape=(8, None), output_shape=(8, 4))(
    functools.partial(tfs.keras.FeatureConfig, "f", _TABLE)
)
_case(
    "keras.Embedding",
    {"input_dim": 20, "output_dim": 4, "mask_zero": True, "trainable": False},
    input_dim=20,
    output_dim=4,
    shards=2,
    name="words",
)(tfs.keras.Embedding)
_case(
    "keras.DistributedEmbedding",
    {"table_stacking": [["t"]], "name": "tables", "dtype": "float32"},
    table_stacking="auto",
    transfer_dtype="bfloat16",
    trainable=False,
)(functools.partial(tfs.keras.DistributedEmbedding, _FEATURE))


_OF_CHECKPOINTS = {"work_queues": "q", "max_bytes_per_sec": 0.5 * 2**30}


@_case(
    "keras.Checkpoint",
    {
        "directory": "b",
        "every_secs": 60.0,
        "work_queues": "q",
        "raise_at_end": True,
        "warm_start": "c",
    },
    directory="a",
    every_n_steps=1,
    **_OF_CHECKPOINTS,
)
def checkpoint(directory, work_queues, raise_at_end, **options):
    queue = tfs.data.WorkQueue(3)
    callback = tfs.keras.Checkpoint(
        directory,
        model=_model(),
        work_queues={work_queues: queue},
        raise_at_end=raise_at_end,
        **options,
    )
    state = {"done": raise_at_end, work_queues: 1.5, "keep": options.get("keep")}
    callback.save(state, wait=raise_at_end, is_last=raise_at_end).wait()
    return callback.restore().state


_OF_PUBLICATIONS = {"directory": "a", "max_bytes_per_sec": 0.5 * 2**30}


@_case(
    "keras.Publisher",
    {"directory": "b", "every_secs": 60.0},
    **_OF_PUBLICATIONS,
    every_n_steps=1,
)
def publisher(**options):
    made = tfs.keras.Publisher(model=_model(), **options)
    return [made.publish(wait=True).manifest.state["full"] for _ in range(2)]


@_case(
    "keras.warm_start",
    {
        "rename": {"variables": "variables"},
        "skip": "optimizer",
        "truncate": True,
        "pad": True,
    },
    source="c",
)
def warm_start(source="c", **options):
    tfs.keras.Checkpoint("c", model=_model()).save(wait=True)
    report = tfs.keras.warm_start(_model(), source, **options)
    return [line.status for line in report.lines]


@_case("keras.SyncReport", {"verbose": 1}, log_dir="logs", every_n_updates=1, verbose=0)
def sync_report(**options):
    model = _model(optimizer=tfs.keras.SyncReplicas("sgd", 1))
    report = tfs.keras.SyncReport(**options)
    model.fit(_IDS, _TARGETS, verbose=0, callbacks=[report])


@_case(
    "keras.SidecarEvaluator",
    checkpoint_dir="c",
    steps=1,
    max_evaluations=1,
    log_dir="logs",
    max_idle_secs=60.0,
)
def sidecar_evaluator(**options):
    tfs.keras.Checkpoint("c", model=_model()).save(wait=True)
    data = tf.data.Dataset.from_tensors((_IDS, _TARGETS))
    return len(tfs.keras.SidecarEvaluator(_model(), data, **options).start())


@_case(
    "data.WorkQueue",
    # The queue is found again by its name, and has another epoch.
    {
        "items": ["a", "b"],
        "num_epochs": None,
        "name": "queue",
        "num_readers": 1,
        "resume": False,
    },
    items=6,
    shuffle=True,
    num_readers=2,
    resume=True,
)
def work_queue(num_readers, resume, **options):
    queue = tfs.data.WorkQueue(**options)
    queue.begin_epoch(resume=resume)
    return [str(x.numpy()) for x in queue.dataset(num_readers=num_readers)]


@_case(
    "distribute.LaunchOptions",
    script="train.py",
    args=["--epochs", "3"],
    chief=True,
    on_worker_failure="stop",
    rpc_layer="grpc",
    inter_op_threads=2,
    intra_op_threads=1,
    gpus_per_worker=0,
)
def launch_options(**options):
    pathlib.Path("train.py").touch()
    made = tfs.distribute.LaunchOptions(**options)
    return [made.command(), made.has_chief, made.worker_failure_policy]


@_case(
    "distribute.Server",
    server_or_cluster_def={"ps": ["localhost:0"]},
    job_name="ps",
    task_index=0,
    protocol="grpc",
    start=False,
)
def server_of_a_script(server_or_cluster_def, **options):
    server = tfs.distribute.Server(server_or_cluster_def, **options)
    task = server.server_def
    return [task.job_name, task.task_index, task.protocol]


@_case(
    "distribute.TaskConfig",
    cluster={"worker": ["a:1", "b:2"], "ps": ["c:3"]},
    task_type="worker",
    task_index=1,
)
def task_config(**options):
    task = tfs.distribute.TaskConfig(**options)
    return [task.address, task.port, task.to_json()]


@_case(
    "distribute.read_tf_config",
    environ={"TF_CONFIG": '{"cluster": {"ps": ["a:1"]}, "task": {"type": "ps"}}'},
)
def read_tf_config(environ):
    return tfs.distribute.read_tf_config(environ).to_json()


def _trained_in_session(make, **options):
    optimizer = make(**options)
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        table = tf.compat.v1.get_variable(
            "table", initializer=tf.ones([4, 2]), use_resource=False
        )
        weight = tf.compat.v1.get_variable(
            "weight", initializer=tf.ones([2]), use_resource=True
        )
        loss = tf.reduce_sum(tf.gather(table, [0, 2]) * weight)
        train_op = optimizer.minimize(loss)
        session.run(tf.compat.v1.global_variables_initializer())
        session.run(train_op)
        values = [x.tolist() for x in session.run([table, weight])]
        return [optimizer.get_name(), values]


for _name, _options in (
    ("AdamAsync", {"rmsprop_momentum": 0.5}),
    ("Adagrad", {}),
    ("Ftrl", {"accum_name": "n", "linear_name": "z", "beta": 1}),
    ("GradientDescent", {}),
    ("Momentum", {"momentum": 0.5}),
):
    _name = f"train.{_name}Optimizer"
    _case(_name, **{"learning_rate": 0.125, "name": "optimizer", **_options})(
        functools.partial(_trained_in_session, _public(_name))
    )


@_case(
    "train.SyncReplicasOptimizer",
    replicas_to_aggregate=1,
    total_num_replicas=1,
    name="sync",
    is_chief=True,
    num_tokens=0,
    log_every_n_steps=1,
    summary_dir="logs",
)
def v1_sync_replicas(**options):
    names = ("is_chief", "num_tokens", "log_every_n_steps", "summary_dir")
    of_hook = {name: options.pop(name) for name in names}
    with tf.Graph().as_default():
        step = tf.compat.v1.train.get_or_create_global_step()
        weight = tf.compat.v1.get_variable("weight", [2])
        inner = tf.compat.v1.train.GradientDescentOptimizer(0.1)
        optimizer = tfs.train.SyncReplicasOptimizer(inner, **options)
        train_op = optimizer.minimize(tf.reduce_sum(weight**2), step)
        optimizer.get_init_tokens_op(of_hook["num_tokens"])
        hook = optimizer.make_session_run_hook(**of_hook)
        with tf.compat.v1.train.MonitoredSession(hooks=[hook]) as session:
            session.run(train_op)
    return optimizer.get_name()


@_case(
    "train.CheckpointSaverHook",
    {"checkpoint_dir": "e", "save_secs": 60.0, "work_queues": "r", "warm_start": "d"},
    checkpoint_dir="d",
    save_steps=1,
    **_OF_CHECKPOINTS,
)
def v1_checkpoints(work_queues, **options):
    if "warm_start" in options:
        v1_checkpoints("q", checkpoint_dir="d", save_steps=1)
    with tf.Graph().as_default():
        queues = {work_queues: tfs.data.WorkQueue(3, name=work_queues)}
        step = tf.compat.v1.train.get_or_create_global_step()
        advance = tf.compat.v1.assign_add(step, 1)
        hook = tfs.train.CheckpointSaverHook(work_queues=queues, **options)
        with tf.compat.v1.train.MonitoredSession(hooks=[hook]) as session:
            session.run(advance)
    return hook.saving.manifest.number > 0


def _serve():
    step = tf.compat.v1.get_variable("global_step", [], tf.int64)
    return {"x": tf.compat.v1.placeholder(tf.int64)}, {"step": tf.identity(step)}


@_case(
    "train.PublisherHook",
    {"directory": "b", "every_secs": 60.0},
    **_OF_PUBLICATIONS,
    every_n_steps=1,
)
def v1_publisher(**options):
    with tf.Graph().as_default():
        step = tf.compat.v1.train.get_or_create_global_step()
        advance = tf.compat.v1.assign_add(step, 1)
        hook = tfs.train.PublisherHook(serve=_serve, **options)
        with tf.compat.v1.train.MonitoredSession(hooks=[hook]) as session:
            session.run(advance)
    return hook.publishing.manifest.state["dense"]


@_case(
    "train.warm_start",
    {"rename": {"global_step": "step"}, "skip": "other", "truncate": True, "pad": True},
    source="d",
)
def v1_warm_start(source="d", **options):
    v1_checkpoints("q", checkpoint_dir="d", save_steps=1)
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        for name in ("step", "other"):
            tf.compat.v1.get_variable(name, [], tf.int64)
        session.run(tf.compat.v1.global_variables_initializer())
        report = tfs.train.warm_start(session, source, **options)
    return [line.status for line in report.lines]


@_case(
    "train.GreedyLoadBalancingStrategy",
    num_tasks=2,
    load_fn=tfs.train.byte_size_load_fn,
)
def greedy_load_balancing(**options):
    strategy = tfs.train.GreedyLoadBalancingStrategy(**options)
    with tf.Graph().as_default():
        ops = [
            tf.raw_ops.VarHandleOp(dtype=tf.float32, shape=[i]).op for i in (3, 2, 1)
        ]
    return [strategy(op) for op in ops]


@_case(
    "train.embedding_lookup",
    combiner="sum",
    transfer_dtype="bfloat16",
)
def v1_lookup(**options):
    parts = [tf.Variable(tf.ones([2, 4])) for _ in range(2)]
    return tfs.train.embedding_lookup(parts, [[0, 3]], **options).shape.as_list()


@_case("train.ConditionalAccumulator", shared_name="a", reduction_type="SUM")
def v1_dense_accumulator(**options):
    accumulator = tfs.train.ConditionalAccumulator(tf.float32, [2], **options)
    # Found again by its name, one step on.
    accumulator.apply_grad([1.0, 2.0], local_step=1)
    return accumulator.take_grad(1).numpy().tolist()


@_case("train.SparseConditionalAccumulator", shared_name="b", reduction_type="CMEAN")
def v1_sparse_accumulator(**options):
    accumulator = tfs.train.SparseConditionalAccumulator(tf.float32, [9, 1], **options)
    accumulator.apply_grad([2], [[1.0]], local_step=1)
    return accumulator.take_grad(1).values.numpy().tolist()


_ACCUMULATOR = {
    "shape": [9, 1],
    "mode": "ROUND",
    "counted": True,
    "container": "box",
    "shared_name": "c",
    "round": 2,
    "num_gradients": 1,
}


@_case("ops.dense_accumulator", **_ACCUMULATOR)
def dense_accumulator(round, num_gradients, **options):
    made = tfs.ops.dense_accumulator(tf.float32, **options)
    tfs.ops.accumulator_apply_dense(made, round, tf.ones([9, 1]))
    taken = tfs.ops.accumulator_take_round_dense(made, round, num_gradients, tf.float32)
    return taken.numpy().tolist()


@_case("ops.sparse_accumulator", **(_ACCUMULATOR | {"shared_name": "d"}))
def sparse_accumulator(round, num_gradients, **options):
    made = tfs.ops.sparse_accumulator(tf.float32, **options)
    tfs.ops.accumulator_apply_sparse(made, round, [2], [[1.0]])
    taken = tfs.ops.accumulator_take_round_sparse(
        made, round, num_gradients, tf.float32
    )
    return taken.values.numpy().tolist()


_ROUNDING = {"seed": 7, "first_row": 1, "row_stride": 3}
_ROUNDED = {"rounding": _ROUNDING}
_ADAM = {"lr": 0.5, "beta1": 0.5, "beta2": 0.75, "epsilon": 1.0}
_RULE = {
    "rule": "momentum",
    "slots": {"momentum": 2.0},
    "numbers": {"lr": 0.5, "momentum": 0.25},
}


def _rounding(options):
    count = tf.Variable([0], dtype=tf.int64)
    return tfs.ops.StochasticRounding(count, **options)


@_case("ops.StochasticRounding", **_ROUNDING)
def stochastic_rounding(**options):
    table = tf.Variable(tf.ones([9, 1], tf.bfloat16))
    tfs.ops.resource_apply_rule(
        *("sgd", table, {}, {"lr": 0.001}, tf.ones([9, 1], tf.bfloat16)),
        rounding=_rounding(options),
    )
    return table.numpy().astype(float).tolist()


def _updated_by(op, rule="adam_async", slots=None, numbers=None, **options):
    """The variable after a step of the op."""
    state = state_of(rule, (9, 1))
    state.rule = rule
    if slots is not None:
        var = {"var": state.values["var"]}
        slots = {k: np.full([9, 1], x, np.float32) for k, x in slots.items()}
        state.values = var | slots
    state.numbers = numbers or {name: options.pop(name) for name in _ADAM}
    if "rounding" in options:
        options["rounding"] = _rounding(options["rounding"])
    indices = [2] if "sparse" in op else None
    grad = np.ones([1 if indices else 9, 1], np.float32)
    mode = "eager" if "resource" in op else "reference"
    return state.step(grad, indices, mode, **options)["var"].tolist()


for _op, _options in (
    ("resource_apply_adam_async", _ADAM | _ROUNDED),
    ("resource_sparse_apply_adam_async", _ADAM | _ROUNDED),
    ("apply_adam_async", _ADAM),
    ("sparse_apply_adam_async", _ADAM),
    ("resource_apply_rule", _RULE | _ROUNDED),
    ("resource_sparse_apply_rule", _RULE | _ROUNDED),
    ("apply_rule", _RULE),
    ("sparse_apply_rule", _RULE),
):
    _case(f"ops.{_op}", **_options)(functools.partial(_updated_by, _op))


@_case(
    "ops.embedding_rows",
    num_rows=6,
    num_shards=2,
    first_rows=[0],
    vocabulary_sizes=[6],
    features=["word"],
    tables=["words"],
    shard_sizes=[4, 2],
)
def embedding_rows(**options):
    rows, _ = tfs.ops.embedding_rows([tf.constant([4, 1])], **options)
    return [x.numpy().tolist() for x in rows]


@_case("ops.embedding_combine", combiners=["mean"])
def embedding_combine(**options):
    (vectors,) = tfs.ops.embedding_combine(
        [tf.ones([2, 1])], [tf.constant([[0, 1]])], **options
    )
    return vectors.numpy().tolist()


@_case("ops.embedding_combine_grad", combiners=["mean"])
def embedding_combine_grad(**options):
    sums = tfs.ops.embedding_combine_grad(
        [tf.ones([1, 1])], [tf.ones([2, 1])], [tf.constant([[0, 1]])], **options
    )
    return sums[0].numpy().tolist()


def _told(made: Any) -> str:
    """The arguments that a result shows, as JSON has them."""
    if hasattr(made, "get_config"):
        return json.dumps(made.get_config())
    return json.dumps(made)


def _public_names() -> list[str]:
    """The functions and classes that have such arguments."""
    found = []
    for prefix in _MODULES:
        module = getattr(tfs, prefix)
        for name in module.__all__:
            public = getattr(module, name)
            is_error = inspect.isclass(public) and issubclass(public, Exception)
            if not is_error and _arguments_of(public):
                found.append(f"{prefix}.{name}")
    return [name for name in found if name not in _EXEMPT]


@pytest.mark.parametrize("name", _public_names())
def test_each_argument_that_may_be_of_numpy_has_a_case(name):
    _, calls = _cases[name]
    missing = set(_arguments_of(_public(name))).difference(*calls)
    # Keras 2 has no such argument, and ours must be None there.
    assert missing <= (set() if _IS_KERAS_3 else {"loss_scale_factor"})


@pytest.mark.ci
@pytest.mark.parametrize(
    ("name", "options"),
    [(name, options) for name, (_, calls) in _cases.items() for options in calls],
)
def test_what_is_of_numpy_is_taken_as_what_is_of_python(
    name, options, tmp_path, monkeypatch
):
    function, _ = _cases[name]
    results = []
    for i, given in enumerate((options, _as_numpy(options))):
        folder = tmp_path / str(i)
        folder.mkdir()
        monkeypatch.chdir(folder)
        tf.keras.utils.set_random_seed(1)
        tf.keras.backend.clear_session()
        results.append(_told(function(**given)))
    assert results[0] == results[1]
