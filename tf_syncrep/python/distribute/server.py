"""Serves one parameter server or worker of the cluster in TF_CONFIG."""

import ctypes
import os
import signal
import sys
from collections.abc import Mapping
from types import FrameType
from typing import NoReturn

from tf_syncrep.python.distribute import (
    allow,
    cluster,
    ports,
    script,
    threads,
    tunnels,
    wire,
)
from tf_syncrep.python.distribute.errors import UsageError

SERVED_TYPES = ("ps", "worker")
BAD_CONFIG = 2
NO_LIBRARY = 1

# Of <malloc.h>.
_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3
# The largest block for which glibc may use its heap instead of asking the kernel.
_LARGEST_BLOCK_BYTES = 32 << 20
# How much free memory stays at the end of an arena.
_KEPT_BYTES = 128 << 20


def serve(allowed: str, tls_files: str | None, tls_base_port: int) -> NoReturn:
    """Serves the task of TF_CONFIG until a signal ends the process.

    TensorFlow cannot stop a server within its process, so this function ends the
    process. Its status is 128 + n if signal n, which is SIGTERM, SIGINT or SIGHUP, has
    ended it: to a scheduler this is a task that was asked to end and may be started
    again. It is BAD_CONFIG if TF_CONFIG has no such task, its port is not available, or
    an argument is wrong; and NO_LIBRARY if TensorFlow or the op library cannot be
    loaded.

    `allowed`: who may connect, as in `--allow`. `tls_files`: the value of `--tls`, if
    the task can be reached only through TLS.
    """
    signalled, signal_pipe = os.pipe()
    os.set_blocking(signal_pipe, False)
    signal.set_wakeup_fd(signal_pipe)
    for signum in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        if signal.getsignal(signum) != signal.SIG_IGN:
            signal.signal(signum, _exit_by_signal)
    try:
        task = cluster.read_tf_config()
        # TF_CONFIG may be of TensorFlow alone, and other tasks are of any kind.
        protocol = wire.asked_for(os.environ)
        if task.rpc_layer not in wire.RPC_LAYERS:
            protocol = task.rpc_layer
        if task.task_type not in SERVED_TYPES:
            raise cluster.ClusterConfigError(
                "TF_CONFIG['task']['type'] must be 'ps' or 'worker' for a task that is "
                f"served; others run the training script. Received: {task.task_type!r}"
            )
        if tls_files is not None:
            environ = tunnels.open_for(task, tls_files, allowed, tls_base_port)
            command = script.server_command(allow.LOCAL)
            os.execve(command[0], command, environ)
        ports.check_port_is_free(task.port, os.environ)
        allow.restrict_this_process(allowed, task)
        # Others may be a v1 script's own, which its sessions need.
        task, left_out = cluster.without_jobs(task, [cluster.EVALUATOR])
    except UsageError as error:
        _exit(BAD_CONFIG, error)
    try:
        # TensorFlow is imported only now, so that the errors above are reported at
        # once.
        from tf_syncrep.python.ops import op_library

        op_library.load()
    except ImportError as error:
        _exit(NO_LIBRARY, error)
    protocol = wire.usable(protocol)
    import tensorflow as tf

    keep_memory_for_messages()
    try:
        _server = tf.distribute.Server(
            tf.train.ClusterSpec(task.cluster),
            job_name=task.task_type,
            task_index=task.task_index,
            protocol=protocol,
            config=threads.config_for(os.cpu_count() or 1),
        )
    except tf.errors.OpError as error:
        reason = " ".join(error.message.split())
        _exit(BAD_CONFIG, f"no server at {task.address}: {reason}")
    print(
        f"serving {task.task_type} {task.task_index} at {task.address} "
        f"({protocol}, TensorFlow {tf.__version__})",
        flush=True,
    )
    if left_out:
        print(left_out, flush=True)
    # server.join() would never return to Python, where signals are handled.
    # signal.pause() would not end for a signal that comes just before it, or that
    # another thread gets.
    while True:
        os.read(signalled, 1)


def keep_memory_for_messages(environ: Mapping[str, str] = os.environ) -> bool:
    """Makes glibc keep the memory of messages that were read, for later messages.

    By default glibc returns the memory of a large message to the kernel, and the next
    message gets new pages. For a tensor of 16 MB that a worker reads in every step
    these are half of the pages, and they cost a quarter of the processor time of
    reading it.

    `environ`: the environment; if it configures malloc, nothing is changed.
    """
    if any(x.startswith(("MALLOC_", "GLIBC_TUNABLES")) for x in environ):
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    mallopt(_M_MMAP_THRESHOLD, _LARGEST_BLOCK_BYTES)
    mallopt(_M_TRIM_THRESHOLD, _KEPT_BYTES)
    return True


def _exit_by_signal(signum: int, frame: FrameType | None) -> None:
    del frame
    # The server's threads would outlive an orderly end of the interpreter.
    os._exit(128 + signum)


def _exit(status: int, message: object) -> NoReturn:
    print(f"tf-syncrep serve: error: {message}", file=sys.stderr)
    sys.exit(status)
