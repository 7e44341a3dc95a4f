"""Runs what a task of TF_CONFIG has to run, in place of this process.

`ps` and `worker` tasks are served by `tf-syncrep serve`; the others, the `chief` above
all, run the script that is given as arguments:

    python entrypoint.py SCRIPT ARGUMENT...
"""

import os
import sys
from collections.abc import Mapping, Sequence

from tf_syncrep.python.distribute import cluster, server

_BAD_CONFIG = 2


def command(script: Sequence[str], environ: Mapping[str, str]) -> list[str]:
    """Returns the command of this task.

    Args:
        script: the training script and its arguments.
        environ: where TF_CONFIG is.

    Raises:
        ClusterConfigError: TF_CONFIG is missing or wrong; the message is one line.
    """
    task = cluster.read_tf_config(environ)
    if task.task_type in server.SERVED_TYPES:
        return [sys.executable, "-m", "tf_syncrep", "serve"]
    return [sys.executable, *script]


def main() -> int:
    """Becomes the command, so that signals and its status are passed on as they are."""
    try:
        words = command(sys.argv[1:], os.environ)
    except cluster.ClusterConfigError as error:
        print(f"entrypoint: error: {error}", file=sys.stderr)
        return _BAD_CONFIG
    os.execv(words[0], words)


if __name__ == "__main__":
    sys.exit(main())
