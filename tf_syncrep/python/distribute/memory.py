"""What a server does with memory that it has no use for at the moment."""

import ctypes
import os
from collections.abc import Mapping

# Of <malloc.h>.
_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3
# The largest block that glibc does not ask the kernel for by itself.
_LARGEST_BLOCK_BYTES = 32 << 20
# So much that is free at the end of an arena stays there.
_KEPT_BYTES = 128 << 20


def keep_for_messages(environ: Mapping[str, str] = os.environ) -> bool:
    """Has glibc keep the memory of messages that were read for the next ones.

    By default it gives the memory of a large message back to the kernel, and that of
    the next one is new, page by page: half of the pages of a tensor of 16 MB that a
    worker reads in every step, and a quarter of the processor time of reading it.

    Args:
        environ: the environment; where it says how malloc is to be, nothing is changed.

    Returns:
        Whether it was changed. Other C libraries have no such function.
    """
    if any(x.startswith(("MALLOC_", "GLIBC_TUNABLES")) for x in environ):
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    mallopt(_M_MMAP_THRESHOLD, _LARGEST_BLOCK_BYTES)
    mallopt(_M_TRIM_THRESHOLD, _KEPT_BYTES)
    return True
