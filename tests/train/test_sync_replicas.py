"""SyncReplicasOptimizer shows what TensorFlow's class shows: names, errors, arguments.

Claims about both classes run on both.
"""

import pytest
import signatures
import tensorflow as tf

import tf_syncrep as tfs

tf1 = tf.compat.v1

STOCK = tf1.train.SyncReplicasOptimizer
OURS = tfs.train.SyncReplicasOptimizer

either = pytest.mark.parametrize("cls", [STOCK, OURS], ids=["stock", "ours"])


@pytest.fixture(autouse=True)
def graph():
    with tf.Graph().as_default() as graph:
        yield graph


def _optimizer(cls, quorum=1, total=1, **arguments):
    inner = tf1.train.MomentumOptimizer(0.1, 0.9)
    return cls(inner, quorum, total, **arguments)


def _applied(cls, *args, step_dtype=tf.int64, **arguments):
    """An optimizer whose train op was built, and the trained variable."""
    optimizer = _optimizer(cls, *args, **arguments)
    step = tf1.get_variable(
        "step", initializer=tf.constant(0, step_dtype), trainable=False
    )
    variable = tf1.get_variable("w", initializer=[1.0, 2.0])
    optimizer.minimize(tf.reduce_sum(variable**2), global_step=step)
    return optimizer, variable


def test_constructor_and_methods_take_the_arguments_of_tensorflows_class():
    assert len(signatures.assert_takes_the_arguments_of(STOCK, OURS)) >= 9


def test_gate_constants_are_those_of_tensorflows_class():
    for name in ("GATE_NONE", "GATE_OP", "GATE_GRAPH"):
        assert getattr(OURS, name) == getattr(STOCK, name)


@either
@pytest.mark.parametrize("step_dtype", [tf.int32, tf.int64])
def test_local_step_is_a_local_variable_found_by_its_name(cls, step_dtype, graph):
    _applied(cls, step_dtype=step_dtype)
    names = [variable.name for variable in tf1.local_variables()]
    assert "sync_rep_local_step:0" in names
    (local_step,) = [
        variable
        for variable in tf1.local_variables()
        if variable.name == "sync_rep_local_step:0"
    ]
    assert local_step.dtype.base_dtype == step_dtype
    assert graph.get_operation_by_name("sync_rep_local_step") is not None


@either
def test_only_the_inner_optimizers_variables_are_saved_and_trained(cls):
    optimizer, variable = _applied(cls)
    assert [v.name for v in tf1.global_variables()] == ["step:0", "w:0", "w/Momentum:0"]
    assert [v.name for v in tf1.trainable_variables()] == ["w:0"]
    assert optimizer.get_slot_names() == ["momentum"]
    slot = optimizer.get_slot(variable, "momentum")
    assert slot.name == "w/Momentum:0"
    assert [v.name for v in optimizer.variables()] == [slot.name]
    assert optimizer.get_name() == "sync_replicas"


@either
def test_init_ops_can_be_grouped_with_others_and_run_by_themselves(cls):
    optimizer, _ = _applied(cls)
    assert isinstance(optimizer.chief_init_op, tf.Operation)
    assert optimizer.local_step_init_op.name
    assert optimizer.ready_for_local_init_op.dtype == tf.string
    tf.group(optimizer.chief_init_op, optimizer.local_step_init_op)


@either
def test_chief_queue_runner_is_the_same_at_each_call(cls):
    optimizer, _ = _applied(cls)
    runner = optimizer.get_chief_queue_runner()
    assert isinstance(runner, tf1.train.QueueRunner)
    assert optimizer.get_chief_queue_runner() is runner


@either
def test_no_gradients_are_an_error(cls):
    with pytest.raises(ValueError, match=r"^Must supply at least one variable$"):
        _optimizer(cls).apply_gradients([])


@either
def test_no_global_step_is_an_error(cls):
    variable = tf1.get_variable("w", initializer=1.0)
    with pytest.raises(
        ValueError, match=r"^Global step is required to check staleness$"
    ):
        _optimizer(cls).minimize(variable**2)


@either
def test_gradient_of_an_unknown_type_is_an_error(cls):
    variable = tf1.get_variable("w", initializer=[1.0])
    step = tf1.train.get_or_create_global_step()
    gradient = tf.SparseTensor([[0]], [1.0], [1])
    with pytest.raises(ValueError, match=r"^Unknown grad type!$"):
        _optimizer(cls).apply_gradients([(gradient, variable)], global_step=step)


@either
def test_only_absent_gradients_are_an_error(cls):
    variable = tf1.get_variable("w", initializer=[1.0])
    step = tf1.train.get_or_create_global_step()
    with pytest.raises(ValueError, match="No gradients provided for any variable"):
        _optimizer(cls).apply_gradients([(None, variable)], global_step=step)


@either
@pytest.mark.parametrize(
    ("use", "message"),
    [
        (
            lambda optimizer: optimizer.get_chief_queue_runner(),
            r"^Should be called after apply_gradients\(\)\.$",
        ),
        (
            lambda optimizer: optimizer.get_init_tokens_op(),
            r"^get_init_tokens_op\(\) should be called after apply_gradients\(\)\.$",
        ),
        (
            lambda optimizer: optimizer.make_session_run_hook(True).begin(),
            r"^SyncReplicasOptimizer.apply_gradient should be called before using "
            r"the hook\.$",
        ),
    ],
    ids=["queue_runner", "tokens", "hook"],
)
def test_use_before_apply_gradients_is_an_error(cls, use, message):
    with pytest.raises(ValueError, match=message):
        use(_optimizer(cls))


def test_clean_up_op_before_apply_gradients_is_an_error():
    message = r"^get_clean_up_op\(\) should be called after apply_gradients\(\)\.$"
    with pytest.raises(ValueError, match=message):
        _optimizer(OURS).get_clean_up_op()


def test_stats_before_apply_gradients_are_an_error():
    with pytest.raises(ValueError, match=r"^Should be called after apply_gradients"):
        _optimizer(OURS).stats(None)


@either
def test_too_few_tokens_are_an_error(cls):
    optimizer, _ = _applied(cls, 3, 1)
    message = r"^Too few tokens to finish the first step: 1 \(given\) vs 2 \(needed\)$"
    with pytest.raises(ValueError, match=message):
        optimizer.get_init_tokens_op(1)
    with pytest.raises(ValueError, match="Too few tokens"):
        optimizer.make_session_run_hook(True, num_tokens=0).begin()
    assert optimizer.get_init_tokens_op(2) is not None
    assert optimizer.get_init_tokens_op(num_tokens=-1) is not None


@either
def test_no_tokens_are_a_no_op(cls):
    optimizer, _ = _applied(cls)
    assert optimizer.get_init_tokens_op(0).type == "NoOp"


@either
def test_session_without_initialized_variables_is_an_error(cls):
    optimizer, _ = _applied(cls)
    hook = optimizer.make_session_run_hook(True)
    hook.begin()
    message = (
        r"^Init operations did not make model ready for SyncReplicasOptimizer "
        rf"local_init. Init op: {optimizer.chief_init_op.name}, error: .*"
        r"Variables not initialized: step, w"
    )
    with (
        tf1.Session() as session,
        pytest.raises(RuntimeError, match=message),
    ):
        hook.after_create_session(session, tf1.train.Coordinator())


def test_replica_id_of_the_oldest_scripts_is_taken_with_a_warning():
    with pytest.warns(DeprecationWarning, match="replica_id has no effect") as caught:
        _optimizer(OURS, replica_id=3)
    assert caught[0].filename == __file__


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            {"quorum": 0},
            "`replicas_to_aggregate` must be a whole number of at least 1. "
            "Received: replicas_to_aggregate=0",
        ),
        (
            {"quorum": 2.5},
            "`replicas_to_aggregate` must be a whole number of at least 1. "
            "Received: replicas_to_aggregate=2.5",
        ),
        (
            {"total": -1},
            "`total_num_replicas` must be a whole number of at least 1. "
            "Received: total_num_replicas=-1",
        ),
        (
            {"lease_secs": 0.0},
            "`lease_secs` must be a finite number above 0. Received: lease_secs=0.0",
        ),
        (
            {"start_secs": float("nan")},
            "`start_secs` must be a finite number above 0. Received: start_secs=nan",
        ),
        (
            {"sparse_reduction_type": "AVERAGE"},
            "sparse_reduction_type must be one of 'MEAN', 'CMEAN' and 'SUM'. "
            "Received: sparse_reduction_type='AVERAGE'",
        ),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_argument_out_of_range_is_an_error_that_names_it(arguments, message):
    with pytest.raises(ValueError, match="must be") as caught:
        _optimizer(OURS, **arguments)
    assert str(caught.value) == message


def test_total_num_replicas_is_replicas_to_aggregate_by_default(graph):
    inner = tf1.train.GradientDescentOptimizer(0.1)
    optimizer = OURS(inner, 3)
    step = tf1.train.get_or_create_global_step()
    variable = tf1.get_variable("w", initializer=[1.0])
    optimizer.minimize(tf.reduce_sum(variable), global_step=step)
    with tf1.Session(graph=graph) as session:
        stats = optimizer.stats(session)
    assert (stats["quorum"], stats["total"]) == (3, 3)


def test_gates_of_two_optimizers_are_told_apart_by_name_whatever_their_order():
    def gates(*names):
        with tf.Graph().as_default() as graph:
            step = tf1.train.get_or_create_global_step()
            loss = tf1.get_variable("w", initializer=1.0) ** 2
            found = {}
            for name in names:
                before = set(graph.get_operations())
                _optimizer(OURS, name=name).minimize(loss, step)
                (gate,) = (
                    op
                    for op in graph.get_operations()
                    if op not in before and op.type == "Syncrep>SyncGate"
                )
                found[name] = gate.get_attr("shared_name")
        return found

    assert gates("one", "other") == gates("other", "one")


def test_install_v1_names_puts_it_in_place_of_tensorflows_class(monkeypatch):
    for module in (tf1.train, tf.compat.v2.compat.v1.train, tf1.compat.v1.train):
        monkeypatch.setattr(module, "SyncReplicasOptimizer", STOCK)
    tfs.install_v1_names()
    assert tf1.train.SyncReplicasOptimizer is OURS


def test_what_keras_has_is_refused_as_the_optimizer_inside():
    with pytest.raises(ValueError, match=r"tfs.keras.SyncReplicas\. Received: opt of"):
        OURS(tf.keras.optimizers.SGD(0.1), 2)


@pytest.mark.parametrize("wrong", [1.0, "w", None, [2.0]], ids=repr)
def test_what_is_no_variable_is_refused_in_var_list(wrong):
    optimizer = _optimizer(OURS)
    variable = tf1.get_variable("w", initializer=[1.0])
    with pytest.raises(ValueError, match=r"must hold variables\. Received: .* in var_"):
        optimizer.compute_gradients(variable**2, var_list=[variable, wrong])


def test_tensors_have_gradients_that_cannot_be_applied():
    optimizer = _optimizer(OURS)
    variable = tf1.get_variable("w", initializer=[1.0])
    tensor = variable * 2
    ((gradient, of),) = optimizer.compute_gradients(tensor**2, [tensor])
    assert of is tensor
    with pytest.raises(ValueError, match=r"with variables\. Received: <tf\.Tensor"):
        optimizer.apply_gradients(
            [(gradient, tensor)], tf1.train.get_or_create_global_step()
        )


@pytest.mark.parametrize("value", [2.5, True, 0, "2", None], ids=repr)
def test_counts_are_refused_in_the_words_of_keras_class(value):
    said = []
    for make in (
        lambda: OURS(tf1.train.GradientDescentOptimizer(0.1), value),
        lambda: tfs.keras.SyncReplicas(tf.keras.optimizers.SGD(0.1), value),
    ):
        with pytest.raises(
            ValueError, match="`replicas_to_aggregate` must be"
        ) as caught:
            make()
        said.append(str(caught.value))
    assert said[0] == said[1]


STRATEGIES = {
    "MirroredStrategy": lambda: tf.distribute.MirroredStrategy(["CPU:0"]),
    "ParameterServerStrategyV1": tf1.distribute.experimental.ParameterServerStrategy,
}


@pytest.mark.parametrize("place", ["a tf.function", *STRATEGIES])
def test_places_without_a_v1_graph_are_refused_with_what_to_use(place):
    optimizer = _optimizer(OURS)
    variable = tf1.get_variable("w", initializer=[1.0])
    step = tf1.train.get_or_create_global_step()
    message = rf"tfs\.keras\.SyncReplicas\. Received: a call in .*{place}$"

    def use():
        with pytest.raises(RuntimeError, match=message):
            optimizer.minimize(variable**2, step)
        with pytest.raises(RuntimeError, match=message):
            optimizer.apply_gradients([(tf.ones([1]), variable)], step)

    if place in STRATEGIES:
        with STRATEGIES[place]().scope():
            use()
    else:
        tf.function(use, autograph=False)()


def test_it_is_an_instance_of_tensorflows_class_and_uses_nothing_of_it():
    assert isinstance(_optimizer(OURS), STOCK)
    methods = {name for name, value in vars(STOCK).items() if callable(value)}
    assert len(methods) >= 9
    assert methods - set(vars(OURS)) == set()
