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
