"""Models of TensorFlow Recommenders, trained by tfs.keras.fit on a cluster.

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
import numpy as np
import programs
import pytest

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
models = pytest.mark.parametrize("model", ["retrieval", "ranking", "both tasks"])
ways = pytest.mark.parametrize("way", ["sent", "of workers"])


def trained(is_on_cluster, environment):
    """Runs the program; returns its results by model and way of reading."""
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


@models
@ways
def test_one_worker_trains_as_stock_fit_does_in_one_process(
    in_one_process, on_cluster, model, way
):
    expected = in_one_process[f"{model}, sent"]
    result = on_cluster[1][f"{model}, {way}"]
    assert result["iterations"] == expected["iterations"] == STEPS
    for name, values in expected["metrics"].items():
        assert result["metrics"][name] == pytest.approx(values, rel=1e-4)
    for x, y in zip(result["weights"], expected["weights"], strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-5)


@models
@ways
def test_two_workers_train_on_each_batch_and_learn(on_cluster, model, way):
    result = on_cluster[2][f"{model}, {way}"]
    assert result["iterations"] == STEPS
    for first, *_, last in result["metrics"].values():
        assert last < 0.97 * first
