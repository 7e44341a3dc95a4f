"""The message of a script that was started without the cluster that it needs."""

import re
import sys

import clusters
import programs
import pytest
import tensorflow as tf

import tf_syncrep as tfs

assert tfs.keras  # it explains what is missing

LAUNCH = "`tf-syncrep launch --workers 2 --ps 1 train.py` starts a cluster"
WITH_EVALUATOR = """
import json, os
config = json.loads(os.environ["TF_CONFIG"])
config["cluster"]["evaluator"] = ["localhost:1"]
os.environ["TF_CONFIG"] = json.dumps(config)
"""
WITHOUT_SERVERS = """
import tensorflow as tf
from tf_syncrep.python.keras import cluster

cluster._PATIENCE_SECS = 0.2
resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
tf.distribute.ParameterServerStrategy(resolver)
"""


def test_strategy_without_a_cluster_names_the_launcher(monkeypatch):
    monkeypatch.delenv("TF_CONFIG", raising=False)
    resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
    with pytest.raises(ValueError, match=f"needs a cluster.*{LAUNCH}.*TF_CONFIG"):
        tf.distribute.ParameterServerStrategy(resolver)


def test_strategy_that_waits_for_servers_names_them_and_the_launcher():
    with clusters.Cluster(1, 1, env=programs.environment(), serving=["ps"]) as cluster:
        cluster.start("chief", [sys.executable, "-c", WITHOUT_SERVERS])
        cluster.wait_for_output("chief", LAUNCH)
        (silent,) = re.findall("do not answer: (.*)\\. `", cluster.output("chief"))
        assert silent == cluster.address("worker-0")


def test_strategy_that_waits_for_an_evaluator_says_who_leaves_it_out():
    with clusters.Cluster(1, 1, env=programs.environment()) as cluster:
        script = WITH_EVALUATOR + WITHOUT_SERVERS
        cluster.start("chief", [sys.executable, "-c", script])
        cluster.wait_for_output("chief", "do not answer: localhost:1. ")
        cluster.wait_for_output(
            "chief",
            "has no job 'evaluator', for whose tasks it would wait: leave it out, as "
            "`tf-syncrep task train.py` does. ",
        )
