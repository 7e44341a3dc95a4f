"""A contender in a process of its own, where TensorFlow has one thread for an op.

A session that asks for one thread has all threads of its process nevertheless.
"""

from __future__ import annotations

import contextlib
import multiprocessing
from collections.abc import Callable, Iterator
from typing import Any

from .timing import Contender

ON_ONE_THREAD = " on one thread"


@contextlib.contextmanager
def serve(make: Callable[..., Contender], *arguments: Any) -> Iterator[Contender]:
    """Makes a contender in another process; yields one that passes on its work.

    The way there and back takes about 50 us, which count as a part of its steps.

    `*arguments`: its arguments, which must be picklable.
    """
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_answer, args=(theirs, make, arguments))
    process.start()
    theirs.close()

    def call(method: str, *arguments: Any) -> Any:
        ours.send((method, *arguments))
        try:
            return ours.recv()
        except EOFError:
            raise AssertionError("the process above has failed") from None

    try:
        yield Contender(
            name=call("name") + ON_ONE_THREAD,
            step=lambda i: call("step", i),
            read=lambda: call("read"),
            prepare=lambda i: call("prepare", i),
        )
    finally:
        ours.close()
        process.join()


def _answer(connection, make: Callable[..., Contender], arguments: Any) -> None:
    # This comes before TensorFlow makes its devices, which it does at its first use.
    import tensorflow as tf

    tf.config.threading.set_intra_op_parallelism_threads(1)
    contender = make(*arguments)
    while True:
        try:
            method, *given = connection.recv()
        except EOFError:
            return
        answer = getattr(contender, method)
        connection.send(answer(*given) if callable(answer) else answer)
