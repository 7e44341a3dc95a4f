"""Reads the cluster in TF_CONFIG, and numbers on the command line, for examples."""

from __future__ import annotations

import argparse

import tensorflow as tf


def resolve(
    start_command: str,
) -> tuple[tf.distribute.cluster_resolver.ClusterResolver, int, int]:
    """Reads TF_CONFIG.

    Args:
        start_command: how to start the script on a cluster, for the message if there is
            none.

    Returns:
        The resolver for a `ParameterServerStrategy`, and the numbers of workers and of
        parameter servers.
    """
    resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
    cluster = resolver.cluster_spec().as_dict()
    workers, servers = len(cluster.get("worker", [])), len(cluster.get("ps", []))
    if not servers or not workers:
        raise SystemExit(
            "There is no cluster in TF_CONFIG. Start this script by: " + start_command
        )
    print(f"Cluster: {workers} workers, {servers} parameter servers.", flush=True)
    return resolver, workers, servers


def positive(text: str) -> int:
    """Converts a command line value that has to be at least 1."""
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1. Received: {number}")
    return number
