"""Every private name of TensorFlow and Keras that compat modules use still exists.

If a version lacks one, this test fails with the name, and not a training half way.
"""

import ast
import importlib
import importlib.metadata
import inspect
import pathlib
import pkgutil
import re

import keras_variants
import programs
import pytest
import tensorflow as tf
from packaging.requirements import Requirement

import tf_syncrep as tfs
from tf_syncrep.python import doctor
from tf_syncrep.python.keras import compat
from tf_syncrep.python.keras.compat import data_adapters, private_names
from tf_syncrep.python.keras.compat.native import refuse_old_keras_3

COMPAT = pathlib.Path(inspect.getfile(tfs)).parent / "python" / "keras" / "compat"

CONTEXT = "tensorflow.python.eager.context"

AUTO_CONTROL_DEPS = "tensorflow.python.framework.auto_control_deps"
# What compat modules call so themselves.
OWN = {
    "_adapter",
    "_build_inner",
    "_dataset",
    "_decay_weights",
    "_empty",
    "_history",
    "_is_clipping",
    "_iterators",
    "_make_variables",
    "_manager",
    "_model",
    "_move_averages",
    "_optimizers",
    "_position",
    "_receive",
}


# Coordinators and strategies of clusters have these; see test_fit_passes.py,
# test_fit_workers.py and test_fit.py.
OF_CLUSTERS = {
    "_allow_run_without_coordinator",
    "_cancellation_mgr",
    "_cluster",
    "_dataset_fn",
    "_status",
    "_values",
}
# What modules for any Keras use of the other one; and what they look up by its name.
if keras_variants.IS_KERAS_3:
    OF_OTHER_KERAS = {
        "_is_compiled",
        "_make_class_weight_map_fn",
        "_maybe_load_initial_counters_from_ckpt",
        "_non_trainable_weights",
        "_steps_per_execution",
        "_trainable_weights",
        "_training_state",
    }
    LOOKED_UP = {"_embeddings"}
else:
    OF_OTHER_KERAS = {
        "_default_save_signature",
        "_flatten_metrics_in_order",
        "_initial_epoch",
        "_layers",
        "_model_variables_moving_average",
        "_non_trainable_variables",
        "_trainable_variables",
    }
    LOOKED_UP = {"_generator"}


def modules():
    """The syntax trees of compat modules for this Keras."""
    other = "keras2.py" if keras_variants.IS_KERAS_3 else "keras3.py"
    return [ast.parse(x.read_text()) for x in COMPAT.glob("*.py") if x.name != other]


def names_of_modules():
    """What compat modules import for this Keras, and what they use of that."""
    packages = ("tensorflow.", *(["keras."] if keras_variants.IS_KERAS_3 else []))
    found = set()
    for module in modules():
        imported, nodes = {}, [*ast.walk(module)]
        for node in nodes:
            if isinstance(node, ast.ImportFrom) and node.module.startswith(packages):
                imported.update(
                    {x.asname or x.name: f"{node.module}.{x.name}" for x in node.names}
                )
        found.update(imported.values())
        found.update(
            f"{imported[node.value.id]}.{node.attr}"
            for node in nodes
            if isinstance(node, ast.Attribute)
            and isinstance(node.value, ast.Name)
            and node.value.id in imported
        )
    return sorted(found)


def owners():
    """Objects of stock Keras, in their state after a step."""
    model = keras_variants.small_model()
    model.compile(tf.keras.optimizers.Adam(use_ema=True), loss="mse")
    words, targets = keras_variants.small_data(8)
    model.fit(words, targets, verbose=0)
    with tf.Graph().as_default():
        op = tf.constant(0).op
    dropout = tf.keras.layers.Dropout(0.5)
    dropout.build([1])
    return [
        *(op, model, model.optimizer, model.layers[0], dropout),
        *(tf.function(lambda: None), tf.Variable(0.0)),
        iter(tf.data.Dataset.range(1)),
        getattr(dropout, "_random_generator", None),
        getattr(data_adapters, "_keras_2", None),
        importlib.import_module(AUTO_CONTROL_DEPS).AutomaticControlDependencies(),
        importlib.import_module(CONTEXT).context(),
    ]


@pytest.mark.parametrize(
    "name",
    [
        *names_of_modules(),
        # In these modules others of TensorFlow call what compat modules replace.
        "tensorflow.python.distribute.coordinator.cluster_coordinator.context",
        "tensorflow.python.eager.context.cancellation",
    ],
)
def test_private_names_of_modules_are_there(name):
    pkgutil.resolve_name(name)


def test_private_names_of_objects_are_there():
    """All that are used; those that would vanish in silence have their owners below."""
    used = {
        node.attr
        for module in modules()
        for node in ast.walk(module)
        if isinstance(node, ast.Attribute) and re.match("_[^_]", node.attr)
    }
    elsewhere = OWN | OF_CLUSTERS | OF_OTHER_KERAS
    named = set().union(*private_names._NAMES.values())
    there = set().union(*map(dir, owners()))
    gone = (used | LOOKED_UP) - elsewhere - named - there
    assert gone == set(), "TensorFlow or Keras lacks these"


def test_names_that_would_vanish_in_silence_are_there():
    assert private_names.missing_names() == []


def test_overridden_names_are_among_those_that_are_looked_for():
    optimizer = tf.keras.optimizers.Optimizer
    overridden = {
        name
        for kind in (
            compat.SlotOptimizer,
            compat.ReceivingOptimizer,
        )
        for name, x in vars(kind).items()
        if name.startswith("_") and not name.startswith("__") and callable(x)
    }
    assert overridden - OWN <= set(private_names._NAMES[optimizer])


def _warnings_at_import(caplog):
    private_names.warn_of_untried_keras()
    return caplog.messages


@pytest.mark.parametrize("place", ["class", "instance"])
def test_names_that_have_vanished_are_warned_of_and_a_problem(
    place, monkeypatch, caplog
):
    class Dataset:
        """Has its function under another name, as a later TensorFlow might."""

        def __init__(self, function):
            self._function = function

    name = {"class": "_clip_gradients", "instance": "_dataset_fn"}[place]
    monkeypatch.setattr(private_names, "_NAMES", {Dataset: [name]})
    (line,) = _warnings_at_import(caplog)
    assert f"Dataset.{name}" in line
    report = doctor.Report()
    doctor._examine_private_names(report)
    assert report.facts == [("Private names", f"not Dataset.{name}")]
    assert "pip install 'keras<" in report.problems[0]


def test_no_keras_is_required_as_it_would_overwrite_that_of_tensorflow():
    requires = importlib.metadata.requires("tf_syncrep") or []
    names = {Requirement(text).name for text in requires}
    assert "numpy" in names
    assert not {name for name in names if re.search("keras|tensorflow", name)}


@pytest.mark.parametrize(
    ("version", "warnings"), [("3.16.9", 0), ("3.17.0.dev2027010103", 1), ("4.0.0", 1)]
)
@pytest.mark.skipif(not keras_variants.IS_KERAS_3, reason="Keras 2 ends with 2.15")
def test_a_keras_3_that_was_not_tried_is_warned_of(
    version, warnings, monkeypatch, caplog
):
    monkeypatch.setattr(tf.keras, "__version__", version)
    lines = _warnings_at_import(caplog)
    assert len(lines) == warnings
    assert all(f"was not tried with Keras {version}, only " in line for line in lines)


@pytest.mark.parametrize("minor", range(10))
def test_an_old_keras_3_is_refused(minor):
    with pytest.raises(ImportError, match="needs Keras"):
        refuse_old_keras_3(f"3.{minor}.1")


def test_a_keras_3_in_which_optimizers_would_not_count_is_refused():
    message = r"needs Keras 3\.10 or later: pip .* Received: Keras 3\.9\.2"
    with pytest.raises(ImportError, match=message):
        refuse_old_keras_3("3.9.2")
    refuse_old_keras_3("3.10.0")


def test_internal_name_space_of_tensorflow_merges_calls():
    interim = tf.__internal__.distribute.interim
    assert inspect.signature(interim.maybe_merge_call).parameters.keys() >= {
        "fn",
        "strategy",
    }


MANAGER = """
import threading
from tensorflow.python.eager import cancellation
import tf_syncrep as tfs
from tf_syncrep.python.keras import compat

stock = cancellation.context
assert tfs.keras and stock.__module__ == cancellation.__name__, "replaced at import"
manager = cancellation.CancellationManager()
answers = []

def ask_in_another_thread():
    other = threading.Thread(target=lambda: answers.append(cancellation.context()))
    other.start()
    other.join()

with cancellation.CancellationManagerContext(manager):
    ask_in_another_thread()
    for _ in range(2):
        with compat.apart_from_closures():
            assert cancellation.context() is None
            ask_in_another_thread()
        assert cancellation.context() is manager
assert cancellation.context is not stock
assert answers[1:] == answers[:1] * 2
"""

SCOPE = """
from tensorflow.python.eager import context, executor
import tf_syncrep as tfs

stock = context.executor_scope
assert tfs.keras and stock.__module__ == context.__name__, "replaced at import"
tfs.keras.isolate_workers()
own, waits = executor.new_executor(enable_async=True), []
wait = executor.Executor.wait
executor.Executor.wait = lambda self: (waits.append(self.is_async()), wait(self))
try:
    with context.executor_scope(own):
        assert context.is_async()
        waits.clear()
        raise KeyError
except KeyError:
    assert waits == []
assert not context.is_async()
"""


@pytest.mark.parametrize("program", [MANAGER, SCOPE], ids=["manager", "scope"])
def test_what_closures_run_in_is_replaced_at_first_need(program):
    # The process has imported the package, and must not have needed it before.
    finished = programs.run_source(program)
    assert finished.returncode == 0, finished.stderr
