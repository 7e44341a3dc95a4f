"""Clusters: a launcher for programs, and TF_CONFIG, read and checked.

`launch(LaunchOptions("train.py", num_workers=4, num_ps=2))` does what
`tf-syncrep launch --workers 4 --ps 2 train.py` does, from any process.
"""

from tf_syncrep.python.distribute.cluster import (
    ClusterConfigError,
    TaskConfig,
    read_tf_config,
)
from tf_syncrep.python.distribute.launch_options import LaunchError, LaunchOptions
from tf_syncrep.python.distribute.launcher import launch
from tf_syncrep.python.distribute.ports import PortUnavailableError
from tf_syncrep.python.distribute.v1_server import Server

__all__ = [
    "ClusterConfigError",
    "LaunchError",
    "LaunchOptions",
    "PortUnavailableError",
    "Server",
    "TaskConfig",
    "launch",
    "read_tf_config",
]
