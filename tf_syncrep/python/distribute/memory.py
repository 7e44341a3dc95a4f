"""Keeps memory that a server does not need at the moment."""

import ctypes
import os
from collections.abc import Mapping

# Of <malloc.h>.
_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3
# The largest block for which glibc may use its heap instead of asking the kernel.
_LARGEST_BLOCK_BYTES = 32 << 20
# How much free memory stays at the end of an arena.
_KEPT_BYTES = 128 << 20


def keep_for_messages(environ: Mapping[str, str] = os.environ) -> bool:
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
