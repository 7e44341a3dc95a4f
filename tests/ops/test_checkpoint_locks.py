"""What may use a variable while a checkpoint's thread holds its lock."""

import contextlib
import ctypes
import mmap
import os
import signal
import sys

import numpy as np
import pytest
import tensorflow as tf
from process_threads import asleep_in_handler
from waiting import in_thread, until

from tf_syncrep.python.ops import checkpoint_ops

ROWS, WIDTH = 20_000, 8
DEADLINE_SECS = 60.0

pytestmark = pytest.mark.skipif(
    sys.platform != "linux", reason="/proc tells what a thread does"
)


def test_lookups_are_let_in_while_rows_are_read_for_a_checkpoint(tmp_path):
    """The thread that reads them hangs meanwhile, with the lock."""
    variable = tf.Variable(tf.ones([ROWS, WIDTH]))

    def lookup():
        return tf.raw_ops.ResourceGather(
            resource=variable.handle, indices=[0], dtype=tf.float32
        )

    address = _address_of(variable)
    writer = checkpoint_ops.checkpoint_writer(shared_name="", counted=True)
    with _hanging_where_it_reads(address + variable.dtype.size * ROWS * WIDTH // 2):
        checkpoint_ops.checkpoint_begin(
            *(writer, str(tmp_path / "ckpt"), "", "", [[variable.handle]]),
            *([(0, ROWS, 0, 1, ROWS)], ["table"], [], []),
            max_kept_bytes=1 << 20,
            patience_secs=DEADLINE_SECS,
        )
        until(
            lambda: "tfs_checkpoint" in dict(asleep_in_handler(signal.SIGSEGV)).values()
        )
        found = in_thread(lookup).result(DEADLINE_SECS)
    np.testing.assert_array_equal(found, np.full([1, WIDTH], 2))
    until(lambda: checkpoint_ops.checkpoint_progress(writer)[0])
    reader = tf.train.load_checkpoint(str(tmp_path / "ckpt"))
    np.testing.assert_array_equal(reader.get_tensor("table"), variable)


def _address_of(variable):
    """Where the values of a variable are, and stay."""
    address = np.asarray(variable.read_value()).ctypes.data
    variable.scatter_nd_update([[0]], [[2.0] * WIDTH])
    assert ctypes.c_float.from_address(address).value == 2
    return address


@contextlib.contextmanager
def _hanging_where_it_reads(address):
    """Makes threads that read a page of memory hang there, in a signal handler."""
    libc = ctypes.CDLL(None)
    libc.signal.restype = ctypes.c_void_p
    page = ctypes.c_void_p(address // mmap.PAGESIZE * mmap.PAGESIZE)
    libc.signal(signal.SIGUSR2, ctypes.cast(libc.getpid, ctypes.c_void_p))
    before = libc.signal(signal.SIGSEGV, ctypes.cast(libc.pause, ctypes.c_void_p))
    assert libc.mprotect(page, mmap.PAGESIZE, 0) == 0
    try:
        yield
    finally:
        libc.mprotect(page, mmap.PAGESIZE, mmap.PROT_READ | mmap.PROT_WRITE)
        for thread, _ in asleep_in_handler(signal.SIGSEGV):
            libc.tgkill(os.getpid(), thread, signal.SIGUSR2)
        libc.signal(signal.SIGSEGV, ctypes.c_void_p(before))
