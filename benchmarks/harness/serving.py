"""The other end of `replicas`, in a process that does what the benchmark says."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable
from multiprocessing import connection
from typing import Any

import tensorflow as tf


def serve(make: Callable[..., Any]) -> None:
    """Calls methods of an object as it is told to, until a signal ends the process.

    The process's arguments say by whom. The answer to each call is its result, or an
    exception as text.
    """
    tf.get_logger().setLevel("ERROR")
    host, port = sys.argv[1:]
    key = os.environ["TF_SYNCREP_BENCHMARK_KEY"].encode()
    resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
    with connection.Client((host, int(port)), authkey=key) as client:
        client.send(int(resolver.task_id))

        def answer(function: Callable[..., Any], *arguments: Any) -> None:
            result, error = None, None
            try:
                result = function(*arguments)
            except Exception:
                error = traceback.format_exc()
            client.send((result, error))

        served: list[Any] = []

        def start(*arguments: Any) -> None:
            served.append(make(*arguments))

        while True:
            method, *rest = client.recv()
            answer(getattr(served[0], method) if served else start, *rest)
