"""Connects examples to the cluster in TF_CONFIG; reads numbers on the command line."""

from __future__ import annotations

import argparse

import tensorflow as tf


def connect(
    start_command: str,
) -> tuple[tf.distribute.ParameterServerStrategy, int]:
    """Connects to the cluster in TF_CONFIG; returns also how many workers it has.

    If there is no cluster, the message says by which command to start the script.
    """
    resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
    cluster = resolver.cluster_spec().as_dict()
    workers, servers = len(cluster.get("worker", [])), len(cluster.get("ps", []))
    if not servers or not workers:
        raise SystemExit(
            "There is no cluster in TF_CONFIG. Start this script by: " + start_command
        )
    print(f"Cluster: {workers} workers, {servers} parameter servers.", flush=True)
    return tf.distribute.ParameterServerStrategy(resolver), workers


def positive(text: str) -> int:
    """Converts a command line value that has to be at least 1."""
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1. Received: {number}")
    return number
