"""SyncReplicasOptimizer has the names, errors and arguments of TensorFlow's class.

Tests of claims about both classes run on both.
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


@either
@pytest.mark.parametrize("step_dtype", [tf.int32, tf.int64])
def test_local_step_is_a_local_variable_found_by_its_name(cls, step_dtype, graph):
    _applied(cls, step_dtype=step_dtype)
    variables = {variable.name: variable for variable in tf1.local_variables()}
    assert variables["sync_rep_local_step:0"].dtype.base_dtype == step_dtype
    assert graph.get_operation_by_name("sync_rep_local_step") is not None


@either
def test_only_the_inner_optimizers_variables_are_saved_and_trained(cls):
    optimizer, variable = _applied(cls)
    assert [v.name for v in tf1.global_variables()] == ["step:0", "w:0", "w/Momentum:0"]
    assert [v.name for v in tf1.trainable_variables()] == ["w:0"]
    assert optimizer.get_slot_names() == ["momentum"]
    slot = optimizer.get_slot(variable, name="momentum")
    assert slot.name == "w/Momentum:0"
    assert [v.name for v in optimizer.variables()] == [slot.name]
    assert optimizer.get_name() == "sync_replicas"


@either
def test_init_ops_and_queue_runner_are_there_for_other_styles(cls):
    optimizer, _ = _applied(cls)
    assert isinstance(optimizer.chief_init_op, tf.Operation)
    assert optimizer.local_step_init_op.name
    assert optimizer.ready_for_local_init_op.dtype == tf.string
    tf.group(optimizer.chief_init_op, optimizer.local_step_init_op)
    runner = optimizer.get_chief_queue_runner()
    assert isinstance(runner, tf1.train.QueueRunner)
    assert optimizer.get_chief_queue_runner() is runner


@either
def test_gradients_that_cannot_be_applied_are_an_error(cls):
    variable = tf1.get_variable("w", initializer=[1.0])
    sparse = tf.SparseTensor([[0]], [1.0], [1])
    step = tf1.train.get_or_create_global_step()
    for pairs, step_or_none, message in [
        ([], step, r"^Must supply at least one variable$"),
        ([(sparse, variable)], step, r"^Unknown grad type!$"),
        ([(None, variable)], step, "No gradients provided for any variable"),
        (
            [(tf.ones([1]), variable)],
            None,
            r"^Global step is required to check staleness$",
        ),
    ]:
        with pytest.raises(ValueError, match=message):
            _optimizer(cls).apply_gradients(pairs, global_step=step_or_none)


@pytest.mark.parametrize("step", [0, tf.constant], ids=["number", "tensor"])
def test_global_step_that_is_no_variable_is_an_error_that_names_it(step):
    step = step(0, tf.int64) if callable(step) else step
    pairs = [(tf.ones([1]), tf1.get_variable("w", initializer=[1.0]))]
    with pytest.raises(ValueError, match="global_step") as caught:
        _optimizer(OURS).apply_gradients(pairs, global_step=step)
    rule = "`global_step` must be a variable. Received: "
    assert str(caught.value) == f"{rule}global_step={step!r}"


@either
def test_use_before_apply_gradients_is_an_error(cls):
    optimizer = _optimizer(cls)
    hook = "SyncReplicasOptimizer.apply_gradient should be called before using the hook"
    should = "hould be called after apply_gradients()"
    uses = [
        (optimizer.get_chief_queue_runner, f"S{should}."),
        (optimizer.get_init_tokens_op, f"get_init_tokens_op() s{should}."),
        (optimizer.make_session_run_hook(True).begin, f"{hook}."),
    ]
    if cls is OURS:
        uses.append((optimizer.get_clean_up_op, f"get_clean_up_op() s{should}."))
        uses.append((lambda: optimizer.stats(None), f"S{should}."))
    for use, message in uses:
        with pytest.raises(ValueError, match="apply_gradient") as caught:
            use()
        assert str(caught.value) == message


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
    with tf1.Session() as session, pytest.raises(RuntimeError, match=message):
        hook.after_create_session(session, tf1.train.Coordinator())


def test_replica_id_of_the_oldest_scripts_is_taken_with_a_warning():
    with pytest.warns(DeprecationWarning, match="replica_id has no effect") as caught:
        _optimizer(OURS, replica_id=3)
    assert caught[0].filename == __file__


@pytest.mark.parametrize(
    ("arguments", "rule"),
    [
        ({"total_num_replicas": -1}, "a whole number of at least 1"),
        ({"lease_secs": 0.0}, "a finite number above 0"),
        ({"start_secs": float("nan")}, "a finite number above 0"),
        ({"sparse_reduction_type": "AVERAGE"}, "one of 'MEAN', 'CMEAN' and 'SUM'"),
    ],
    ids=str,
)
def test_argument_out_of_range_is_an_error_that_names_it(arguments, rule):
    ((name, value),) = arguments.items()
    with pytest.raises(ValueError, match="must be") as caught:
        OURS(tf1.train.GradientDescentOptimizer(0.1), 1, **arguments)
    said = str(caught.value).replace("`", "")
    assert said == f"{name} must be {rule}. Received: {name}={value!r}"


@pytest.mark.parametrize("value", [2.5, True, 0, "2", None], ids=repr)
def test_counts_are_refused_in_the_words_of_keras_class(value):
    for make in (
        lambda: OURS(tf1.train.GradientDescentOptimizer(0.1), value),
        lambda: tfs.keras.SyncReplicas(tf.keras.optimizers.SGD(0.1), value),
    ):
        with pytest.raises(ValueError, match="must be a whole") as caught:
            make()
        assert str(caught.value) == (
            "`replicas_to_aggregate` must be a whole number of at least 1. "
            f"Received: replicas_to_aggregate={value!r}"
        )


def test_total_num_replicas_is_replicas_to_aggregate_by_default(graph):
    optimizer, _ = _applied(OURS, 3, None)
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


# Arguments that are passed on to the inner optimizer. None has its default value.
OPTIONS = {
    "gate_gradients": tf1.train.Optimizer.GATE_GRAPH,
    "aggregation_method": tf.AggregationMethod.EXPERIMENTAL_ACCUMULATE_N,
    "colocate_gradients_with_ops": True,
}


class Inner(tf1.train.GradientDescentOptimizer):
    """Notes calls for gradients and names."""

    asked = ()

    def compute_gradients(self, *args, **kwargs):
        self.asked = (args, dict(kwargs))
        return super().compute_gradients(*args, **kwargs)

    def get_slot_names(self, *args, **kwargs):
        self.asked = (args, dict(kwargs))
        return super().get_slot_names()


@either
def test_options_reach_the_optimizer_inside(cls, graph):
    variable, inner = tf1.get_variable("w", initializer=[1.0, 2.0]), Inner(0.5)
    loss, grad_loss = variable**2, tf.constant([3.0, 4.0])
    options = {"var_list": [variable], **OPTIONS, "grad_loss": grad_loss}
    optimizer = cls(inner, 1)
    ((gradient, of),) = optimizer.compute_gradients(loss, **options)
    assert inner.asked == ((loss,), options)
    assert of is variable
    optimizer.compute_gradients(loss, *options.values())
    assert inner.asked == ((loss, *options.values()), {})
    optimizer.minimize(loss, tf1.train.get_or_create_global_step(), **options)
    assert inner.asked == ((loss,), options)
    with tf1.Session(graph=graph) as session:
        session.run(variable.initializer)
        assert session.run(gradient).tolist() == [6.0, 16.0]
    assert optimizer.get_slot_names("some", other="argument") == []
    assert inner.asked == (("some",), {"other": "argument"})


@either
def test_name_is_the_scope_of_its_operations(cls, graph):
    optimizer, _ = _applied(cls, name="mine", use_locking=True)
    assert optimizer.get_name() == "mine"
    # The base class only keeps it.
    assert optimizer._use_locking is True
    names = [op.name for op in graph.get_operations()]
    assert any(name.startswith("mine/") for name in names)
    assert not any(name.startswith("sync_replicas") for name in names)


@either
@pytest.mark.parametrize("how_many", [1, None], ids=["named", "all"])
def test_averages_are_kept_of_the_variables_that_are_named_or_else_of_all(
    cls, how_many
):
    averages = tf1.train.ExponentialMovingAverage(0.5)
    variables = [tf1.get_variable(name, initializer=[1.0]) for name in "ab"]
    optimizer = _optimizer(
        cls,
        variable_averages=averages,
        variables_to_average=how_many and variables[:how_many],
    )
    optimizer.minimize(tf.add_n(variables), tf1.train.get_or_create_global_step())
    kept = [averages.average(variable) is not None for variable in variables]
    assert kept == [True, how_many is None]
