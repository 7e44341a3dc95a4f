"""How many tensors the tasks of a cluster send each other in a step of `fit`.

Programs that log them have the servers of a cluster in themselves. Each name in the log
is one RecvTensor: a call from the task that needs a tensor to the task that has it. It
is logged before the tensor comes.
"""

import collections
import contextlib
import gc
import operator
import os
import re
import subprocess
import sys
import tempfile
import traceback
from typing import Any
from unittest import mock

import keras_variants
import numpy as np
import programs
import pytest
import tensorflow as tf
from keras_variants import IS_KERAS_3

import tf_syncrep as tfs
from tf_syncrep.python.distribute import local_cluster, ports
from tf_syncrep.python.keras.transfers import transfers

pytestmark = pytest.mark.ci

# It is read once, when TensorFlow is imported.
ENVIRONMENT = {"TF_CPP_VMODULE": "base_rendezvous_mgr=1", "TF_CPP_MIN_LOG_LEVEL": "0"}

_RECEIVED = re.compile(
    r"RemoteRendezvous Recv \S+ /job:(\w+/replica:\d+/task:\d+)/\S+?;\w+;"
    r"/job:(\w+/replica:\d+/task:\d+)/\S+?;(?:edge_\d+_)?([^;]+);"
)
_CHIEF = "chief/replica:0/task:0"


class Log:
    """The standard error of this process, which goes to a file from now on."""

    def __init__(self):
        self._fd, path = tempfile.mkstemp()
        os.unlink(path)
        os.dup2(self._fd, 2)

    def position(self) -> int:
        """The position of the next line in the log."""
        return os.fstat(self._fd).st_size

    def names_sent_since(self, position: int) -> list[str]:
        """The tensors that one task sent to another, once for each time.

        Tensors that the coordinator has sent are left out.
        """
        size = self.position() - position
        text = os.pread(self._fd, size, position).decode()
        found = _RECEIVED.findall(text)
        return [f"{a} to {b}: {name}" for a, b, name in found if a not in (b, _CHIEF)]


def strategy_of_servers_here(num_ps: int) -> Any:
    """Starts a worker and parameter servers in this process; returns their strategy."""
    reserved = local_cluster.LocalCluster(1, num_ps, True)
    cluster = tf.train.ClusterSpec(reserved.tasks[0].cluster)
    with mock.patch.dict(os.environ, {ports.REUSE_PORT_VARIABLE: "true"}):
        for job, tasks in (("worker", 1), ("ps", num_ps)):
            for task in range(tasks):
                _servers.append(tf.distribute.Server(cluster, job, task, "grpc"))
    reserved.close()  # by now nobody else can have the ports
    resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(
        cluster, task_type="chief", task_id=0, rpc_layer="grpc"
    )
    return tf.distribute.ParameterServerStrategy(resolver)


_servers: list[Any] = []  # they live as long as there are references to them


STEPS = 16
WIDTH = 6
layers = tf.keras.layers
keras = tf.keras
NUM_PS = 2
# For a step of one worker: messages from each server and to it, and the step's result.
FEWEST = 2 * NUM_PS + 1
LIMITS = {
    "two_layers": FEWEST,
    "shared_layers": FEWEST,
    "mixed_precision": FEWEST,
    "regularizers": FEWEST,
    "frozen": FEWEST,
    "without_gradient": FEWEST,
    "dropout": FEWEST,
    # Updated variables are sent to the worker, and back after their constraints.
    "constraints": 2 * FEWEST - 1,
    # Averages are read, assigned, and read again when the layer is called again.
    "batch_normalization": 2 * FEWEST - 1,
    "assigned_between_reads": FEWEST + 2,
    # Besides, there are row numbers. Rows and their gradients bring the others along.
    "embeddings": FEWEST + 1,
    "distributed_embedding": FEWEST + NUM_PS,
    "growing_tables": FEWEST + NUM_PS,
}
# A server that is not the gate's tells the worker that it has made a gradient.
OF_GROWING_TABLES = 1
# A worker tells the gate who it is, once in an execution.
OF_THE_GATE = 1
# The gate's permit, its answer, and the end of the pushes.
OF_A_STEP_BETWEEN_SERVERS = 3
# The round, the learning rate, and the end of what the other server does.
OF_AN_UPDATE = 3
# With Keras 2, where no counter is sent, some models send the fewest messages anyway.
is_fewer = operator.lt if IS_KERAS_3 else operator.le


def inputs_and(*hidden):
    """A model whose layers are in sequence."""
    return keras.Sequential([layers.Input((WIDTH,)), *hidden, layers.Dense(1)])


def two_layers():
    return inputs_and(layers.Dense(8, activation="tanh"))


def twenty_layers():
    return inputs_and(*(layers.Dense(8, activation="tanh") for _ in range(19)))


def shared_layers():
    shared = layers.Dense(WIDTH, activation="tanh")
    x = layers.Input((WIDTH,))
    return keras.Model(x, layers.Dense(1)(shared(shared(x) + x)))


def mixed_precision():
    return inputs_and(
        layers.Dense(8, activation="tanh", dtype="mixed_bfloat16"),
        layers.Dense(8, activation="tanh", dtype="mixed_bfloat16"),
        layers.Activation("linear", dtype="float32"),
    )


def constraints():
    kinds = [keras.constraints.MaxNorm(0.7), keras.constraints.NonNeg()]
    return inputs_and(
        *(
            layers.Dense(8, "tanh", kernel_constraint=x, bias_constraint=x)
            for x in kinds
        )
    )


def regularizers():
    l1_l2 = keras.regularizers.L1L2(0.01, 0.02)
    return inputs_and(
        layers.Dense(
            8,
            "tanh",
            kernel_regularizer=l1_l2,
            bias_regularizer=l1_l2,
            activity_regularizer=l1_l2,
        )
    )


def frozen():
    return inputs_and(layers.Dense(8, "tanh", trainable=False), layers.Dense(8, "tanh"))


class Unused(layers.Layer):
    """Has a weight that does not matter."""

    def build(self, shape):
        del shape
        self.unused = self.add_weight(shape=(3,), initializer="ones", name="unused")
        self.used = self.add_weight(shape=(), initializer="ones", name="used")

    def call(self, x):
        return x * self.used


def without_gradient():
    return inputs_and(layers.Dense(8, "tanh"), Unused())


def batch_normalization():
    normalized = layers.BatchNormalization(momentum=0.5)
    x = layers.Input((WIDTH,))
    # It is called twice, so that a step reads its averages, assigns them, and reads
    # them again.
    y = normalized(layers.Dense(WIDTH)(normalized(x)))
    return keras.Model(x, layers.Dense(1)(layers.BatchNormalization()(y)))


def dropout():
    return inputs_and(
        layers.Dropout(0.5, seed=3),
        layers.Dense(8, "tanh"),
        layers.GaussianNoise(0.5),
        layers.Dropout(0.3),
    )


class AssignedBetweenReads(layers.Layer):
    """Reads a variable, assigns it, and reads it again."""

    def build(self, shape):
        del shape
        self.counted = self.add_weight(
            shape=(), initializer="zeros", trainable=False, name="counted"
        )
        self.scale = self.add_weight(shape=(), initializer="ones", name="scale")

    def call(self, x):
        before = tf.identity(keras_variants.native(self.counted))
        self.counted.assign(self.counted + tf.reduce_mean(x * self.scale))
        after = tf.identity(keras_variants.native(self.counted))
        self.counted.assign_add(1.0)
        return x * (after - before) + keras_variants.native(self.counted) * 0.01


def assigned_between_reads():
    return inputs_and(layers.Dense(8, "tanh"), AssignedBetweenReads())


def embeddings():
    x = layers.Input((WIDTH,))
    ids = layers.Lambda(lambda x: tf.cast(x * 10, tf.int32))(x)
    words = tfs.keras.Embedding(20, 4, shards=1)(ids)
    y = layers.Concatenate()([layers.Flatten()(words), x])
    return keras.Model(x, layers.Dense(1)(layers.Dense(8, "tanh")(y)))


def distributed_embedding(vocabulary_size=20):
    names = [f"table_{i}" for i in range(WIDTH)]
    configs = [tfs.keras.TableConfig(name, vocabulary_size, 4) for name in names]
    tables = tfs.keras.DistributedEmbedding(
        [tfs.keras.FeatureConfig(config.name, config) for config in configs]
    )
    x = layers.Input((WIDTH,))
    ids = layers.Lambda(
        lambda x: tf.cast(x * 10, tf.int32), output_shape=(WIDTH,), dtype="int32"
    )(x)
    vectors = tables([ids[:, i] for i in range(WIDTH)])
    return keras.Model(x, layers.Dense(1)(layers.Concatenate()([*vectors, x])))


def growing_tables():
    return distributed_embedding(tfs.keras.Dynamic(64))


def averaged(rate):
    options = {"ema_momentum": 0.5, "ema_overwrite_frequency": 3}
    return tfs.keras.AdamAsync(rate, use_ema=True, **options)


OPTIMIZERS = {
    "AdamAsync": tfs.keras.AdamAsync,
    "Adam": keras.optimizers.Adam,
    "averaged": averaged,
    "clipped": lambda rate: tfs.keras.AdamAsync(
        rate, global_clipnorm=0.1, weight_decay=0.01
    ),
    "scheduled": lambda rate: keras.optimizers.SGD(keras_variants.slow_decay(rate)),
}


def trained(strategy, log, name, optimizer, is_synchronous, per_execution):
    """All variables after a training, and the messages of a step."""
    random = np.random.default_rng(0)
    x = random.uniform(0, 1, (4 * STEPS, WIDTH)).astype(np.float32)
    y = x.sum(axis=1, keepdims=True)

    def data(_):
        return tf.data.Dataset.from_tensor_slices((x, y)).batch(4).repeat()

    keras.utils.set_random_seed(1)
    with strategy.scope():
        model = globals()[name]()
        used = OPTIMIZERS[optimizer](0.0625)
        if is_synchronous:
            used = tfs.keras.SyncReplicas(used, 1, 1, spares=False)
        model.compile(used, "mse", steps_per_execution=per_execution)
        used.build(model.trainable_variables)
    begin = log.position()
    tfs.keras.fit(model, data, steps_per_epoch=STEPS, verbose=0)
    sent = collections.Counter(log.names_sent_since(begin))
    # Each execution sends the same; other messages are sent only a few times. The
    # worker takes no part in updates of SyncReplicas, and in reads by the coordinator.
    executions = STEPS // per_execution
    in_steps = {
        name: n for name, n in sent.items() if n >= executions and "worker/" in name
    }
    # An update's function is called again where a round takes long, so that their names
    # are counted.
    between_servers = [
        name
        for name, n in sent.items()
        if n >= executions and not any(x in name for x in ("worker/", "chief/"))
    ]
    variables = keras_variants.all_variables(model)
    return {
        "messages": sum(in_steps.values()) / STEPS,
        "between_servers": between_servers,
        "sent": in_steps,
        "values": [keras_variants.native(x).numpy() for x in variables],
    }


def compare(names, optimizer, is_synchronous, per_execution):
    """Trains each model with joined messages, and as stock TensorFlow sends them."""
    log = Log()
    strategy = strategy_of_servers_here(num_ps=NUM_PS)
    stock = mock.patch.object(transfers._Transfers, "join")
    options = optimizer, is_synchronous, per_execution
    found = {}
    for name in names:
        sides = {}
        for side, context in (("joined", contextlib.nullcontext()), ("stock", stock)):
            # Variables go where the fewest bytes are: none of models that are gone.
            gc.collect()
            with context:
                sides[side] = trained(strategy, log, name, *options)
        values = [sides[side].pop("values") for side in ("joined", "stock")]
        found[name] = {
            **sides,
            "differ": [
                i
                for i, (a, b) in enumerate(zip(*values, strict=True))
                if not np.array_equal(a, b)
            ],
            "is_finite": all(np.all(np.isfinite(x)) for x in values[0]),
        }
    return found


def compare_and_say_errors(*arguments):
    try:
        return compare(*arguments)
    except BaseException:
        traceback.print_exc(file=sys.stdout)  # stderr goes into the log
        raise


def results(models, is_synchronous, per_execution, optimizer="AdamAsync"):
    """The program's results for models, in a process that logs its messages."""
    arguments = (list(models), optimizer, is_synchronous, per_execution)
    finished = subprocess.run(
        programs.call_command(compare_and_say_errors, *arguments),
        env={**os.environ, **programs.environment(), **ENVIRONMENT},
        # Not where the package's sources are, which have no op library.
        cwd=os.path.dirname(__file__),
        capture_output=True,
        text=True,
        check=False,
    )
    assert finished.returncode == 0, finished.stdout[-5000:]
    return programs.result_in(finished.stdout)


@pytest.mark.parametrize(
    ("models", "is_synchronous", "per_execution"),
    [
        (tuple(LIMITS), False, 1),
        pytest.param(tuple(LIMITS), False, 8, marks=pytest.mark.slow),
        pytest.param(tuple(LIMITS), True, 1, marks=pytest.mark.slow),
        (("batch_normalization", "distributed_embedding"), True, 8),
    ],
)
def test_few_messages_and_the_same_bits(models, is_synchronous, per_execution):
    for name, result in results(models, is_synchronous, per_execution).items():
        assert result["differ"] == [], name
        assert result["is_finite"], name
        limit = LIMITS[name]
        if is_synchronous:
            limit += OF_THE_GATE / per_execution
            limit += OF_GROWING_TABLES * (name == "growing_tables")
        joined, stock = result["joined"], result["stock"]
        assert joined["messages"] <= limit, (name, limit, result)
        assert is_fewer(joined["messages"], stock["messages"]), (name, result)
        if name == "distributed_embedding" and is_synchronous and IS_KERAS_3:
            # Updates of Keras 2 compute on the gate's server what another one needs.
            most = OF_A_STEP_BETWEEN_SERVERS * per_execution + OF_AN_UPDATE
            assert len(joined["between_servers"]) <= most, (name, result)


def gradients_outside():
    """Gradients that are taken after the context, with and without joined messages."""
    strategy = strategy_of_servers_here(num_ps=NUM_PS)
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
    sizes = {"fixed": 20, "grows": tfs.keras.Dynamic(64)}
    with strategy.scope():
        tables = [tfs.keras.TableConfig(name, size, 4) for name, size in sizes.items()]
        tables = tfs.keras.DistributedEmbedding(
            [tfs.keras.FeatureConfig(config.name, config) for config in tables]
        )
        tables.build()
        weights = [tf.Variable(tf.range(4.0) + i) for i in range(NUM_PS)]
    ids = [tf.constant([[1, 2], [3, 3]]), tf.constant([[2, 3], [4, 4]])]
    variables = [*map(keras_variants.native, tables.trainable_variables), *weights]

    def found(context):
        def replica():
            with tf.GradientTape() as tape, context():
                vectors = tables(ids, training=True)
                loss = tf.reduce_sum(tf.add_n([*map(tf.multiply, vectors, weights)]))
            return [*map(tf.convert_to_tensor, tape.gradient(loss, variables))]

        step = tf.function(lambda: strategy.run(replica))
        gradients = coordinator.schedule(step).fetch()
        kinds = {op.type for op in step.get_concrete_function().graph.get_operations()}
        return "Syncrep>RowMessage" in kinds, [
            np.asarray(x).tolist() for x in gradients
        ]

    return found(tfs.keras.few_messages), found(contextlib.nullcontext)


def test_gradients_may_be_taken_after_the_context():
    joined, stock = programs.call(gradients_outside)
    assert (joined[0], stock[0]) == (True, False)  # rows bring others along
    assert joined[1] == stock[1]


@pytest.mark.parametrize(
    "is_synchronous", [False, pytest.param(True, marks=pytest.mark.slow)]
)
def test_many_layers_send_as_few_messages_as_two(is_synchronous):
    result = results(["twenty_layers"], is_synchronous, 1)["twenty_layers"]
    assert result["differ"] == []
    assert result["joined"]["messages"] <= FEWEST + OF_THE_GATE * is_synchronous
    assert result["stock"]["messages"] > 40


@pytest.mark.parametrize(
    "optimizer",
    [
        pytest.param("Adam", marks=pytest.mark.slow),
        pytest.param("averaged", marks=pytest.mark.slow),
        "clipped",
        pytest.param("scheduled", marks=pytest.mark.slow),
    ],
)
def test_optimizers_have_the_same_bits(optimizer):
    models = ["batch_normalization", "embeddings"]
    for name, result in results(models, False, 1, optimizer).items():
        assert result["differ"] == [], name
        joined, stock = result["joined"], result["stock"]
        assert is_fewer(joined["messages"], stock["messages"] / 1.5), result
