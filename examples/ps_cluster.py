"""What examples on clusters share: the connection, the gate's figures, an option."""

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


def print_gate(stats: dict) -> None:
    """Prints what the gate counted."""
    print(
        f"Gate: {stats['updates']:,} updates of {stats['applied']:,} gradients; "
        f"dropped {stats['late']:,} late, {stats['stale']:,} stale, "
        f"{stats['voided']:,} void."
    )
    for device, worker in stats["workers"].items():
        print(
            f"  {device}  {worker['contributed']:,} contributions, "
            f"waited {worker['waited_secs']:.1f} s"
        )


def positive(text: str) -> int:
    """Converts a command line value that has to be at least 1."""
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1. Received: {number}")
    return number
