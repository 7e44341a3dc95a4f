"""tfs.keras.fit with several workers at once, on a cluster of real processes.

Without it, users of Keras 3 have only a loop of scheduled `model.train_step`, which
loses steps: of 400 steps of 3 workers `iterations` had 261, a Mean 249, a Sum 988 of
1600 and a generator of seeds 266; a Mean of ones was 1.06, and some steps drew the same
random numbers.
"""

import pathlib

import clusters
import keras_variants
import programs
import pytest
import sync_accounting

PROGRAM = pathlib.Path(__file__).with_name("fit_workers_program.py")
STEPS, BATCH = 60, 4

pytestmark = [
    pytest.mark.ci,
    pytest.mark.skipif(
        not keras_variants.IS_KERAS_3, reason="Keras 2 has a fit of its own there"
    ),
]


REFUSALS = {
    "run_eagerly": "Steps that run on workers cannot run eagerly. Received: "
    "run_eagerly=True",
    "jit_compile": "XLA cannot compile steps whose variables are on parameter "
    "servers. Received: jit_compile=True",
    "steps_per_execution": 'steps_per_execution must be at least 1, or "auto". '
    "Received: steps_per_execution=0",
    "accumulation": "Keras 3 cannot accumulate gradients under "
    "ParameterServerStrategy. Received: gradient_accumulation_steps=2",
    "two_synchronous": "A model trains with one SyncReplicas, the optimizer that it is "
    "compiled with. Received: second besides that",
    "partitions": "Keras 3 cannot train variables in parts: make the strategy without "
    "variable_partitioner, or use tf_keras (TF_USE_LEGACY_KERAS=1). Received: ",
    "made_outside": "The model must be made in the scope of the strategy. Received: "
    "variable ",
    "optimizer_made_outside": "The optimizer must be made in the scope of the "
    "strategy. Received: ",
    "endless": "`x` has no end, and so `steps_per_epoch` must be given. Received: "
    "steps_per_epoch=None",
    "endless_validation": "`validation_data` has no end, and so `validation_steps` "
    "must be given. Received: validation_steps=None",
    "empty_validation": "`validation_data` must have a batch. Received: an empty "
    "dataset",
    "never_validated": "`validation_freq` must be a whole number of at least 1. "
    "Received: validation_freq=0",
    "function_of_something_else": "A function given for x must return a "
    "tf.data.Dataset. Received: int",
    "dataset_made_outside": "A function given for x must make its dataset from the "
    "beginning, as it is made on each worker. Received: one that uses a dataset made "
    "outside of it",
    "no_steps": "steps_per_epoch must be at least 1. Received: steps_per_epoch=0",
    "empty": "`x` must have a batch. Received: an empty dataset",
    "empty_in_the_end": "`x` must have a batch. Received: an empty dataset",
    "empty_arrays": "`x` must have a batch. Received: an empty dataset",
    "all_made_outside": "The model must be made in the scope of the strategy, or it "
    "trains on the coordinator alone. Received: model ",
    "without_call": "A model without `call` needs a train_step of its own. Received: "
    "model ",
}


@pytest.fixture(scope="module")
def training():
    with clusters.Cluster(num_workers=3, num_ps=2) as cluster:
        yield programs.run(PROGRAM, env=cluster.environment())


@pytest.mark.parametrize(
    "name", ["dataset", "function_and_executions", "finite", "synchronous"]
)
def test_every_step_of_every_worker_counts_once(training, name):
    counts = training["counts"][name]
    assert counts["examples"] == STEPS * BATCH
    assert counts["one"] == 1.0
    assert counts["one_count"] == STEPS
    # None is for the trace that built the model, whose step is separate.
    assert counts["draws"] == STEPS
    if name != "synchronous":
        assert counts["iterations"] == STEPS


def test_synchronous_training_counts_every_update_once(training):
    counts = training["counts"]["synchronous"]
    stats = counts["stats"]
    sync_accounting.assert_identities(stats)
    assert stats["applied"] + stats["late"] + stats["stale"] == STEPS
    # All updates but the last have two gradients.
    assert counts["iterations"] == stats["updates"] == -(-stats["applied"] // 2)


@pytest.mark.parametrize("name", ["dataset", "finite", "synchronous"])
def test_no_two_steps_draw_the_same_random_numbers(training, name):
    assert training["counts"][name]["different_draws"] == STEPS


def test_each_batch_is_evaluated_exactly_once(training):
    evaluation = training["evaluation"]
    assert evaluation["actual"] == pytest.approx(evaluation["expected"], rel=1e-5)


def test_evaluating_and_predicting_again_sends_no_functions_to_tasks(training):
    """Each task would have to answer, a busy or hung one too, before it goes on."""
    assert training["evaluation"]["functions of second calls"] == 0


@pytest.mark.parametrize(
    ("place", "message"),
    [
        ("step", "this step divides by zero"),
        ("data_of_workers", "these words are too large"),
        ("sent_data", "these words are too large"),
        ("callback", "RuntimeError: raised in a callback"),
    ],
)
def test_fit_raises_what_failed_and_the_next_fit_works(training, place, message):
    failure = training["failures"][place]
    assert message in failure["raised"]
    assert failure["seconds"] < 60
    assert failure["steps_of_second_fit"] == 20
    assert not failure["has_ended"]


@pytest.mark.parametrize("what", REFUSALS)
def test_what_cannot_be_is_refused_in_one_sentence(training, what):
    assert training["refusals"][what].startswith(f"ValueError: {REFUSALS[what]}")


@pytest.mark.parametrize(
    ("what", "message"),
    [
        ("empty_on_workers", "There are no batches: the dataset of worker 0 is empty"),
        ("empty_for_a_built_model", "There are no batches: the dataset of worker "),
        ("no_sum", "Received: metric largest, whose update does."),
        ("said_to_be_no_sum", "Received: metric largest, a variable of which has"),
    ],
)
def test_what_a_step_finds_out_is_told_in_one_sentence(training, what, message):
    assert message in training["refusals"][what]


def test_loss_that_is_no_number_is_one_line_of_the_log(training):
    (line,) = training["warnings of NaN"]
    assert line.startswith("fit: the loss is nan, seen first after step 1 of epoch 1.")


def test_tensorboard_without_its_package_is_refused_before_the_first_batch(training):
    board = training["board"]
    assert board["raised"].startswith("ImportError: The TensorBoard callback needs the")
    assert board["batches"] == board["iterations"] == 0


def test_every_example_is_read_by_the_one_worker_whose_shard_it_is_in(training):
    read = training["readers"]
    assert sorted(example for example, _, _ in read) == list(range(12))
    assert all(worker == pipeline == example % 3 for example, worker, pipeline in read)
