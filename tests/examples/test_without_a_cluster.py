"""Examples that need a cluster say so if they are started without one."""

import os
import pathlib

import programs
import pytest
import tensorflow as tf

import tf_syncrep as tfs

EXAMPLES = pathlib.Path(__file__).parents[2] / "examples"
NO_SERVERS = tfs.distribute.TaskConfig({"worker": ["127.0.0.1:1"]}, "worker", 0)
HAS_ESTIMATOR = tuple(map(int, tf.__version__.split(".")[:2])) < (2, 16)


def run(script, *args):
    env = os.environ | {"TF_CONFIG": NO_SERVERS.to_json()}
    return programs.run_script(EXAMPLES / script, *args, env=env, secs=120)


@pytest.mark.parametrize(
    ("script", "args", "options"),
    [
        ("criteo_dlrm.py", ["--lines=100", "--output=."], "--workers 3 --ps 2"),
        ("word_vectors.py", ["--output=."], "--workers 2 --ps 2"),
        ("movielens.py", ["--training=sync"], "--workers 2 --ps 2"),
        ("movielens.py", ["--training=backup"], "--workers 3 --ps 2"),
        ("online.py", [], "--workers 2 --ps 2"),
        ("sync_session.py", [], "--workers 2 --ps 2 --run-script-on workers"),
    ],
)
def test_without_parameter_servers_it_says_how_to_start_it(
    script, args, options, tmp_path
):
    if script in ("movielens.py", "online.py", "word_vectors.py"):
        pytest.importorskip("matplotlib", reason="the example draws with matplotlib")
    result = run(script, *(arg.replace("=.", f"={tmp_path}") for arg in args))
    assert result.returncode == 1
    assert f"by: tf-syncrep launch {options} examples/{script}" in result.stderr


@pytest.mark.skipif(HAS_ESTIMATOR, reason="this TensorFlow has Estimator")
def test_without_estimator_it_says_which_tensorflow_has_it():
    result = run("sync_estimator.py")
    assert result.returncode == 1
    said = f"2.15 was the last to have. Found: TensorFlow {tf.__version__}."
    assert said in result.stderr
    assert "Traceback" not in result.stderr
