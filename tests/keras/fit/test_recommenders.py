"""A model of TensorFlow Recommenders, trained by tfs.keras.fit on a cluster.

Its tasks branch on tensors, which AutoGraph has to convert, and its models have a
`train_step` of their own. It needs Keras 2, whichever Keras the other tests are run
with; so its programs do not come from the fork server, which has imported one.
"""

import importlib.util
import json
import pathlib
import sys

import clusters
import commands
import keras_variants
import programs
import pytest
from same import assert_same

PROGRAM = pathlib.Path(__file__).parent / "recommenders_program.py"
STEPS = 3 * 20
HAS_TF_KERAS = importlib.util.find_spec("tf_keras") is not None

pytestmark = [
    pytest.mark.slow,
    pytest.mark.one_version,
    pytest.mark.skipif(
        not importlib.util.find_spec("tensorflow_recommenders"),
        reason="needs tensorflow-recommenders",
    ),
    pytest.mark.skipif(
        keras_variants.IS_KERAS_3 and not HAS_TF_KERAS, reason="needs Keras 2"
    ),
]
ways = pytest.mark.parametrize("way", ["sent", "of workers"])


def trained(is_on_cluster, environment):
    """Runs the program; returns its results by way of reading."""
    env = {
        **environment,
        **programs.environment(),
        "TF_USE_LEGACY_KERAS": "1" if HAS_TF_KERAS else None,
    }
    arguments = [PROGRAM, json.dumps(is_on_cluster)]
    ended = commands.run(*arguments, program=[sys.executable], env=env)
    assert ended.process.returncode == 0, ended.output
    return programs.result_in("\n".join(ended.stdout))


@pytest.fixture(scope="module")
def in_one_process():
    return trained(False, {"TF_CONFIG": None})


@pytest.fixture(scope="module")
def on_cluster():
    results = {}
    for num_workers in (1, 2):
        with clusters.Cluster(num_workers=num_workers, num_ps=2) as cluster:
            results[num_workers] = trained(True, cluster.environment())
    return results


@ways
def test_one_worker_trains_as_stock_fit_does_in_one_process(
    in_one_process, on_cluster, way
):
    expected = in_one_process["sent"]
    result = on_cluster[1][way]
    assert result["iterations"] == expected["iterations"] == STEPS
    for name, values in expected["metrics"].items():
        assert result["metrics"][name] == pytest.approx(values, rel=1e-4)
    assert_same(result["weights"], expected["weights"], 1e-4)


@ways
def test_two_workers_train_on_each_batch_and_learn(on_cluster, way):
    result = on_cluster[2][way]
    assert result["iterations"] == STEPS
    for first, *_, last in result["metrics"].values():
        assert last < 0.97 * first
